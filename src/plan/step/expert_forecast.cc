#include "plan/step/expert_forecast.h"

#include <set>

#include "plan/step/expert_seats.h"

namespace pagoda {

ExpertForecast::ExpertForecast(const RunShape& shape, const PageTable& pages,
                               const std::vector<SlotClass>& classes)
    : newest_(shape.num_layers) {
  for (int64_t l = 0; l < shape.num_layers && room_.empty(); ++l) {
    if (!shape.is_moe[l]) continue;
    const PageId any = pages.weights(shape.expert(l, 0));
    room_.assign(static_cast<size_t>(shape.devices), 0);
    auto own = room_.begin() + shape.own_devices().first;
    for (int32_t slots : classes[pages.pages[any].slot_class].device_slots) *own++ = slots / 2;
  }
}

std::vector<ExpertUse> ExpertForecast::expected(const RunShape& shape, int64_t layer) const {
  const LayerRouting& newest = newest_[static_cast<size_t>(layer)];
  if (newest.empty()) return {};
  // A pass before may have had more microbatches.
  const bool alike = std::ssize(newest) <= shape.microbatches;
  LayerSeats seats;
  if (alike) {
    seats = layer_seats(shape, layer, {0, std::ssize(newest)}, newest);
  } else {
    seats.seats = layer_seats(shape, layer, tokens_per_expert(newest));
  }
  std::vector<int64_t> room = room_;
  std::vector<ExpertUse> uses;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    std::set<int> devices;
    if (shape.options.padded_experts) devices.insert(seats.seat(e));
    for (int64_t b = 0; b < std::ssize(newest); ++b) {
      if (newest[static_cast<size_t>(b)][static_cast<size_t>(e)] == 0) continue;
      const int64_t cell = alike ? shape.sums.cell(b, shape.microbatches) : 0;
      devices.insert(seats.device_of(e, cell, shape.sums.expert_shards));
    }
    const int64_t record = shape.expert(layer, e);
    for (const int device : devices) {
      const bool at_home = shape.rank_of(device) == shape.home_rank(record);
      if (!at_home && !shape.is_copied(record)) continue;  // it is no page there
      if (room[static_cast<size_t>(device)]-- > 0) uses.push_back({record, device});
    }
  }
  return uses;
}

std::vector<ExpertUse> ExpertForecast::expected_guests(const RunShape& shape, int64_t layer) const {
  const LayerRouting& newest = newest_[static_cast<size_t>(layer)];
  if (std::ssize(newest) != shape.microbatches) return {};
  return far_guests(shape, layer, all_microbatches(shape), newest);
}

}  // namespace pagoda
