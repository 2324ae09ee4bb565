// Chooses parallel.layout where it is "auto", by the measured profile of the run's devices
// (MachineSheet::Profile). No bit depends on it.
#pragma once

#include <optional>

#include "config/run_config.h"
#include "plan/machine/machine_sheet.h"
#include "preview/model_sizes.h"

namespace pagoda {

// Whether the sheet has measured what tasks of the run's sizes take on all of its devices.
bool has_profile_of(const ModelSizes& model, const MachineSheet& sheet, const RunConfig& config);
// Whether one of the nodes has.
bool any_has_profile_of(const ModelSizes& model, const ClusterSheet& cluster,
                        const RunConfig& config);

// The run in zebra, if that is its layout, or if its layout is open and zebra would do for the
// devices, chunks and layers that it has. REQUIRES: a microbatch that is a number.
std::optional<RunConfig> as_zebra(const ModelShape& model, RunConfig config);

// Simulated steps of both layouts; 0: one that does not fit, or neither was simulated.
struct LayoutChoice {
  double zebra_s = 0, experts_s = 0;
  bool simulated = false;
  bool zebra() const { return zebra_s > 0 && (experts_s == 0 || zebra_s < experts_s); }
};

// Sets the layout of a run of one process: zebra where its simulated step is the shorter one, or
// the only one that fits, in which the planner has chosen what else is open. Where the sheet has no
// profile of the run's sizes and devices, and where zebra cannot run (as_zebra()), "auto" stays,
// which is experts. Returns the errors of forecast_run. REQUIRES:
// config.validate_for_planning(), a microbatch that is a number.
Result<LayoutChoice> choose_layout(const ModelSizes& model, const MachineSheet& sheet,
                                   RunConfig& config);

// The same for a run that begins or goes on, and logs what was chosen. Returns the errors of
// read_model_sizes, too.
Status choose_layout(const MachineSheet& measured, RunConfig& config);

}  // namespace pagoda
