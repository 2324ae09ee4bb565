#include "plan/step/expert_forecast.h"

#include "plan/step/expert_seats.h"

namespace pagoda {

ExpertForecast::ExpertForecast(const RunShape& shape, const PageTable& pages,
                               const std::vector<SlotClass>& classes)
    : tokens_per_expert_(shape.num_layers) {
  for (int64_t l = 0; l < shape.num_layers && room_.empty(); ++l) {
    if (!shape.is_moe[l]) continue;
    const PageId any = pages.weights(shape.expert(l, 0));
    room_.assign(static_cast<size_t>(shape.devices), 0);
    auto own = room_.begin() + shape.own_devices().first;
    for (int32_t slots : classes[pages.pages[any].slot_class].device_slots) *own++ = slots / 2;
  }
}

void ExpertForecast::note(int64_t layer, std::span<const int64_t> tokens_per_expert) {
  tokens_per_expert_[layer].assign(tokens_per_expert.begin(), tokens_per_expert.end());
}

std::vector<int64_t> ExpertForecast::expected(const RunShape& shape, int64_t layer) const {
  const std::vector<int64_t>& last = tokens_per_expert_[layer];
  const std::vector<int> seats = expected_seats(shape, layer);
  std::vector<int64_t> room = room_, records;
  for (size_t e = 0; e < last.size(); ++e) {
    const int64_t record = shape.expert(layer, static_cast<int64_t>(e));
    const bool used = last[e] > 0 || shape.options.padded_experts;
    if (!used || room[static_cast<size_t>(seats[e])]-- <= 0) continue;
    records.push_back(record);
  }
  return records;
}

std::vector<int> ExpertForecast::expected_seats(const RunShape& shape, int64_t layer) const {
  return layer_seats(shape, layer, tokens_per_expert_[layer]);
}

}  // namespace pagoda
