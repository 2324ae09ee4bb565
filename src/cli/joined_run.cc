#include "cli/joined_run.h"

#include "base/log.h"
#include "cli/commands.h"

namespace pagoda {

Status run_joined(MpiCommunicator& all, const std::function<Status()>& body) {
  Status status = body();
  if (status.ok()) {
    const Status left = all.leave();
    if (left.ok()) return left;
    status = Status(left.code(), "all was done, but " + left.message());
  }
  if (all.broken()) {
    // One of those that are left says it; two where it is not plain that rank 0 is left.
    const std::string& why = status.message();
    const bool another_is_lost = why.starts_with("rank ") && !why.starts_with("rank 0 ");
    const bool says = all.rank() == 0 ? !why.starts_with("rank 0 on ")
                                      : all.rank() == 1 && !another_is_lost;
    return says ? status : Status(status.code(), "");
  }
  if (all.rank() == 0) print_error(status);
  RETURN_IF_ERROR(all.barrier());
  return Status(status.code(), "");
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
