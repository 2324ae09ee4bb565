#include "data/example.h"

#include <algorithm>

#include "data/text_source.h"

namespace pagoda {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 18;

class Encoder : public DocumentSink {
 public:
  Encoder(const Tokenizer& tokenizer, ExampleSink& sink) : tokenizer_(tokenizer), sink_(sink) {}

  Status text(std::string_view piece) override {
    // A long line is taken a part at a time: as tokens it is four times as large.
    for (; !piece.empty(); piece.remove_prefix(std::min(kPieceBytes, piece.size()))) {
      Example example;
      tokenizer_.encode(piece.substr(0, kPieceBytes), &example.tokens);
      RETURN_IF_ERROR(send(std::move(example), true));
    }
    return Status();
  }
  Status end_document() override {
    return send(Example{{tokenizer_.end_of_text()}, {}, false}, false);
  }

 private:
  Status send(Example&& example, bool continues) {
    example.weights.assign(example.tokens.size(), 1.0f);
    example.continues = continues;
    return sink_.example(std::move(example));
  }

  const Tokenizer& tokenizer_;
  ExampleSink& sink_;
};

}  // namespace

Status read_examples(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                     const ExampleOptions&, ExampleSink& sink) {
  Encoder encoder(tokenizer, sink);
  for (const std::string& path : paths) RETURN_IF_ERROR(read_documents(path, encoder));
  return Status();
}

}  // namespace pagoda
