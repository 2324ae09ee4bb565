#include "plan/pinning.h"

#include <algorithm>
#include <utility>

namespace pagoda {
namespace {

struct Load {
  int64_t tokens;
  int64_t record;
};

// The `count` records with the most tokens, of those with any.
void keep_hottest(std::vector<Load>& loads, int64_t count) {
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return std::pair(-a.tokens, a.record) < std::pair(-b.tokens, b.record);
  });
  while (!loads.empty() && loads.back().tokens == 0) loads.pop_back();
  if (static_cast<int64_t>(loads.size()) > count) loads.resize(count);
}

std::vector<Load> hot_experts(const RunShape& shape, int device,
                              std::span<const std::vector<int64_t>> tokens_per_expert,
                              double fraction) {
  std::vector<Load> hot;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<Load> layer;
    for (size_t e = 0; e < tokens_per_expert[l].size(); ++e) {
      const int64_t record = shape.expert(l, static_cast<int64_t>(e));
      if (shape.records[record].device != device) continue;
      layer.push_back({tokens_per_expert[l][e], record});
    }
    keep_hottest(layer, static_cast<int64_t>(fraction * static_cast<double>(layer.size())));
    hot.insert(hot.end(), layer.begin(), layer.end());
  }
  return hot;
}

}  // namespace

std::vector<PageId> pinned_weights(const RunShape& shape, const PageTable& pages,
                                   const std::vector<SlotClass>& slots,
                                   std::span<const std::vector<int64_t>> tokens_per_expert,
                                   double fraction) {
  std::vector<PageId> kept;
  for (int d = 0; d < shape.devices; ++d) {
    std::vector<Load> hot = hot_experts(shape, d, tokens_per_expert, fraction);
    if (hot.empty()) continue;
    // Experts are of one size, so their weights are of one class.
    const SlotClass& room = slots[pages.pages[pages.weights(hot.front().record)].slot_class];
    keep_hottest(hot, std::max(0, room.device_slots[d] - room.device_depth));
    for (const Load& load : hot) kept.push_back(pages.weights(load.record));
  }
  return kept;
}

}  // namespace pagoda
