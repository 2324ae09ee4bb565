// The decoder of a tokenizer.json, which turns tokens into text. The meaning of each step is that
// of Hugging Face tokenizers (tokenizers/src/decoders).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/pattern.h"

namespace pagoda {

struct DecoderStep {
  enum class Kind : uint8_t {
    kByteLevel,     // the byte alphabet; bytes that are not UTF-8 become U+FFFD
    kByteFallback,  // runs of <0xNN>; one U+FFFD for each byte of a run that is not UTF-8
    kFuse,          // all tokens into one
    kReplace,       // `pattern` by `content` in each token (not if that made the text many times
                    // longer)
    kStrip,         // up to `begin` and `end` times the character `content` at a token's ends
    kMetaspace,     // `content` to spaces, in the first token to `begin` spaces (0 or 1)
  };
  Kind kind;
  std::optional<Pattern> pattern = std::nullopt;
  std::string content = {};
  uint32_t begin = 0, end = 0;
};

// Immutable; any number of threads.
class Decoder {
 public:
  // Without steps, tokens are joined with spaces.
  Decoder() = default;
  explicit Decoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace pagoda
