#include "data/example.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/log.h"
#include "data/json_rows.h"
#include "data/template_chat.h"
#include "data/text_source.h"
#include "data/token_row.h"
#include "model/json.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/text_pieces.h"

namespace pagoda {

namespace {

// Changes with anything that makes other examples of the same rows.
constexpr int kRulesVersion = 2;
// Its tokens, ranges and weights take up to sixteen bytes a byte.
constexpr size_t kMaxConversationBytes = 16000000;
constexpr const char* kTextRemedy = "cut that text or leave it out, or use another tokenizer.json";

// Makes examples of one file.
class FileReader {
 public:
  // `rows_before`: of the files before it.
  FileReader(const std::string& path, int64_t rows_before, const Tokenizer& tokenizer,
             const ExampleOptions& options, ExampleSink& sink)
      : path_(path),
        rows_before_(rows_before),
        tokenizer_(tokenizer),
        options_(options),
        sink_(sink),
        template_options_{options.fields, options.train_on, tokenizer.special_tokens()},
        kind_(options.kind) {}

  Status read() {
    ASSIGN_OR_RETURN(const TextFormat format, text_format(path_));
    if (format == TextFormat::kPlain) {
      kind_ = RowKind::kText;
      RETURN_IF_ERROR(count_row(path_));
      sink_.file(path_, kind_);
      const std::unique_ptr<TextPieces> pieces = begin_document();
      RETURN_IF_ERROR(
          read_blocks(path_, [&](std::string_view block) { return pieces->add(block); }));
      RETURN_IF_ERROR(pieces->finish());
      return check_masks();
    }
    RETURN_IF_ERROR(read_json_rows(path_, [&](const RowPlace& place, const Json& json) {
      return row(place, json);
    }));
    return check_masks();
  }

  int64_t num_rows() const { return num_rows_; }

 private:
  Status count_row(const std::string& place) {
    return check_row_count(rows_before_ + ++num_rows_, options_.most_rows, place);
  }

  Status row(const RowPlace& place, const Json& json) {
    RETURN_IF_ERROR(check_kind(place, json));
    if (kind_ == RowKind::kTokens) return token_row(place, json);
    auto parsed = parse_row(json, kind_, options_.fields, options_.chat.program.has_value());
    if (!parsed.ok()) return place.bad(parsed.status().message());
    if (num_rows_ == 0) sink_.file(path_, kind_);
    RETURN_IF_ERROR(count_row(place.text()));
    if (kind_ != RowKind::kText) return conversation(place, *parsed);
    const std::unique_ptr<TextPieces> pieces = begin_document();
    RETURN_IF_ERROR(pieces->add(parsed->text));
    return pieces->finish();
  }

  Status token_row(const RowPlace& place, const Json& json) {
    auto parsed = parse_token_row(json, options_.fields, tokenizer_.vocab_size());
    if (!parsed.ok()) return place.bad(parsed.status().message());
    if (num_rows_ == 0) sink_.file(path_, kind_);
    RETURN_IF_ERROR(count_row(place.text()));
    Example example;
    example.tokens = std::move(parsed->tokens);
    example.weights = std::move(parsed->weights);
    example.is_text = parsed->is_text;
    return emit(std::move(example));
  }

  Status check_kind(const RowPlace& place, const Json& json) {
    if (options_.kind != RowKind::kAuto) return Status();  // parse_row says what is missing
    const RowKind kind = json.is_object() ? kind_of(json, options_.fields) : RowKind::kAuto;
    if (kind == kind_ && kind != RowKind::kAuto) return Status();
    if (kind == RowKind::kAuto) return place.bad(no_kind(json));
    if (num_rows_ > 0) {
      return place.bad(strf("a row of kind %s in a file whose first row is of kind %s",
                            name_of(kind), name_of(kind_)));
    }
    kind_ = kind;
    return Status();
  }

  static std::string no_kind(const Json& json) {
    if (!json.is_object()) return "the row is not an object";
    std::string names;
    for (const auto& [name, value] : json.items()) names += (names.empty() ? "" : ", ") + name;
    return "no kind of row has these fields: " + printable(names) +
           "; known are text, messages, conversations, prompt and completion, instruction and "
           "output, question and answer, input_ids; --data.fields maps other names";
  }

  // Makes examples of the document given to it.
  std::unique_ptr<TextPieces> begin_document() {
    document_begins_ = true;
    return std::make_unique<TextPieces>(path_, [this](std::string_view piece, bool last) {
      return document_piece(piece, last);
    });
  }

  Status document_piece(std::string_view piece, bool last) {
    Example example;
    const std::optional<uint32_t> begin = tokenizer_.begin_of_text();
    if (document_begins_ && begin.has_value()) example.tokens.push_back(*begin);
    const int64_t unpredicted = document_begins_ ? 1 : 0;
    document_begins_ = false;
    if (const Status status = tokenizer_.encode(piece, &example.tokens); !status.ok()) {
      return Status(status.code(), printable(path_) + ": " + status.message() +
                                       "; nothing was trained, " + kTextRemedy);
    }
    if (last) example.tokens.push_back(tokenizer_.end_of_text());
    example.weights.assign(example.tokens.size(), 1.0f);
    example.continues = !last;
    example.is_text = true;
    // An empty text is not counted: only its end could be trained, which teaches nothing.
    if (!piece.empty()) num_trained_ += static_cast<int64_t>(example.tokens.size()) - unpredicted;
    return sink_.example(std::move(example));
  }

  Status conversation(const RowPlace& place, const Row& row) {
    const auto trained = [](const Turn& turn) {
      return (turn.role == Role::kAssistant && !turn.given) || turn.train.value_or(false);
    };
    if (std::none_of(row.turns.begin(), row.turns.end(), trained)) {
      return place.bad("the conversation has no assistant message, so there is nothing to train");
    }
    const ChatTemplate& chat = options_.chat;
    if (chat.program) return run_template(place, row);
    const bool plain = chat.preset == nullptr && !chat.unknown && row.separator != nullptr;
    if (chat.preset == nullptr && !plain) {
      return place.bad((chat.unknown ? "" : "needs a chat template, and ") + chat.missing,
                       template_hint().c_str());
    }
    Example example;
    auto rendered = plain ? join(row) : chat.preset->render(row.turns, chat.special);
    if (!rendered.ok()) return place.bad(rendered.status().message());
    if (rendered->text.size() > kMaxConversationBytes) {
      return place.bad(strf("the conversation is longer than %zu bytes", kMaxConversationBytes));
    }
    const std::vector<TrainedSpan> spans = trained_spans(row.turns, *rendered, options_.train_on);
    RETURN_IF_ERROR(encode(place, rendered->text, spans, &example));
    if (plain) add_ends(row.turns.back(), &example);
    return emit(std::move(example));
  }

  Status run_template(const RowPlace& place, const Row& row) {
    Status emitted;
    const Status rendered = render_rows(options_.chat, row, place.source, template_options_,
                                        [&](const TemplateRow& made) {
                                          Example example;
                                          example.unended = made.unended;
                                          emitted = encode(place, made.text, made.spans, &example);
                                          if (emitted.ok()) emitted = emit(std::move(example));
                                          return emitted;
                                        });
    if (!emitted.ok() || rendered.ok()) return emitted;
    return place.bad(rendered.message(),
                     "repair the file or the template, or name a preset that fits");
  }

  // The contents behind each other; end-of-text follows as a token.
  static Result<RenderedChat> join(const Row& row) {
    RenderedChat chat;
    for (const Turn& turn : row.turns) {
      if (!chat.turns.empty()) chat.text += row.separator;
      if (!chat.turns.empty()) chat.turns.back().end = chat.text.size();
      const size_t begin = chat.text.size();
      chat.text += turn.content;
      chat.turns.push_back({begin, begin, chat.text.size(), chat.text.size()});
    }
    return chat;
  }

  Status encode(const RowPlace& place, const std::string& text,
                const std::vector<TrainedSpan>& spans, Example* example) const {
    std::vector<TokenRange> ranges;
    const Status encoded = tokenizer_.encode(text, &example->tokens, &ranges);
    if (!encoded.ok()) return place.bad(encoded.message(), kTextRemedy);
    example->weights = token_weights(ranges, spans);
    return Status();
  }

  // What stands around prompt and answer where there is no template.
  void add_ends(const Turn& answer, Example* example) const {
    if (const std::optional<uint32_t> begin = tokenizer_.begin_of_text(); begin.has_value()) {
      example->tokens.insert(example->tokens.begin(), *begin);
      example->weights.insert(example->weights.begin(), 0.0f);
    }
    // The end of an answer counts as much as the answer.
    example->tokens.push_back(tokenizer_.end_of_text());
    example->weights.push_back(answer.train.value_or(true) ? answer.weight : 0.0f);
  }

  Status emit(Example&& example) {
    const auto masked = std::count(example.weights.begin() + 1, example.weights.end(), 0.0f);
    num_masked_ += masked;
    num_trained_ += static_cast<int64_t>(example.weights.size()) - 1 - masked;
    return sink_.example(std::move(example));
  }

  // Masks that leave nothing, or nothing out, are a mistake in the data or in the options.
  Status check_masks() const {
    const auto refuse = [&](const std::string& why) {
      return Status(Exit::kBadData, printable(path_) + ": " + why + "; nothing was trained");
    };
    if (num_rows_ == 0) return refuse("has no rows");
    const bool text = kind_ == RowKind::kText;
    if (num_trained_ == 0) {
      if (text) return refuse("every text in it is empty, leave the file out");
      return refuse(
          strf("no token of its %lld rows is trained: every answer is marked \"train\": "
               "false or has weight 0, or every label is -100",
               (long long)num_rows_));
    }
    if (text || kind_ == RowKind::kTokens || num_masked_ > 0 || options_.train_on == TrainOn::kAll)
      return Status();
    return refuse(strf("every token of its %lld rows is trained, though they are of kind %s: the "
                       "prompts are empty; write them as {\"text\": ...}, or say --data.train_on "
                       "all if that is meant",
                       (long long)num_rows_, name_of(kind_)));
  }

  const std::string& path_;
  const int64_t rows_before_;
  const Tokenizer& tokenizer_;
  const ExampleOptions& options_;
  ExampleSink& sink_;
  const TemplateOptions template_options_;
  RowKind kind_;
  bool document_begins_ = true;
  int64_t num_rows_ = 0;
  int64_t num_trained_ = 0, num_masked_ = 0;  // tokens that something predicts
};

}  // namespace

int64_t rows_in_memory(int64_t machine_bytes) { return machine_bytes / 8 / kRowBytes; }

Status check_row_count(int64_t number, int64_t most_rows, const std::string& place) {
  if (number <= most_rows) return Status();
  return Status(Exit::kHostMemory,
                strf("%s: row %lld of the data; this machine has room for %lld, as each takes up "
                     "to %lld bytes of an eighth of its memory; nothing was trained: join short "
                     "rows, name fewer of them in data.path, or use a machine with more memory",
                     printable(place).c_str(), (long long)number, (long long)most_rows,
                     (long long)kRowBytes));
}

std::string ExampleOptions::cache_key() const {
  std::string key = strf("rules %d; kind %s; train on %s; template %s; begin \"%s\"; end \"%s\"",
                         kRulesVersion, name_of(kind), name_of(train_on),
                         chat.preset != nullptr ? chat.preset->name : "none",
                         chat.special.begin_of_text.c_str(), chat.special.end_of_text.c_str());
  if (chat.program) {
    Fingerprint source;
    source.add(chat.source.data(), static_cast<int64_t>(chat.source.size()));
    key += "; run " + source.hex();
    key += "; padding \"" + chat.special.padding + "\"; unknown \"" + chat.special.unknown + "\"";
    if (chat.asks_date()) key += "; date " + chat.today.text();
  }
  return key + fields.key();
}

Status read_examples(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                     const ExampleOptions& options, ExampleSink& sink) {
  int64_t rows = 0;
  for (const std::string& path : paths) {
    FileReader reader(path, rows, tokenizer, options, sink);
    RETURN_IF_ERROR(reader.read());
    rows += reader.num_rows();
  }
  return Status();
}

}  // namespace pagoda
