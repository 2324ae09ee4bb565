#include "cli/joined_run.h"

#include "base/log.h"
#include "cli/commands.h"

namespace pagoda {

Status run_joined(MpiCommunicator& all, const std::function<Status()>& body) {
  const Status status = body();
  if (status.ok()) return status;
  if (all.broken()) {
    // One of those that are left says it.
    const bool first_is_lost = status.message().starts_with("rank 0 on ");
    return all.rank() == (first_is_lost ? 1 : 0) ? status : Status(status.code(), "");
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
