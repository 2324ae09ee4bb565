#include "cli/ranked_run.h"

#include <memory>
#include <utility>

#include "base/stop_signal.h"
#include "cli/joined_run.h"
#include "parallel/gpus/mixed_link.h"
#include "parallel/heartbeat.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

// Nobody knows yet what a rank that does not come has as its deadline.
constexpr double kMostJoinS = 60;

}  // namespace

Status run_alone_or_joined(const std::function<Status()>& alone,
                           const std::function<Status(MpiCommunicator&)>& together) {
  if (!read_launch().together()) return alone();
  install_stop_signals();
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes(kMostJoinS));
  if (all->size() == 1) return alone();
  return run_joined(*all, [&] { return together(*all); });
}

Status run_ranked(MpiCommunicator& all, const RunConfig& config, const RankedWork& ranked) {
  RankGroup ranks(&all, [&](std::vector<LinkEnd> ends, Trace* trace) {
    return open_mixed_link(all, std::move(ends), config.parallel.deadline_s,
                           config.parallel.nccl ? open_nccl : OpenGpuLink(), trace);
  });
  RETURN_IF_ERROR(ranked.settle(ranks));
  all.set_deadline(config.parallel.deadline_s);
  ASSIGN_OR_RETURN(const std::unique_ptr<Heartbeat> heartbeat,
                   Heartbeat::start(all, {config.parallel.heartbeat_s, config.parallel.deadline_s},
                                    [&](int rank, const Status& loss) { all.lose(rank, loss); }));
  ranks.set_progress([&](const std::string& word) { heartbeat->progress(word); });
  const Status ended = ranked.work(ranks);
  heartbeat->stop();
  return ended;
}

}  // namespace pagoda
