#include "gguf/gguf_tokenizer.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/log.h"
#include "model/json.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace pagoda {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 28;

// Kinds of tokens: llama.cpp's.
enum Kind : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kOwn = 4, kUnused = 5, kByte = 6 };

Result<Json> json_in(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kFollow, kMostBytes));
  return parse_json(text, path);
}

// The steps of a pre-tokenizer, one behind the other, each as a text.
std::string steps_of(const Json& json) {
  if (!json.is_object()) return "";
  const std::string type = json.value("type", "");
  if (type == "Sequence") {
    std::string steps;
    for (const Json& step : json.value("pretokenizers", Json::array())) steps += steps_of(step);
    return steps;
  }
  if (type == "Split") {
    const Json pattern = json.value("pattern", Json::object());
    return "[split " + pattern.value("Regex", pattern.value("String", "")) + "]";
  }
  if (type == "Digits") {
    return json.value("individual_digits", false) ? "[each digit]" : "[digits]";
  }
  if (type == "ByteLevel") return json.value("use_regex", true) ? "[gpt-2]" : "";
  return "[" + type + "]";
}

struct Words {
  const char* name;   // llama.cpp's tokenizer.ggml.pre
  const char* steps;  // steps_of() it
  // Whether a word that is in the vocabulary is one token whatever the merges say.
  bool whole_words = false;
};

constexpr Words kWords[] = {
    {"gpt-2", "[gpt-2]"},
    {"smollm", "[each digit][gpt-2]"},
    {"qwen2", R"([split (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
              R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+])"},
    {"llama-bpe",
     R"([split (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+])",
     true},
    {"glm4", R"([split (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+])"},
    {"gpt-4o",
     R"([split [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
     R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+])"},
};

// Tokens by their ids, with what llama.cpp wants to know of each.
struct Tokens {
  std::vector<std::string> texts;
  std::vector<int32_t> kinds;
  std::vector<float> scores;
};

bool is_byte(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
}

Result<Tokens> tokens_of(const TokenizerSpec& spec, int64_t vocab_size, const std::string& where) {
  Tokens tokens;
  for (int64_t id = 0; id < vocab_size; ++id) {
    tokens.texts.push_back(strf("[PAD%lld]", (long long)id));
  }
  tokens.kinds.assign(tokens.texts.size(), kUnused);
  tokens.scores.assign(tokens.texts.size(), 0.0f);
  const auto put = [&](uint32_t id, const std::string& text, Kind kind) {
    if (id >= tokens.texts.size()) return false;
    tokens.texts[id] = text;
    tokens.kinds[id] = kind;
    return true;
  };
  std::map<std::string, uint32_t> ids;
  bool fit = true;
  for (const auto& [text, id] : spec.model.vocab) {
    const bool unknown = spec.model.unk_token == text;
    const bool byte = spec.model.byte_fallback && is_byte(text);
    fit = put(id, text, unknown ? kUnknown : byte ? kByte : kNormal) && fit;
    ids[text] = id;
  }
  for (const AddedToken& added : spec.added_tokens) {
    const bool unknown = spec.model.unk_token == added.content;
    fit = put(added.id, added.content, unknown ? kUnknown : added.special ? kControl : kOwn) && fit;
  }
  if (!fit) {
    return Status(Exit::kBadData,
                  printable(where) + ": has ids that the model has not; use its own tokenizer");
  }
  // SentencePiece merges what has the highest score, so that of a merge falls with its rank.
  for (size_t rank = spec.model.merges.size(); rank-- > 0;) {
    const auto found = ids.find(spec.model.merges[rank].first + spec.model.merges[rank].second);
    if (found != ids.end()) tokens.scores[found->second] = -static_cast<float>(rank + 1);
  }
  return tokens;
}

// The id of the token that a tokenizer_config.json names, as a text or as an object with one.
std::optional<uint32_t> named_token(const Json& config, const char* name,
                                    const Tokenizer& tokenizer) {
  Json token = config.is_object() ? config.value(name, Json()) : Json();
  if (token.is_object()) token = token.value("content", Json());
  return token.is_string() ? tokenizer.find(token.get<std::string>()) : std::nullopt;
}

// The template that other programs would find; "": none.
std::string template_text(const std::string& directory, const Json& config) {
  const auto file = read_text_file(directory + "/chat_template.jinja", Links::kFollow, kMostBytes);
  if (file.ok()) return file.value();
  const Json text = config.is_object() ? config.value("chat_template", Json()) : Json();
  return text.is_string() ? text.get<std::string>() : "";
}

Status add_bpe(const Json& root, const BpeSpec& bpe, const std::string& where,
               GgufEntries& entries) {
  // Where nothing is merged it does not matter how words are cut.
  const bool merges = !bpe.merges.empty();
  const std::string steps = merges ? steps_of(root.value("pre_tokenizer", Json())) : "[gpt-2]";
  const auto known = std::find_if(std::begin(kWords), std::end(kWords), [&](const Words& words) {
    return steps == words.steps && (!merges || bpe.ignore_merges == words.whole_words);
  });
  if (known == std::end(kWords)) {
    return Status(Exit::kBadData, printable(where) +
                                      ": cuts words in a way that has no name here in llama.cpp; "
                                      "export a Hugging Face folder, which its converter reads");
  }
  entries.add("tokenizer.ggml.model", "gpt2");
  entries.add("tokenizer.ggml.pre", known->name);
  return Status();
}

// Whether a text gets a space in front that it does not have, as SentencePiece's do: then a letter
// is not the token of that letter.
Result<bool> puts_space_before(const Tokenizer& tokenizer) {
  const std::string letter = "a";
  const std::optional<uint32_t> token = tokenizer.find(letter);
  std::vector<uint32_t> ids;
  RETURN_IF_ERROR(tokenizer.encode(letter, &ids));
  return !token || ids != std::vector<uint32_t>{*token};
}

}  // namespace

Status add_tokenizer_entries(const std::string& directory, int64_t vocab_size,
                             GgufEntries& entries) {
  const std::string where = directory + "/tokenizer.json";
  ASSIGN_OR_RETURN(const Json root, json_in(where));
  ASSIGN_OR_RETURN(const TokenizerSpec spec, read_tokenizer_json(root, where));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::open(directory));
  const auto config = json_in(directory + "/tokenizer_config.json");
  const Json settings = config.ok() ? config.value() : Json();
  ASSIGN_OR_RETURN(const Tokens tokens, tokens_of(spec, vocab_size, where));
  if (spec.byte_level) {
    RETURN_IF_ERROR(add_bpe(root, spec.model, where, entries));
  } else {
    entries.add("tokenizer.ggml.model", "llama");
    entries.add("tokenizer.ggml.pre", "default");
    ASSIGN_OR_RETURN(const bool prefixes, puts_space_before(tokenizer));
    entries.add("tokenizer.ggml.add_space_prefix", prefixes);
  }
  entries.add("tokenizer.ggml.tokens", tokens.texts);
  if (!spec.byte_level) entries.add("tokenizer.ggml.scores", tokens.scores);
  entries.add("tokenizer.ggml.token_type", tokens.kinds);
  if (spec.byte_level) {
    std::vector<std::string> merges;
    for (const auto& [left, right] : spec.model.merges) merges.push_back(left + " " + right);
    entries.add("tokenizer.ggml.merges", merges);
  }
  const auto add_id = [&](const char* key, std::optional<uint32_t> id) {
    if (id) entries.add(std::string("tokenizer.ggml.") + key, *id);
  };
  const std::optional<uint32_t> begin = tokenizer.begin_of_text();
  add_id("bos_token_id", begin ? begin : named_token(settings, "bos_token", tokenizer));
  add_id("eos_token_id", tokenizer.end_of_text());
  add_id("padding_token_id", named_token(settings, "pad_token", tokenizer));
  entries.add("tokenizer.ggml.add_bos_token", begin.has_value());
  const std::string chat = template_text(directory, settings);
  if (!chat.empty()) entries.add("tokenizer.chat_template", chat);
  return Status();
}

}  // namespace pagoda
