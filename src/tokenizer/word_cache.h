// Caches the tokens of words: a fixed 2 MB table in which a new word replaces an old one on the
// same line.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace pagoda {

// A token of a word, made of the word's bytes [begin, end).
struct WordToken {
  uint32_t id;
  uint32_t begin, end;
};

// One thread at a time.
class WordCache {
 public:
  WordCache() : lines_(kLines) {}

  // Appends the word's tokens and returns true, or returns false.
  bool find(std::string_view word, std::vector<WordToken>* out) const {
    if (word.empty() || word.size() > kMaxWordBytes) return false;
    const Line& line = lines_[place(word)];
    if (line.bytes != word.size() || std::memcmp(line.word, word.data(), word.size()) != 0) {
      return false;
    }
    uint32_t begin = 0;
    for (int i = 0; i < line.count; ++i) {
      out->push_back({line.ids[i], begin, line.ends[i]});
      begin = line.ends[i];
    }
    return true;
  }

  // Keeps the word, unless it is long or a part of it has no token.
  void put(std::string_view word, const WordToken* tokens, size_t count) {
    if (word.empty() || word.size() > kMaxWordBytes || count > kMaxTokensOfWord) return;
    Line line;
    uint32_t begin = 0;
    for (size_t i = 0; i < count; ++i) {
      if (tokens[i].begin != begin) return;
      begin = tokens[i].end;
      line.ids[i] = tokens[i].id;
      line.ends[i] = static_cast<uint8_t>(begin);
    }
    line.bytes = static_cast<uint8_t>(word.size());
    line.count = static_cast<uint8_t>(count);
    std::memcpy(line.word, word.data(), word.size());
    lines_[place(word)] = line;
  }

 private:
  static constexpr size_t kLines = size_t{1} << 15;
  static constexpr size_t kMaxWordBytes = 30, kMaxTokensOfWord = 6;
  struct Line {
    uint8_t bytes = 0;  // bytes of the word; 0: the line is empty
    uint8_t count = 0;
    char word[kMaxWordBytes] = {};
    uint8_t ends[8] = {};
    uint32_t ids[kMaxTokensOfWord] = {};
  };
  static_assert(sizeof(Line) == 64);
  static size_t place(std::string_view word) {
    return XXH3_64bits(word.data(), word.size()) & (kLines - 1);
  }

  std::vector<Line> lines_;
};

}  // namespace pagoda
