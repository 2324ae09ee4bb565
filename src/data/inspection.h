// Shows a person what training data becomes: which tokens are trained, how long examples are, which
// will be cut and which are there twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/example.h"
#include "model/json_type.h"

namespace pagoda {

// Counts examples and keeps the first few; memory is 24 bytes an example. A document in
// pieces is one example.
class Inspection : public ExampleSink {
 public:
  struct File {
    std::string path;
    RowKind kind = RowKind::kAuto;
    int64_t examples = 0, tokens = 0;
    int64_t trained_tokens = 0;  // tokens with a weight above 0 that something predicts
    // The treatment of examples in training (data/dataset.h).
    int64_t untrained = 0;       // left out: no trained token in the kept part
    int64_t longer = 0;          // examples of more than sequence_len tokens
    int64_t cut = 0;             // of `longer`: texts, cut into several rows
    int64_t too_long = 0;        // of `longer`: the others that are not left out
    int64_t longest = 0;         // tokens
    int64_t unended = 0;         // trained messages that end in no special token (data/example.h)
  };
  struct Shown {
    size_t file = 0;
    int64_t number = 0;     // number of the example in its file, from 1
    Example example;        // its first tokens
    int64_t tokens = 0;     // all of them
  };
  struct Bucket {
    int64_t from = 0, to = 0;  // tokens, both inclusive; powers of two
    int64_t examples = 0;
  };
  struct Duplicates {
    int64_t examples = 0;         // examples with the tokens of an earlier one
    std::string first, original;  // "b.jsonl example 3" and the earlier one; empty: none
  };

  Inspection(int64_t sequence_len, TooLong too_long, int64_t examples_to_show)
      : sequence_len_(sequence_len), too_long_(too_long), to_show_(examples_to_show) {}

  void file(const std::string& path, RowKind kind) override;
  Status example(Example&& example) override;

  int64_t sequence_len() const { return sequence_len_; }
  TooLong too_long() const { return too_long_; }
  const std::vector<File>& files() const { return files_; }
  const std::vector<Shown>& shown() const { return shown_; }
  File total() const;
  // The least length that `percent` of the examples do not exceed (nearest rank). REQUIRES: some.
  int64_t percentile(int percent) const;
  std::vector<Bucket> histogram() const;  // without the empty ones at its ends
  Duplicates duplicates() const;

 private:
  struct Key {
    uint64_t hash;
    int64_t tokens;
    uint32_t file;
    uint32_t number;
    auto operator<=>(const Key&) const = default;
  };
  void keep(const Example& example);
  void count(const Example& example);
  void end_example();

  const int64_t sequence_len_;
  const TooLong too_long_;
  const int64_t to_show_;
  std::vector<File> files_;
  std::vector<Shown> shown_;
  std::vector<Key> keys_;
  // State of the example that has not ended yet.
  uint64_t hash_ = 0;
  int64_t tokens_ = 0, trained_ = 0;
  int64_t trained_in_row_ = 0;  // trained tokens among its first sequence_len
  bool is_text_ = false;
};

// An example's text. Trained tokens are green and masked ones dim, or trained ones in ⟦brackets⟧;
// a weight other than 1 stands behind. Control characters and what is no UTF-8 are escaped.
std::string marked_text(const Example& example, const Tokenizer& tokenizer, bool colour);

// The whole report. `about` is a line on the template.
std::string inspection_text(const Inspection& inspection, const Tokenizer& tokenizer,
                            const std::string& about, bool colour);
Json inspection_json(const Inspection& inspection, const Tokenizer& tokenizer,
                     const ExampleOptions& options);

// "chat template: qwen2.5; its end token <|im_end|> is token 151645".
// kBadData when the tokenizer gives up on the end token.
Result<std::string> template_line(const ExampleOptions& options, const Tokenizer& tokenizer);

}  // namespace pagoda
