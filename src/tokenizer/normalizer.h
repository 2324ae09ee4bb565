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

// How long what becomes of a text may be. Tokenizers write three bytes for one where they write
// most (a space as U+2581); steps that multiply each other could fill any memory.
constexpr size_t most_changed_bytes(size_t text_bytes) { return 8 * text_bytes + 65536; }

// Immutable; any number of threads.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // The steps in order. `*room_bytes` is how long the text may become, and less by what it became
  // on return. kBadData when that is not enough, or when a pattern gives up (tokenizer/pattern.h).
  Status apply(AlignedText* text, MatchMemory* memory, size_t* room_bytes) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace pagoda
