// The normalizer of a tokenizer.json: what changes a text before it is cut into words.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/pattern.h"

namespace pagoda {

struct NormalizerStep {
  enum class Kind : uint8_t { kNfc, kPrepend, kReplace };
  Kind kind;
  std::string content = {};                    // kPrepend, kReplace: what is put there
  std::optional<Pattern> pattern = std::nullopt;  // kReplace: what it replaces
};

// Immutable; any number of threads.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // The steps in order. kBadData when a pattern gives up (tokenizer/pattern.h).
  Status apply(AlignedText* text, MatchMemory* memory) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace pagoda
