#include "report/expert_watch.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace pagoda {
namespace {

constexpr size_t kMostNamed = 8;

// "expert 2", "experts 2, 7 and 9", "17 experts (2, 7, 9, ...)"
std::string named(const std::vector<int64_t>& experts) {
  if (experts.size() == 1) return strf("expert %lld", (long long)experts[0]);
  std::string list;
  const size_t shown = std::min(experts.size(), kMostNamed);
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == experts.size();
    list += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(experts[i]);
  }
  if (shown == experts.size()) return "experts " + list;
  return strf("%zu experts (%s, ...)", experts.size(), list.c_str());
}

}  // namespace

std::vector<std::string> ExpertWatch::note(
    const std::vector<std::vector<int64_t>>& tokens_per_expert) {
  std::vector<std::string> texts;
  if (steps_ == 0) return texts;
  layers_.resize(tokens_per_expert.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::vector<int64_t>& sum = layers_[l].tokens;
    sum.resize(tokens_per_expert[l].size(), 0);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += tokens_per_expert[l][e];
  }
  if (++noted_ % steps_ != 0) return texts;
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::string text = look_at(l);
    if (!text.empty()) texts.push_back(std::move(text));
    layers_[l].tokens.assign(layers_[l].tokens.size(), 0);
  }
  return texts;
}

std::string ExpertWatch::look_at(size_t layer) {
  Layer& of = layers_[layer];
  const auto experts = static_cast<int64_t>(of.tokens.size());
  const int64_t all = std::accumulate(of.tokens.begin(), of.tokens.end(), int64_t{0});
  if (experts == 0 || all < kEnough * experts) return "";
  const double mean = static_cast<double>(all) / static_cast<double>(experts);
  std::vector<int64_t> dead, overloaded;
  for (int64_t e = 0; e < experts; ++e) {
    const auto tokens = static_cast<double>(of.tokens[static_cast<size_t>(e)]);
    if (tokens == 0) dead.push_back(e);
    if (most_ > 0 && tokens > most_ * mean) overloaded.push_back(e);
  }
  if (dead == of.dead && overloaded == of.overloaded) return "";
  of.dead = dead;
  of.overloaded = overloaded;
  std::string text;
  if (!dead.empty()) {
    text += strf("%s had no token in %lld steps", named(dead).c_str(), (long long)steps_);
  }
  if (!overloaded.empty()) {
    text += (text.empty() ? "" : "; ") +
            strf("%s had more than %g times the mean", named(overloaded).c_str(), most_);
  }
  if (text.empty()) return strf("layer %zu: all experts get tokens again", layer);
  return strf("layer %zu: %s", layer, text.c_str());
}

}  // namespace pagoda
