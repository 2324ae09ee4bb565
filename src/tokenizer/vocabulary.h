// The tokens of a model: spellings and ids, each unique.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"

namespace pagoda {

// All ids are below it, so that an id in a small file cannot ask for much memory.
inline constexpr int64_t kMaxTokens = int64_t{1} << 22;

// Immutable after create; movable. find and spelling run on any number of threads.
class Vocabulary {
 public:
  Vocabulary() = default;
  // kBadData for an id or a spelling that comes twice. REQUIRES: ids below kMaxTokens.
  static Result<Vocabulary> create(std::vector<std::pair<std::string, uint32_t>> tokens,
                                   const std::string& where);

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }  // tokens, not the largest id
  int64_t end_id() const { return static_cast<int64_t>(by_id_.size()); }  // 1 + the largest id
  std::optional<uint32_t> find(std::string_view spelling) const;
  // nullptr: no token has the id.
  const std::string* spelling(uint32_t id) const;

 private:
  std::unordered_map<std::string_view, uint32_t> ids_;  // keys lie in tokens_
  std::vector<std::pair<std::string, uint32_t>> tokens_;
  std::vector<uint32_t> by_id_;  // index into tokens_; ~0: none
};

}  // namespace pagoda
