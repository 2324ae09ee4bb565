// Examples: what training data becomes. Every document is a list of tokens, each with the weight
// that the loss of predicting it has. Packing and the token cache are in front of this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/tokenizer.h"

namespace pagoda {

struct Example {
  std::vector<uint32_t> tokens;  // (n), n > 0
  std::vector<float> weights;    // (n), loss weight of predicting tokens[i]; 0: masked
  bool continues = false;        // the next example goes on with the same document
};
// weights[0] counts only where the example before has `continues`: nothing predicts it otherwise.

// All that changes tokens or weights, besides the data and the tokenizer.
struct ExampleOptions {
  // Equal keys, equal examples for the same data and tokenizer.
  std::string cache_key() const { return "text"; }
};

// Receives the examples in the order of files and rows. The first error ends the reading.
class ExampleSink {
 public:
  virtual ~ExampleSink() = default;
  virtual Status example(Example&& example) = 0;
};

// Reads all files as data/text_source.h does; every weight is 1, end-of-text is behind each
// document. Memory: some blocks.
Status read_examples(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                     const ExampleOptions& options, ExampleSink& sink);

}  // namespace pagoda
