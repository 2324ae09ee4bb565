#include "data/inspection.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace pagoda {

namespace {

constexpr int64_t kShownTokens = 2000;

}  // namespace

void Inspection::file(const std::string& path, RowKind kind) {
  File& file = files_.emplace_back();
  file.path = path;
  file.kind = kind;
}

Status Inspection::example(Example&& example) {
  CHECK(!files_.empty());
  keep(example);
  count(example);
  if (!example.continues) end_example();
  return Status();
}

void Inspection::keep(const Example& example) {
  const bool begins = tokens_ == 0;
  if (begins && static_cast<int64_t>(shown_.size()) < to_show_) {
    Shown& shown = shown_.emplace_back();
    shown.file = files_.size() - 1;
    shown.number = files_.back().examples + 1;
  }
  if (shown_.empty() || shown_.back().file + 1 != files_.size() ||
      shown_.back().number != files_.back().examples + 1) {
    return;
  }
  Shown& shown = shown_.back();
  const auto kept = static_cast<int64_t>(shown.example.tokens.size());
  const auto more =
      std::min(kShownTokens - kept, static_cast<int64_t>(example.tokens.size()));
  shown.example.tokens.insert(shown.example.tokens.end(), example.tokens.begin(),
                              example.tokens.begin() + more);
  shown.example.weights.insert(shown.example.weights.end(), example.weights.begin(),
                               example.weights.begin() + more);
  shown.tokens += static_cast<int64_t>(example.tokens.size());
}

void Inspection::count(const Example& example) {
  files_.back().unended += example.unended;
  hash_ = XXH3_64bits_withSeed(example.tokens.data(), example.tokens.size() * 4, hash_);
  const auto first = example.weights.begin() + (tokens_ == 0 ? 1 : 0);
  const auto is_trained = [](float weight) { return weight > 0; };
  trained_ += std::count_if(first, example.weights.end(), is_trained);
  is_text_ = example.is_text;
  const auto left = std::clamp<int64_t>(sequence_len_ - tokens_, 0, example.weights.end() -
                                        example.weights.begin());
  const auto end = std::max(first, example.weights.begin() + left);
  trained_in_row_ += std::count_if(first, end, is_trained);
  tokens_ += static_cast<int64_t>(example.tokens.size());
}

void Inspection::end_example() {
  File& file = files_.back();
  ++file.examples;
  file.tokens += tokens_;
  file.trained_tokens += trained_;
  const bool longer = tokens_ > sequence_len_;
  const bool kept = !longer || is_text_ || too_long_ == TooLong::kTruncate;
  const bool untrained = kept && (is_text_ ? trained_ : trained_in_row_) == 0;
  file.untrained += untrained;
  file.longer += longer;
  file.cut += longer && is_text_;
  file.too_long += longer && !is_text_ && !untrained;
  file.longest = std::max(file.longest, tokens_);
  keys_.push_back({hash_, tokens_, static_cast<uint32_t>(files_.size() - 1),
                   static_cast<uint32_t>(file.examples)});
  hash_ = 0;
  tokens_ = trained_ = trained_in_row_ = 0;
}

Inspection::File Inspection::total() const {
  File total;
  for (const File& file : files_) {
    total.examples += file.examples;
    total.tokens += file.tokens;
    total.trained_tokens += file.trained_tokens;
    total.untrained += file.untrained;
    total.longer += file.longer;
    total.cut += file.cut;
    total.too_long += file.too_long;
    total.unended += file.unended;
    total.longest = std::max(total.longest, file.longest);
  }
  return total;
}

int64_t Inspection::percentile(int percent) const {
  CHECK(!keys_.empty());
  std::vector<int64_t> lengths;
  for (const Key& key : keys_) lengths.push_back(key.tokens);
  const size_t rank = (lengths.size() * static_cast<size_t>(percent) + 99) / 100;
  const auto at = lengths.begin() + static_cast<int64_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(lengths.begin(), at, lengths.end());
  return *at;
}

std::vector<Inspection::Bucket> Inspection::histogram() const {
  std::vector<Bucket> buckets;
  for (int64_t from = 1; from <= total().longest; from *= 2) {
    buckets.push_back({from, 2 * from - 1, 0});
  }
  for (const Key& key : keys_) {
    ++buckets[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(key.tokens)) - 1)].examples;
  }
  const auto filled = std::find_if(buckets.begin(), buckets.end(),
                                   [](const Bucket& bucket) { return bucket.examples > 0; });
  buckets.erase(buckets.begin(), filled);
  return buckets;
}

Inspection::Duplicates Inspection::duplicates() const {
  Duplicates found;
  std::vector<Key> keys = keys_;
  std::sort(keys.begin(), keys.end());
  const auto place = [&](const Key& key) {
    return files_[key.file].path + strf(" example %u", key.number);
  };
  Key earliest{};
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i].hash != keys[i - 1].hash || keys[i].tokens != keys[i - 1].tokens) continue;
    ++found.examples;
    const bool earlier = found.examples == 1 || std::pair(keys[i].file, keys[i].number) <
                                                    std::pair(earliest.file, earliest.number);
    if (!earlier) continue;
    earliest = keys[i];
    found.first = place(keys[i]);
    found.original = place(keys[i - 1]);
  }
  return found;
}

}  // namespace pagoda
