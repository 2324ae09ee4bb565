// The pattern that Split, Replace and other components of a tokenizer look for: a fixed text or a
// regular expression. Matches are leftmost, do not overlap, and are those of Hugging Face
// tokenizers (Oniguruma); regular expressions run on PCRE2's JIT.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/aligned_text.h"

namespace pagoda {

// Working memory of regular expressions, allocated at the first one. One thread at a time; serves
// any pattern.
class MatchMemory {
 public:
  MatchMemory();
  ~MatchMemory();
  MatchMemory(MatchMemory&&) noexcept;
  MatchMemory& operator=(MatchMemory&&) noexcept;

 private:
  friend class Pattern;
  struct State;
  std::unique_ptr<State> state_;
};

// Appends the places of `literal`, which is not empty, in `text`.
void find_literal(std::string_view text, std::string_view literal,
                  std::vector<TokenRange>* matches);

// Immutable; cheap to copy.
class Pattern {
 public:
  // REQUIRES: not empty.
  static Pattern literal(std::string text);
  // kBadData, its message begun by `where`: not a regular expression that pagoda knows
  // (tokenizer/regex_syntax.h), too large, or one that takes exponential time on short probes.
  static Result<Pattern> regex(const std::string& pattern, const std::string& where);

  // Sets `matches` to those in `text`. kBadData when the expression takes too long on this text:
  // too many steps at one place, or more processor time than 2 s and 1 s a megabyte. The message
  // quotes the place; callers add whose text it is and what to do. REQUIRES: well-formed UTF-8.
  Status find_all(std::string_view text, MatchMemory* memory,
                  std::vector<TokenRange>* matches) const;

 private:
  struct Code;
  int find_next(std::string_view text, size_t from, size_t last, const MatchMemory& memory) const;
  bool survives_probes() const;
  std::string literal_;
  std::shared_ptr<const Code> code_;  // null: literal
  std::shared_ptr<const Code> careful_;  // the same matches, slower, and stops when it is late
};

}  // namespace pagoda
