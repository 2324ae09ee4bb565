// Pinning of hot experts (ES-MoE section 4.3): the experts that took most tokens in the last step
// keep their slots on their devices, since the load of an expert changes little from step to step.
// ES-MoE pins 25 % of the experts of each device. Beside plain LRU, pinning saves up to 5 % of a
// training step's uploads. Beside foreseen and expected uses (offload/residency.h) it saves none
// and costs up to 1 %, since Adam on the host replaces the pinned weights (measured by
// tools/bench/residency_study.cc with drawn and recorded routing, budgets of 10 to 90 %). So it is
// off unless a run asks for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/step/pages.h"
#include "plan/step/run_shape.h"

namespace pagoda {

// The weight pages to pin on the devices of RunShape::rank, whose slots `slots` are. In each MoE
// layer they belong to the `fraction` (rounded down) of each device's experts that have the most
// tokens, and at least one token. Where a device has no room for all of them beside the slots that
// transfers (or a whole layer's upload) need, those with the most tokens are pinned. Among equal
// counts the lower record comes first. tokens_per_expert:
// [layer][num_experts], empty for dense layers.
std::vector<PageId> pinned_weights(const RunShape& shape, const PageTable& pages,
                                   const std::vector<SlotClass>& slots,
                                   std::span<const std::vector<int64_t>> tokens_per_expert,
                                   double fraction);

}  // namespace pagoda
