// What Split, Replace and the other components of a tokenizer look for: a fixed text or a regular
// expression. Matches are leftmost, do not overlap, and are those of Hugging Face tokenizers
// (Oniguruma); regular expressions run on PCRE2's JIT.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/aligned_text.h"

namespace pagoda {

// Memory that regular expressions need, taken at the first. One thread at a time; serves any
// pattern.
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

// Immutable; cheap to copy.
class Pattern {
 public:
  // REQUIRES: not empty.
  static Pattern literal(std::string text);
  // kBadData, its message begun by `where`: not a regular expression that pagoda knows
  // (data/regex_syntax.h), too large, or one that takes exponential time on short probes.
  static Result<Pattern> regex(const std::string& pattern, const std::string& where);

  // Sets `matches` to those in `text`. False when the expression needed too many steps on this
  // text: then `matches` holds those before that place. REQUIRES: well-formed UTF-8.
  bool find_all(std::string_view text, MatchMemory* memory, std::vector<TokenRange>* matches) const;

 private:
  struct Code;
  bool find_literal(std::string_view text, std::vector<TokenRange>* matches) const;
  bool survives_probes() const;
  std::string literal_;
  std::shared_ptr<const Code> code_;  // null: literal
};

}  // namespace pagoda
