#include "cli/joined_run.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

constexpr double kJoinS = 60;

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

Status run_by_one(const char* command, const std::function<Status()>& body) {
  const Launch launch = read_launch();
  if (!launch.together()) return body();
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes(kJoinS));
  if (all->size() == 1) return body();
  return run_joined(*all, [&] {
    return Status(Exit::kUsage, strf("pagoda %s is the work of one process, and %s started %d; "
                                     "nothing was done: start it alone",
                                     command, launch.launcher.c_str(), all->size()));
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
