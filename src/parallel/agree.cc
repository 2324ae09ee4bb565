#include "base/check.h"
#include "base/number_text.h"
#include "parallel/communicator.h"

namespace pagoda {

// A status as text: the exit code, and behind it the message.
Status agree(Communicator& all, const Status& mine) {
  const std::string text = strf("%d ", static_cast<int>(mine.code())) + mine.message();
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(text));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    NumberReader in(texts[rank]);
    int code = 0;
    if (!in.read(code, 0, 255)) {
      return Status(Exit::kIoError, strf("rank %zu sent what is no status; see that all ranks run "
                                         "the same program", rank));
    }
    if (code == 0) continue;
    return Status(static_cast<Exit>(code), strf("rank %zu: ", rank) + std::string(in.rest()));
  }
  return Status();
}

}  // namespace pagoda
