#include "tokenizer/vocabulary.h"

#include <algorithm>

#include "base/log.h"

namespace pagoda {

namespace {

constexpr uint32_t kNone = ~0u;

}  // namespace

Result<Vocabulary> Vocabulary::create(std::vector<std::pair<std::string, uint32_t>> tokens,
                                      const std::string& where) {
  Vocabulary vocabulary;
  vocabulary.tokens_ = std::move(tokens);
  uint32_t largest = 0;
  for (const auto& [spelling, id] : vocabulary.tokens_) largest = std::max(largest, id);
  CHECK(largest < kMaxTokens);
  if (!vocabulary.tokens_.empty()) vocabulary.by_id_.assign(size_t{largest} + 1, kNone);
  vocabulary.ids_.reserve(vocabulary.tokens_.size());
  for (uint32_t i = 0; i < vocabulary.tokens_.size(); ++i) {
    const auto& [spelling, id] = vocabulary.tokens_[i];
    const auto twice = [&](const std::string& what) {
      return Status(Exit::kBadData, strf("%s: %s comes twice", where.c_str(), what.c_str()));
    };
    if (vocabulary.by_id_[id] != kNone) return twice(strf("id %u", id));
    vocabulary.by_id_[id] = i;
    if (!vocabulary.ids_.try_emplace(spelling, id).second) {
      return twice("token \"" + printable(spelling) + "\"");
    }
  }
  return vocabulary;
}

std::optional<uint32_t> Vocabulary::find(std::string_view spelling) const {
  const auto found = ids_.find(spelling);
  return found == ids_.end() ? std::nullopt : std::optional<uint32_t>(found->second);
}

const std::string* Vocabulary::spelling(uint32_t id) const {
  if (id >= by_id_.size() || by_id_[id] == kNone) return nullptr;
  return &tokens_[by_id_[id]].first;
}

}  // namespace pagoda
