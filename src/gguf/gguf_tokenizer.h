// A folder's tokenizer and chat template as entries of a GGUF file (tokenizer.ggml.*).
#pragma once

#include <string>

#include "base/status.h"
#include "gguf/gguf_file.h"

namespace pagoda {

// Byte-level BPE is llama.cpp's "gpt2", whose words are cut as one of the ways that it knows by
// name; BPE over SentencePiece's spaces is its "llama", where a token's score is its rank among
// merges. Ids without a token, up to vocab_size, are unused ones. kNoInput, kBadData for a file
// that is malformed, and for words that are cut in a way that has no name there.
Status add_tokenizer_entries(const std::string& directory, int64_t vocab_size,
                             GgufEntries& entries);

}  // namespace pagoda
