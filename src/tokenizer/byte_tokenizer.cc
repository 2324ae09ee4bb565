// The tokenizer that `pagoda init` writes: 256 bytes and an end of text.
#include "model/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

Json byte_vocabulary() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[byte_character(static_cast<uint8_t>(byte))] = byte;
  return vocabulary;
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

}  // namespace pagoda
