#include "data/tokenizer.h"

#include "base/file.h"
#include "base/log.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 27;
constexpr const char* kEndOfText = "<|endoftext|>";

// The printable character, as UTF-8, that byte-level vocabularies (Radford et al. 2019, GPT-2 code)
// use for a byte: itself where Latin-1 prints it, else the next code point from 256 on.
std::string byte_character(int byte) {
  const auto prints = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!prints(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !prints(b);
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

Json byte_vocabulary() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(byte)] = byte;
  return vocabulary;
}

// A member of an object by path, or null.
const Json& at(const Json& root, std::initializer_list<const char*> path) {
  static const Json kNull;
  const Json* value = &root;
  for (const char* key : path) {
    const auto found = value->find(key);
    if (found == value->end()) return kNull;
    value = &*found;
  }
  return *value;
}

bool is_byte_level(const Json& part) { return at(part, {"type"}) == "ByteLevel"; }

// Why `root` is not the byte tokenizer, or "".
std::string difference(const Json& root) {
  const Json& type = at(root, {"model", "type"});
  if (type != "BPE") return "its model is " + type.dump(-1, ' ', true);
  const Json& vocabulary = at(root, {"model", "vocab"});
  const Json& merges = at(root, {"model", "merges"});
  if (vocabulary.size() != 256 || !merges.empty()) {
    return strf("its model is BPE with %zu tokens and %zu merges", vocabulary.size(),
                merges.size());
  }
  if (vocabulary != byte_vocabulary()) return "its 256 ids are not the bytes in order";
  const Json& pre = at(root, {"pre_tokenizer"});
  if (!at(root, {"normalizer"}).is_null()) return "it has a normalizer";
  if (!is_byte_level(pre) || at(pre, {"add_prefix_space"}) != false) {
    return "its pre-tokenizer is not plain ByteLevel";
  }
  const Json& post = at(root, {"post_processor"});
  if (!post.is_null() && !is_byte_level(post)) return "it has a post-processor";
  const Json& added = at(root, {"added_tokens"});
  if (!added.is_array() || added.empty() || at(added[0], {"content"}) != kEndOfText) {
    return "its first added token is not <|endoftext|>";
  }
  for (size_t i = 0; i < added.size(); ++i) {
    if (at(added[i], {"id"}) != 256 + i || !at(added[i], {"content"}).is_string()) {
      return "its added tokens are not numbered from 256";
    }
  }
  return "";
}

}  // namespace

std::string byte_tokenizer_json() {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  const Json end_of_text = {{"id", 256},       {"content", kEndOfText}, {"single_word", false},
                            {"lstrip", false}, {"rstrip", false},       {"normalized", false},
                            {"special", true}};
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array({end_of_text})},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", byte_vocabulary()},
                       {"merges", Json::array()}}}};
  return root.dump(2) + "\n";
}

std::string byte_tokenizer_config_json() {
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", kEndOfText},
                       {"clean_up_tokenization_spaces", false}};
  return config.dump(2) + "\n";
}

Result<Tokenizer> Tokenizer::open(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text,
                   read_text_file(path, Links::kRefuse, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(
      const Json root,
      parse_json(text, path, {.max_bytes = kMaxTokenizerBytes, .max_values = 20000000}));
  const std::string why = difference(root);
  if (why.empty()) {
    Tokenizer tokenizer;
    for (const Json& added : root["added_tokens"]) {
      tokenizer.added_.push_back(added["content"].get<std::string>());
    }
    return tokenizer;
  }
  return Status(Exit::kBadData,
                strf("%s: only the byte tokenizer is implemented, and %s; train a model that "
                     "`pagoda init` made without --tokenizer",
                     printable(path).c_str(), printable(why).c_str()));
}

std::string Tokenizer::identity() const {
  std::string name = "byte tokenizer";
  for (const std::string& token : added_) name += ", " + token;
  return name;
}

void Tokenizer::encode(std::string_view text, std::vector<uint32_t>* ids,
                       std::vector<TokenRange>* ranges) const {
  ids->reserve(ids->size() + text.size());
  for (size_t at = 0; at < text.size();) {
    uint32_t id = static_cast<unsigned char>(text[at]);
    size_t bytes = 1;
    for (size_t i = 0; i < added_.size(); ++i) {
      if (!text.substr(at).starts_with(added_[i])) continue;
      id = static_cast<uint32_t>(256 + i);
      bytes = added_[i].size();
    }
    ids->push_back(id);
    if (ranges != nullptr) {
      ranges->push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + bytes)});
    }
    at += bytes;
  }
}

std::optional<uint32_t> Tokenizer::find(std::string_view token) const {
  for (size_t i = 0; i < added_.size(); ++i) {
    if (added_[i] == token) return static_cast<uint32_t>(256 + i);
  }
  if (token.size() != 1) return std::nullopt;
  return static_cast<unsigned char>(token[0]);
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  std::string text;
  for (const uint32_t id : ids) {
    if (id < 256) {
      text += static_cast<char>(id);
    } else if (!skip_special) {
      text += added_[id - 256];
    }
  }
  return text;
}

}  // namespace pagoda
