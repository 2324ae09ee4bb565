// The normalizer of a tokenizer.json, which changes a text before it is cut into words.
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
  std::string content = {};                    // kPrepend, kReplace: the new text
  std::optional<Pattern> pattern = std::nullopt;  // kReplace: the text to replace
};

// The most bytes that a text may become. Real tokenizers write at most three bytes for one (a space
// as U+2581); steps that multiply each other could fill any memory.
constexpr size_t most_changed_bytes(size_t text_bytes) { return 8 * text_bytes + 65536; }

// Immutable; any number of threads.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // Applies the steps in order. `*room_bytes` is the most bytes that the text may become; on return
  // it is less by the bytes of the result. kBadData when the room is too small, or when a pattern
  // gives up (tokenizer/pattern.h).
  Status apply(AlignedText* text, MatchMemory* memory, size_t* room_bytes) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace pagoda
