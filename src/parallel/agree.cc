#include <charconv>

#include "base/check.h"
#include "parallel/communicator.h"

namespace pagoda {

// A status as text: the exit code, and behind it the message.
Status agree(Communicator& all, const Status& mine) {
  const std::string text = strf("%d ", static_cast<int>(mine.code())) + mine.message();
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(text));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const size_t space = texts[rank].find(' ');
    int code = 0;
    std::from_chars(texts[rank].data(), texts[rank].data() + space, code);
    if (code == 0) continue;
    return Status(static_cast<Exit>(code),
                  strf("rank %zu: ", rank) + texts[rank].substr(space + 1));
  }
  return Status();
}

}  // namespace pagoda
