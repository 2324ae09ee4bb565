// tokenizer.json, the format of Hugging Face tokenizers, read strictly: a component, a field or a
// value that is not known is refused by its name, because it would change ids. The known components
// are
//   normalizer      NFC, Prepend, Replace, Sequence
//   pre_tokenizer   Split, Digits, ByteLevel (last), Metaspace (first), Sequence
//   model           BPE, without dropout, continuing_subword_prefix and end_of_word_suffix
//   post_processor  TemplateProcessing, ByteLevel, Sequence
//   decoder         ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence
// Steps and the texts that they insert are bounded, far above those of real tokenizers: kMaxSteps
// in a component, kMaxContentBytes each. "truncation" and "padding" are passed over: they say how
// an earlier run batched its texts.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/json_type.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace pagoda {

inline constexpr size_t kMaxSteps = 32;
inline constexpr size_t kMaxContentBytes = 64;

struct TokenizerSpec {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  PrefixStep prefix;              // pre_tokenizer
  std::vector<SplitStep> splits;  // pre_tokenizer
  bool byte_level = false;        // pre_tokenizer
  BpeSpec model;
  std::vector<uint32_t> before_text;  // post_processor: ids put before a text
  std::vector<DecoderStep> decoder;
};

// kBadData with a message begun by `where`, the file's path.
Result<TokenizerSpec> read_tokenizer_json(const Json& root, const std::string& where);

}  // namespace pagoda
