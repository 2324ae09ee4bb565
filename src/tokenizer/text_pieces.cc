#include "tokenizer/text_pieces.h"

#include <algorithm>

#include "base/log.h"
#include "base/utf8.h"

namespace pagoda {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kSearchBytes = size_t{1} << 16;  // how far back from the end a cut is looked for

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// Where the first piece of `text` ends: above 0, and below the size where that is possible.
size_t first_cut(std::string_view text) {
  const size_t lowest = text.size() > kSearchBytes ? text.size() - kSearchBytes : 1;
  for (size_t at = text.size() - 1; at >= lowest; --at) {
    if ((text[at] == ' ' || text[at] == '\n') && is_letter(text[at - 1])) return at;
  }
  for (size_t at = text.size() - 1; at >= lowest; --at) {
    if (text[at - 1] == '\n' && !is_blank(text[at])) return at;
  }
  size_t at = text.size() - 1;
  while (at > 1 && at + 4 > text.size() && !begins_character(text[at])) --at;
  return at;
}

}  // namespace

Status TextPieces::add(std::string_view bytes) {
  text_.append(bytes);
  while (text_.size() > kPieceBytes) {
    const size_t cut = first_cut(std::string_view(text_).substr(0, kPieceBytes));
    const std::string_view piece(text_.data(), cut);
    RETURN_IF_ERROR(check(piece));
    RETURN_IF_ERROR(visit_(piece, false));
    text_.erase(0, cut);
  }
  return Status();
}

Status TextPieces::finish() {
  RETURN_IF_ERROR(check(text_));
  return visit_(text_, true);
}

Status TextPieces::check(std::string_view piece) {
  const size_t invalid = first_invalid_utf8(piece);
  const std::string_view good = piece.substr(0, invalid);
  const size_t newline = good.rfind('\n');
  lines_ += std::count(good.begin(), good.end(), '\n');
  const bool same_line = newline == std::string_view::npos;
  column_bytes_ = static_cast<int64_t>(same_line ? good.size() : good.size() - newline - 1) +
                  (same_line ? column_bytes_ : 0);
  if (invalid == std::string_view::npos) return Status();
  return Status(Exit::kBadData, strf("%s:%lld:%lld: invalid UTF-8; nothing was trained, save the "
                                     "file as UTF-8",
                                     printable(path_).c_str(), (long long)lines_ + 1,
                                     (long long)column_bytes_ + 1));
}

}  // namespace pagoda
