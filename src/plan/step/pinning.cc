#include "plan/step/pinning.h"

#include <algorithm>
#include <utility>

namespace pagoda {
namespace {

struct Load {
  int64_t tokens;
  int64_t record;
};

// Keeps the `count` records with the most tokens, and only those with any.
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

// Slots that stay unpinned: transfers need them, or a whole layer is uploaded into them.
int64_t unpinned_slots(const RunShape& shape, int device, const SlotClass& room) {
  if (!shape.options.whole_layers) return room.device_depth;
  int64_t most = room.device_depth;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    int64_t experts = 0;
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      experts += shape.records[shape.expert(l, e)].device == device;
    }
    most = std::max(most, experts);
  }
  return most;
}

}  // namespace

std::vector<PageId> pinned_weights(const RunShape& shape, const PageTable& pages,
                                   const std::vector<SlotClass>& slots,
                                   std::span<const std::vector<int64_t>> tokens_per_expert,
                                   double fraction) {
  std::vector<PageId> kept;
  const DeviceRange own = shape.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    std::vector<Load> hot = hot_experts(shape, d, tokens_per_expert, fraction);
    if (hot.empty()) continue;
    // Experts are of one size, so their weights are of one class.
    const SlotClass& room = slots[pages.pages[pages.weights(hot.front().record)].slot_class];
    const int64_t most = room.device_slots[d - own.first] - unpinned_slots(shape, d, room);
    keep_hottest(hot, std::max<int64_t>(0, most));
    for (const Load& load : hot) kept.push_back(pages.weights(load.record));
  }
  return kept;
}

}  // namespace pagoda
