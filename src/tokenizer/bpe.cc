#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "base/log.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"

namespace pagoda {

namespace {

Status bad(const std::string& where, const std::string& why) {
  return Status(Exit::kBadData, where + ": " + why);
}

constexpr std::string_view kSpaceSign = "\xE2\x96\x81";  // U+2581

// Where the next word begins behind `from`: at a space sign that follows another character.
size_t next_border(std::string_view text, size_t from) {
  size_t at = from;
  while (text.substr(at).starts_with(kSpaceSign)) at += kSpaceSign.size();
  return std::min(text.find(kSpaceSign, at), text.size());
}

std::string quoted(const std::string& token) { return "\"" + printable(token) + "\""; }

}  // namespace

Result<Bpe> Bpe::create(BpeSpec spec, bool byte_level, const std::string& where) {
  Bpe bpe;
  bpe.byte_level_ = byte_level;
  bpe.fuse_unk_ = spec.fuse_unk;
  bpe.byte_fallback_ = spec.byte_fallback;
  bpe.ignore_merges_ = spec.ignore_merges;
  if (byte_level && spec.byte_fallback) {
    return bad(where, "byte_fallback with a ByteLevel pre-tokenizer is not known to pagoda");
  }
  ASSIGN_OR_RETURN(bpe.vocabulary_,
                   Vocabulary::create(std::move(spec.vocab), where + ".vocab"));
  RETURN_IF_ERROR(bpe.find_special_tokens(spec, where));
  RETURN_IF_ERROR(bpe.add_merges(spec, where));
  bpe.find_borders(spec);
  return bpe;
}

Status Bpe::find_special_tokens(const BpeSpec& spec, const std::string& where) {
  if (spec.unk_token) {
    const auto id = vocabulary_.find(*spec.unk_token);
    if (!id)
      return bad(where, "unk_token " + quoted(*spec.unk_token) + " is not in its vocabulary");
    unk_ = *id;
  }
  byte_ids_.fill(kNone);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token =
        byte_level_ ? byte_character(static_cast<uint8_t>(byte)) : strf("<0x%02X>", byte);
    if (const auto id = vocabulary_.find(token)) byte_ids_[byte] = *id;
    const bool ordinary = (byte >= 0x20 && byte < 0x7F) || byte == '\t' || byte == '\n';
    const bool needed = byte_fallback_ || (byte_level_ && ordinary && unk_ == kNone);
    if (needed && byte_ids_[byte] == kNone) {
      return bad(where, strf("byte 0x%02X has no token %s in its vocabulary", byte,
                             quoted(token).c_str()));
    }
  }
  return Status();
}

Status Bpe::add_merges(const BpeSpec& spec, const std::string& where) {
  merges_ = MergeTable(spec.merges.size());
  for (uint32_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const std::string both = left + right;
    uint32_t ids[3] = {};
    const std::string* const tokens[3] = {&left, &right, &both};
    for (int i = 0; i < 3; ++i) {
      const auto id = vocabulary_.find(*tokens[i]);
      if (!id) {
        return bad(where, strf("merge %u (%s with %s): %s is not in its vocabulary", rank,
                               quoted(left).c_str(), quoted(right).c_str(),
                               quoted(*tokens[i]).c_str()));
      }
      ids[i] = *id;
    }
    merges_.put(ids[0], ids[1], {rank, ids[2]});
  }
  return Status();
}

void Bpe::find_borders(const BpeSpec& spec) {
  const auto crosses = [](const auto& merge) {
    const std::string both = merge.first + merge.second;
    return next_border(both, 0) < both.size();
  };
  cut_at_spaces_ = !byte_level_ && !ignore_merges_ && vocabulary_.find(kSpaceSign) &&
                   std::none_of(spec.merges.begin(), spec.merges.end(), crosses);
}

std::optional<uint32_t> Bpe::whole_word(std::string_view word) const {
  return vocabulary_.find(byte_level_ ? spell_bytes(word) : std::string(word));
}

void Bpe::encode(std::string_view word, BpeMemory* memory, std::vector<WordToken>* out) const {
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = cut_at_spaces_ ? next_border(word, begin) : word.size();
    encode_piece(word.substr(begin, end - begin), static_cast<uint32_t>(begin), memory, out);
    begin = end;
  }
}

void Bpe::encode_piece(std::string_view piece, uint32_t begin, BpeMemory* memory,
                       std::vector<WordToken>* out) const {
  const size_t before = out->size();
  if (!memory->cache.find(piece, out)) {
    const auto whole = ignore_merges_ ? whole_word(piece) : std::nullopt;
    if (whole) {
      out->push_back({*whole, 0, static_cast<uint32_t>(piece.size())});
    } else {
      memory->symbols.clear();
      if (byte_level_) {
        start_bytes(piece, memory);
      } else {
        start_characters(piece, memory);
      }
      merge_all(memory);
      for (const BpeMemory::Symbol& symbol : memory->symbols) {
        if (symbol.rank != kGone) out->push_back({symbol.id, symbol.begin, symbol.end});
      }
    }
    memory->cache.put(piece, out->data() + before, out->size() - before);
  }
  for (size_t i = before; begin > 0 && i < out->size(); ++i) {
    (*out)[i].begin += begin;
    (*out)[i].end += begin;
  }
}

void Bpe::encode_byte(uint8_t byte, std::vector<uint32_t>* out) const {
  const uint32_t id = byte_ids_[byte] != kNone ? byte_ids_[byte] : unk_;
  if (id != kNone) out->push_back(id);
}

// An unknown character; with fuse_unk a run of them is one symbol.
void Bpe::add_unknown(uint32_t begin, uint32_t end, BpeMemory* memory) const {
  if (unk_ == kNone) return;
  auto& symbols = memory->symbols;
  const bool follows = !symbols.empty() && symbols.back().end == begin && symbols.back().id == unk_;
  if (fuse_unk_ && follows) {
    symbols.back().end = end;
  } else {
    symbols.push_back({unk_, begin, end, kNone, kNone, kNone});
  }
}

void Bpe::start_bytes(std::string_view word, BpeMemory* memory) const {
  for (uint32_t i = 0; i < word.size(); ++i) {
    const uint32_t id = byte_ids_[static_cast<uint8_t>(word[i])];
    if (id == kNone) {
      add_unknown(i, i + 1, memory);
    } else {
      memory->symbols.push_back({id, i, i + 1, kNone, kNone, kNone});
    }
  }
}

void Bpe::start_characters(std::string_view word, BpeMemory* memory) const {
  for (uint32_t i = 0; i < word.size();) {
    const uint32_t bytes = code_point_at(word, i).bytes;
    if (const auto id = vocabulary_.find(word.substr(i, bytes))) {
      memory->symbols.push_back({*id, i, i + bytes, kNone, kNone, kNone});
    } else if (byte_fallback_) {
      for (uint32_t k = i; k < i + bytes; ++k) {
        const uint32_t byte_id = byte_ids_[static_cast<uint8_t>(word[k])];
        memory->symbols.push_back({byte_id, k, k + 1, kNone, kNone, kNone});
      }
    } else {
      add_unknown(i, i + bytes, memory);
    }
    i += bytes;
  }
}

// Notes the merge of a symbol with its next, if there is one.
void Bpe::look_at_pair(uint32_t left, BpeMemory* memory) const {
  BpeMemory::Symbol& symbol = memory->symbols[left];
  symbol.rank = kNone;
  if (symbol.next == kNone) return;
  const Merge* merge = merges_.find(symbol.id, memory->symbols[symbol.next].id);
  if (merge == nullptr) return;
  symbol.rank = merge->rank;
  memory->queue.push_back(uint64_t{merge->rank} << 32 | left);
  std::push_heap(memory->queue.begin(), memory->queue.end(), std::greater<>());
}

void Bpe::merge_all(BpeMemory* memory) const {
  auto& symbols = memory->symbols;
  auto& queue = memory->queue;
  queue.clear();
  const auto count = static_cast<uint32_t>(symbols.size());
  for (uint32_t i = 0; i < count; ++i) {
    symbols[i].previous = i > 0 ? i - 1 : kNone;
    symbols[i].next = i + 1 < count ? i + 1 : kNone;
    look_at_pair(i, memory);
  }
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(queue.back() >> 32);
    const auto at = static_cast<uint32_t>(queue.back());
    queue.pop_back();
    BpeMemory::Symbol& left = symbols[at];
    if (left.rank != rank) continue;  // the pair has changed since it was noted
    BpeMemory::Symbol& right = symbols[left.next];
    left.id = merges_.find(left.id, right.id)->id;
    left.end = right.end;
    left.next = right.next;
    right.rank = kGone;
    if (left.next != kNone) symbols[left.next].previous = at;
    look_at_pair(at, memory);
    if (left.previous != kNone) look_at_pair(left.previous, memory);
  }
}

}  // namespace pagoda
