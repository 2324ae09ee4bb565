#include "cli/joined_run.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/log.h"
#include "base/stop_signal.h"
#include "cli/commands.h"
#include "parallel/gpus/mixed_link.h"
#include "parallel/heartbeat.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

// Nobody knows yet what a rank that does not come has as its deadline.
constexpr double kMostJoinS = 60;

// One of those that are left says it; two where it is not plain that rank 0 is left.
bool says(int rank, const std::string& why) {
  const bool another_is_lost = why.starts_with("rank ") && !why.starts_with("rank 0 ");
  return rank == 0 ? !why.starts_with("rank 0 on ") : rank == 1 && !another_is_lost;
}

// Nothing that another thread may hold is waited for.
void end_process(double after_s, bool tells, const Status& why) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    const std::string line = "pagoda: " + printable(why.message(), 2000) + "\n";
    if (tells) (void)!::write(STDERR_FILENO, line.data(), line.size());
    ::_exit(static_cast<int>(why.code()));
  }).detach();
}

}  // namespace

Status run_joined(MpiCommunicator& all, const std::function<Status()>& body, double end_s) {
  all.thread().when_failed([rank = all.rank(), end_s](const Status& why) {
    end_process(end_s, says(rank, why.message()), why);
  });
  Status status = body();
  if (status.ok()) {
    const Status left = all.leave();
    if (left.ok()) return left;
    status = Status(left.code(), "all was done, but " + left.message());
  }
  if (all.broken()) {
    return says(all.rank(), status.message()) ? status : Status(status.code(), "");
  }
  if (all.rank() == 0) print_error(status);
  RETURN_IF_ERROR(all.barrier());
  return Status(status.code(), "");
}

Status run_alone_or_joined(const std::function<Status()>& alone,
                           const std::function<Status(MpiCommunicator&)>& together) {
  if (!read_launch().together()) return alone();
  install_stop_signals();
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes(kMostJoinS));
  if (all->size() == 1) return alone();
  return run_joined(*all, [&] { return together(*all); });
}

Status run_ranked(MpiCommunicator& all, const RunConfig& config, const RankedWork& ranked) {
  RETURN_IF_ERROR(check_same_program(all, program_text()));
  const RunConfig::Parallel& times = config.parallel;
  RankGroup ranks(&all, [&](std::vector<LinkEnd> ends, Trace* trace) {
    return open_mixed_link(all, std::move(ends), times.deadline_s,
                           times.nccl ? open_nccl : OpenGpuLink(), trace);
  });
  RETURN_IF_ERROR(ranked.settle(ranks));
  ranks.set_deadlines(times.deadline_s, times.work_s);
  const StepRange ports = config.port_range();
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Heartbeat> heartbeat,
      Heartbeat::start(all,
                       {times.heartbeat_s, times.deadline_s, static_cast<int>(ports.first),
                        static_cast<int>(ports.last), &all.thread().waits()},
                       [&](int rank, const Status& loss) { all.lose(rank, loss); }));
  ranks.set_progress([&](const std::string& word) { heartbeat->progress(word); });
  const Status ended = ranked.work(ranks);
  heartbeat->stop();
  return ended;
}

Status run_by_one(const char* command, const std::function<Status()>& body) {
  return run_alone_or_joined(body, [command](MpiCommunicator& all) {
    return Status(Exit::kUsage, strf("pagoda %s is the work of one process, and %s started %d; "
                                     "nothing was done: start it alone",
                                     command, read_launch().launcher.c_str(), all.size()));
  });
}

Status check_same_program(Communicator& all, const std::string& mine) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(mine));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    return Status(Exit::kMismatch, strf("rank %zu is \"", rank) + printable(texts[rank]) +
                                       "\", rank 0 \"" + printable(texts[0]) +
                                       "\"; nothing was changed: give all ranks the same program");
  }
  return Status();
}

Status check_same_words(Communicator& all, const std::string& mine) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(mine));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    return Status(Exit::kUsage, strf("rank %zu was started as \"", rank) + printable(texts[rank]) +
                                    "\", rank 0 as \"" + printable(texts[0]) +
                                    "\"; start all with the same options");
  }
  return Status();
}

}  // namespace pagoda
