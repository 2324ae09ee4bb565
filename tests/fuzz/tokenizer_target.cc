#include "model/json.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

constexpr std::string_view kText =
    "The 3 quick\tbrown\u00a0foxes' caf\u00e9 \u4f60\u597d <|endoftext|>\r\n  \xff\xfe 12345";

// A model of bytes and a few merges, as SentencePiece makes them.
Json byte_fallback() {
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    vocabulary[name] = 3 + byte;
  }
  int64_t id = 259;
  for (const char* token : {"\u2581", "t", "h", "e", "th", "the", "\u2581the"}) {
    vocabulary[token] = id++;
  }
  Json added = Json::parse(byte_tokenizer_json())["added_tokens"][0];
  added["id"] = 2;
  added["content"] = "</s>";
  return {{"version", "1.0"},
          {"added_tokens", {added}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", "<unk>"},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocabulary},
            {"merges", {"t h", "th e", "\u2581 the"}}}}};
}

}  // namespace

void fuzz_tokenizer(std::string_view input) {
  static const TempDir dir;
  static const std::string path = dir.file("tokenizer.json");
  put_file(path, std::string(input));
  auto tokenizer = Tokenizer::open(dir.path());
  if (!tokenizer.ok()) return;
  std::vector<uint32_t> ids;
  std::vector<TokenRange> ranges;
  if (!tokenizer->encode(kText, &ids, &ranges).ok()) return;
  CHECK(ids.size() == ranges.size());
  for (const uint32_t id : ids) CHECK(id < tokenizer->vocab_size(), "id %u", id);
  tokenizer->decode(ids, false);
}

std::vector<std::string> tokenizer_seeds() {
  Json split = Json::parse(byte_tokenizer_json());
  split["normalizer"] = {{"type", "NFC"}};
  split["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "'s|\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}]+|\\s+(?!\\S)|\\s+"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "Digits"}, {"individual_digits", true}},
        split["pre_tokenizer"]}}};
  return {byte_tokenizer_json(), split.dump(), byte_fallback().dump()};
}

}  // namespace pagoda
