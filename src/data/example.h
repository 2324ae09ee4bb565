// Training data becomes examples. Every document and every conversation is a list of tokens, each
// with the weight of the loss of predicting it. Rows, templates and masks are below this; packing
// and the token cache are above it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/chat_template.h"
#include "data/loss_mask.h"
#include "data/row.h"
#include "hardware/machine.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {

struct Example {
  std::vector<uint32_t> tokens;  // (n), n > 0
  // (n), loss weight of predicting tokens[i]; 0: masked. Nothing predicts the first token of a
  // document, so weights[0] counts only where the example before has `continues`.
  std::vector<float> weights;
  bool continues = false;  // the next example goes on with the same document
  // It is a text: every weight is 1, and its parts may be trained without each other.
  bool is_text = false;
  // Its trained messages that end in no special token, where a template that is run wrote them.
  int64_t unended = 0;
};

// The most memory that even a short row of data takes beside its tokens: its places in the index of
// the token cache while that grows, or its length, its piece and a row of its own while they are
// packed.
inline constexpr int64_t kRowBytes = 48;
// The rows that fit into an eighth of a machine's memory: by default budgets are 70 % of it, and
// rows are packed while other things need memory too.
int64_t rows_in_memory(int64_t machine_bytes);
// kHostMemory if a row with this number, from 1, is above the limit. `place` names the row.
Status check_row_count(int64_t number, int64_t most_rows, const std::string& place);

// All that changes tokens or weights, besides the data and the tokenizer.
struct ExampleOptions {
  RowKind kind = RowKind::kAuto;
  RowFields fields;
  TrainOn train_on = TrainOn::kAssistant;
  ChatTemplate chat;  // the checkpoint's template, or a forced one
  // The most rows and texts in all, so that they leave the memory that a run needs beside its
  // budgets.
  int64_t most_rows = rows_in_memory(machine_memory().usable_bytes());

  // Equal keys, equal examples for the same data and tokenizer.
  std::string cache_key() const;
};

// Receives the examples in the order of files and rows. The first error ends the reading.
class ExampleSink {
 public:
  virtual ~ExampleSink() = default;
  // The examples from here on come from `path`, whose rows are of this kind.
  virtual void file(const std::string& /*path*/, RowKind /*kind*/) {}
  virtual Status example(Example&& example) = 0;
};

// Reads all files (names and kinds: data/text_source.h).
//   text                   pieces of about a MiB, all but the last with `continues`; the first
//                          begins with begin-of-text where the tokenizer has one, the last ends
//                          with end-of-text; every weight is 1
//   conversation           rendered as data/chat_preset.h or data/template_chat.h says and encoded
//                          as one text; a token has the weight of the trained span it overlaps;
//                          where a template rewrites earlier messages, one for each trained message
//   prompt and answer      a conversation of user and assistant where there is a chat template;
//                          else the two behind each other and end-of-text, the prompt masked
//   tokens                 as they are: nothing is added at their ends
// kBadData naming file and line (or row, in an array): not UTF-8, not JSON, a row of another kind
// than the file's first, a conversation the template cannot render or none where one is needed, no
// assistant turn (and none marked "train": true). Also a file without rows, one none of whose
// tokens is trained (texts: all are empty), and one of conversations all of whose tokens are
// (unless TrainOn::kAll asks for that): its masks would do nothing. kHostMemory at the first row
// above options.most_rows. Memory: a row and what becomes of it.
Status read_examples(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                     const ExampleOptions& options, ExampleSink& sink);

}  // namespace pagoda
