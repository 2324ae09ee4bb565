// Commands that only read a run or a model, as one process or as several that a launcher started:
// with links between the ranks, and heartbeats.
#pragma once

#include <functional>

#include "config/run_config.h"
#include "parallel/mpi_communicator.h"
#include "parallel/rank_group.h"

namespace pagoda {

// Runs `alone`, or `together` if a launcher started this process with others, as run_joined() does.
Status run_alone_or_joined(const std::function<Status()>& alone,
                           const std::function<Status(MpiCommunicator&)>& together);

// What each of several ranks does: `settle` makes the settings in `config` those of rank 0, and
// `work` follows, with links and heartbeats of these settings.
struct RankedWork {
  std::function<Status(RankGroup&)> settle, work;
};
Status run_ranked(MpiCommunicator& all, const RunConfig& config, const RankedWork& ranked);

}  // namespace pagoda
