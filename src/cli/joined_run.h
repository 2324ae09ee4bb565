// What commands do that a launcher starts as several processes: they end alike, and one of them
// says why.
#pragma once

#include <functional>
#include <string>

#include "config/run_config.h"
#include "parallel/mpi_communicator.h"
#include "parallel/rank_group.h"

namespace pagoda {

// Runs `body`, which returns the same status everywhere. Its error is printed by rank 0 alone, and
// no process leaves before, since launchers end the others then. Once a rank is lost, the first of
// the others says so, and nobody waits. A process that does not leave at the end is an error too:
// launchers would wait for it. One that has not ended `end_s` after a loss is ended then without
// leaving MPI, by the loss's exit code: a thread of it stands still, or is at long work.
Status run_joined(MpiCommunicator& all, const std::function<Status()>& body, double end_s = 10);

// Runs `alone`, or `together` if a launcher started this process with others, as run_joined() does.
Status run_alone_or_joined(const std::function<Status()>& alone,
                           const std::function<Status(MpiCommunicator&)>& together);

// What each rank of a command does: `settle` makes the settings in `config` those of rank 0, and
// `work` follows, with links, deadlines and heartbeats of these settings.
struct RankedWork {
  std::function<Status(RankGroup&)> settle, work;
};
// kMismatch where ranks are of unlike builds, the errors of both and of Heartbeat::start.
Status run_ranked(MpiCommunicator& all, const RunConfig& config, const RankedWork& ranked);

// Runs `body`, which is the work of one process. Where a launcher started several, none does it:
// kUsage names the `command`, in one line.
Status run_by_one(const char* command, const std::function<Status()>& body);

// kMismatch unless all ranks are the same build, of which `mine` is the name. What they tell each
// other later is told in the same order, and means the same, on no others.
Status check_same_program(Communicator& all, const std::string& mine);

// kUsage unless all ranks give the same words, which say how they were started.
Status check_same_words(Communicator& all, const std::string& mine);

}  // namespace pagoda
