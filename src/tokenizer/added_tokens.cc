#include "tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace pagoda {

namespace {

// White_Space of the Unicode Character Database.
bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The word characters of Unicode Technical Standard 18, annex C: Alphabetic, M, Nd, Pc and
// Join_Control. Alphabetic is here L, Nl and the circled letters.
bool is_word(uint32_t c) {
  const auto in = [c](uint32_t low, uint32_t high) { return c >= low && c <= high; };
  if (in(0x200C, 0x200D) || in(0x24B6, 0x24E9) || in(0x1F130, 0x1F149) || in(0x1F150, 0x1F169) ||
      in(0x1F170, 0x1F189)) {
    return true;
  }
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(code_point_before(text, begin).value)) ||
         (end < text.size() && is_word(code_point_at(text, end).value));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized) {
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized && !token.spelling.empty()) sorted_.push_back(&token);
  }
  std::stable_sort(sorted_.begin(), sorted_.end(),
                   [](const auto* a, const auto* b) { return a->spelling < b->spelling; });
  for (const AddedToken* token : sorted_) {
    ++first_of_byte_[static_cast<uint8_t>(token->spelling[0]) + 1];
  }
  for (int byte = 0; byte < 256; ++byte) first_of_byte_[byte + 1] += first_of_byte_[byte];
}

const AddedToken* AddedTokenFinder::match_at(std::string_view text, size_t at) const {
  const uint8_t first = static_cast<uint8_t>(text[at]);
  auto low = sorted_.begin() + first_of_byte_[first];
  auto high = sorted_.begin() + first_of_byte_[first + 1];
  const AddedToken* longest = nullptr;
  // The spellings [low, high) agree with the text in their first `depth` bytes.
  for (size_t depth = 1; low < high; ++depth) {
    if ((*low)->spelling.size() == depth) {
      longest = *low;
      while (low < high && (*low)->spelling.size() == depth) ++low;
    }
    if (at + depth >= text.size()) break;
    const uint8_t wanted = static_cast<uint8_t>(text[at + depth]);
    const auto byte_of = [depth](const AddedToken* token) {
      return static_cast<uint8_t>(token->spelling[depth]);
    };
    low = std::partition_point(low, high, [&](const auto* t) { return byte_of(t) < wanted; });
    high = std::partition_point(low, high, [&](const auto* t) { return byte_of(t) == wanted; });
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextPart>* parts) const {
  const auto add = [&](size_t begin, size_t end, const AddedToken* token) {
    if (begin >= end) return;
    parts->push_back({{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, token});
  };
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !sorted_.empty();) {
    const AddedToken* found = match_at(text, at);
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->spelling.size();
    at = end;
    const AddedToken& token = *found;
    if (begin < done || (token.single_word && touches_word(text, begin, end))) continue;
    while (token.lstrip && begin > done) {
      const CodePoint before = code_point_before(text, begin);
      if (!is_space(before.value)) break;
      begin -= before.bytes;
    }
    while (token.rstrip && end < text.size()) {
      const CodePoint behind = code_point_at(text, end);
      if (!is_space(behind.value)) break;
      end += behind.bytes;
    }
    add(done, begin, nullptr);
    add(begin, end, &token);
    done = end;
  }
  add(done, text.size(), nullptr);
}

}  // namespace pagoda
