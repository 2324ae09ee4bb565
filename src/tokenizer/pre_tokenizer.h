// The pre-tokenizer of a tokenizer.json, which cuts a text into the words that BPE works on. The
// meaning of each step is that of Hugging Face tokenizers (tokenizers/src/pre_tokenizers).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pattern.h"

namespace pagoda {

// What happens to the matches of a split: they become words, are dropped, or join their run of
// matches or the text before or behind them.
enum class SplitBehavior : uint8_t {
  kIsolated,
  kRemoved,
  kContiguous,
  kMergedWithPrevious,
  kMergedWithNext,
};

struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches is the match
};

// The text that a pre-tokenizer puts before a text: ByteLevel's add_prefix_space, Metaspace's ▁.
struct PrefixStep {
  enum class When : uint8_t { kNever, kAtStart, kAlways };
  When when = When::kNever;  // kAtStart: only where the original begins
  std::string content = {};  // not put before a text that begins with it
  bool for_spaces = false;   // it also takes the place of each space
};

// Immutable; any number of threads.
class PreTokenizer {
 public:
  // byte_level: the words' bytes are spelt in the byte alphabet (tokenizer/byte_alphabet.h).
  PreTokenizer(PrefixStep prefix, std::vector<SplitStep> splits, bool byte_level);
  PreTokenizer() : PreTokenizer({}, {}, false) {}

  bool byte_level() const { return byte_level_; }
  bool changes_text() const {
    return prefix_.when != PrefixStep::When::kNever || prefix_.for_spaces;
  }
  // The prefix step. REQUIRES: the text is not empty.
  void change(AlignedText* text) const;
  // Sets `words` to the words of `text`, none of them empty. kBadData when a pattern gives up
  // (tokenizer/pattern.h).
  Status split(std::string_view text, MatchMemory* memory, std::vector<TokenRange>* words) const;

 private:
  PrefixStep prefix_;
  std::vector<SplitStep> splits_;
  bool byte_level_;
};

}  // namespace pagoda
