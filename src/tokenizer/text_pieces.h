// Cuts long plain text into pieces that can be tokenised one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace pagoda {

// Checks UTF-8 and cuts. A piece ends before a blank or line break that follows a letter, where
// tokenizers that split text into words see the same words as in the whole; where a piece has no
// such place, at the end of a line, else between two characters.
class TextPieces {
 public:
  // `visit(piece, last)`: the pieces in order, together the text; there is always a last one, which
  // may be empty. `path` is for errors: kBadData "PATH:LINE:COLUMN: invalid UTF-8".
  using Visitor = std::function<Status(std::string_view piece, bool last)>;
  TextPieces(std::string path, Visitor visit) : path_(std::move(path)), visit_(std::move(visit)) {}

  Status add(std::string_view bytes);
  Status finish();

 private:
  Status check(std::string_view piece);

  const std::string path_;
  const Visitor visit_;
  std::string text_;  // text that was not handed on yet
  int64_t lines_ = 0;  // lines that ended before text_
  int64_t column_bytes_ = 0;  // bytes in text_'s first line before text_
};

}  // namespace pagoda
