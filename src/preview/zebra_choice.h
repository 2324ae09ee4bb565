// Chooses what zebra leaves to the planner: parallel.attention_devices, parallel.offloaded,
// parallel.lags and parallel.kept_rows where they are "auto" (plan/zebra/zebra_search.h). No bit
// depends on it.
#pragma once

#include <optional>
#include <vector>

#include "config/run_config.h"
#include "parallel/rank_group.h"
#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"
#include "train/run_setup.h"

namespace pagoda {

// The experts of a layer whose rows of a chunk are the waves that a device has room for, where all
// have as many rows (OpenZebra::most_of_layer). REQUIRES: experts.
int64_t most_kept_of_layer(const ModelShape& model, const RunSetup& setup);

// The machines whose costs a choice goes by: of all ranks one, or [rank] each its own, and then
// what a transfer between two ranks takes. One sheet that has no network is taken to have one as
// fast as what joins its devices. The sheets are not owned.
struct RankMachines {
  std::vector<const MachineSheet*> sheets;
  Cost network = {};
};

// Sets in a setup of `config` what is open. Without zebra nothing is. What bench machine found to
// fit counts for a run on one machine. REQUIRES: check_model(model), check_layers(), sheets that
// check() takes.
void choose_zebra(const ModelShape& model, const RankMachines& machines, const RunConfig& config,
                  RunSetup& setup);

// Replaces "auto" in a run's parallel.attention_devices, offloaded, lags and kept_rows by what a
// shape of it has. REQUIRES: zebra.
void write_zebra(const RunShape& shape, RunConfig& config);

// The same for a run that begins or goes on: replaces "auto" by numbers, and logs them. All ranks
// call it together with rank 0's settings; rank 0 chooses for all, by its own machine, and only its
// settings get the numbers. `measured`: rank 0's machine; none: a rough sheet of it. Returns the
// errors of read_model_sizes, join_ranks and check_layers.
Status resolve_zebra(RunConfig& config, RankGroup& ranks,
                     const std::optional<MachineSheet>& measured = {});

}  // namespace pagoda
