// Byte pair encoding (Sennrich et al. 2016) of one word, with the rules of Hugging Face tokenizers
// (tokenizers/src/models/bpe): the adjacent pair with the lowest rank merges first, the leftmost
// among equals. O(n log n) in the word's length.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/merge_table.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/word_cache.h"

namespace pagoda {

// The "model" of a tokenizer.json.
struct BpeSpec {
  std::vector<std::pair<std::string, uint32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::optional<std::string> unk_token;  // stands for a character that is not in the vocabulary
  bool fuse_unk = false;                 // one unk_token for a run of such characters
  bool byte_fallback = false;            // their bytes become the tokens <0x00>..<0xFF> instead
  bool ignore_merges = false;            // a word that is in the vocabulary is one token
};

// Working memory of encoding. One thread at a time.
struct BpeMemory {
  struct Symbol {
    uint32_t id;
    uint32_t begin, end;       // in the word
    uint32_t previous, next;   // index of the neighbour, or kNone
    uint32_t rank;             // of the merge with the next, or kNone; kGone: merged away
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;  // heap of rank << 32 | index
  WordCache cache;
};

// Immutable after create; movable. Encoding runs on any number of threads, each with its memory.
class Bpe {
 public:
  // kBadData: a merge of or into a token that is not there, an unk_token that is not there; with
  // byte_fallback a missing <0xNN>; with byte_level a missing byte that ordinary text needs
  // (printable ASCII, tab, line feed).
  static Result<Bpe> create(BpeSpec spec, bool byte_level, const std::string& where);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the word's tokens; their ranges count from the word's begin. The word is well-formed
  // UTF-8 or, in a byte-level model, any bytes. Characters without a token and without an unknown
  // token are left out, as in Hugging Face tokenizers.
  void encode(std::string_view word, BpeMemory* memory, std::vector<WordToken>* out) const;

  // Appends the token of one byte that is no text, else the unknown token, else nothing.
  void encode_byte(uint8_t byte, std::vector<uint32_t>* out) const;

 private:
  static constexpr uint32_t kNone = ~0u, kGone = ~0u - 1;
  Bpe() = default;
  Status find_special_tokens(const BpeSpec& spec, const std::string& where);
  Status add_merges(const BpeSpec& spec, const std::string& where);
  void find_borders(const BpeSpec& spec);
  void encode_piece(std::string_view piece, uint32_t begin, BpeMemory* memory,
                    std::vector<WordToken>* out) const;
  void start_bytes(std::string_view word, BpeMemory* memory) const;
  void start_characters(std::string_view word, BpeMemory* memory) const;
  void add_unknown(uint32_t begin, uint32_t end, BpeMemory* memory) const;
  void look_at_pair(uint32_t left, BpeMemory* memory) const;
  void merge_all(BpeMemory* memory) const;
  std::optional<uint32_t> whole_word(std::string_view word) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  bool byte_level_ = false, fuse_unk_ = false, byte_fallback_ = false, ignore_merges_ = false;
  // No merge crosses from another character to U+2581, the sign for a space. So a text that begins
  // with one is a word of its own, small enough for the cache.
  bool cut_at_spaces_ = false;
  uint32_t unk_ = kNone;
  std::array<uint32_t, 256> byte_ids_ = {};  // byte_level or byte_fallback; kNone: none
};

}  // namespace pagoda
