// Pinning of hot experts (ES-MoE section 4.3): the experts that took most tokens in the last step
// keep their slots on their devices, since the load of an expert changes little from step to step.
// ES-MoE pins 25 % of the experts of each device. Here what is foreseen (offload/residency.h) keeps
// the hot experts of a step anyway, so pinning is off unless a run asks for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/pages.h"
#include "plan/run_shape.h"

namespace pagoda {

// The weight pages to keep: of each MoE layer the `fraction` (rounded down) of each device's
// experts with the most tokens, at least one token; of those, while a device has not room for all
// beside the slots that transfers take turns in, the ones with the most tokens again. Equal counts:
// the lower record first.
// tokens_per_expert: [layer][num_experts], empty for dense layers.
std::vector<PageId> pinned_weights(const RunShape& shape, const PageTable& pages,
                                   const std::vector<SlotClass>& slots,
                                   std::span<const std::vector<int64_t>> tokens_per_expert,
                                   double fraction);

}  // namespace pagoda
