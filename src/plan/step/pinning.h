// Pinning of hot experts (ES-MoE section 4.3): the experts that took most tokens in the last step
// keep their slots on their devices, since the load of an expert changes little from step to step.
// ES-MoE pins 25 % of the experts of each device. Over plain LRU that saves up to 5 % of a training
// step's uploads; over what is foreseen and expected (offload/residency.h) it saves none and costs
// up to 1 %, since Adam on the host replaces what was kept (tools/bench/residency_study.cc, drawn
// and recorded routing, budgets of 10 to 90 %). So it is off unless a run asks for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/step/pages.h"
#include "plan/step/run_shape.h"

namespace pagoda {

// The weight pages to keep: of each MoE layer the `fraction` (rounded down) of each device's
// experts with the most tokens, at least one token; of those, while a device has not room for all
// beside the slots that transfers take turns in (or that a whole layer comes up in), the ones with
// the most tokens again. Equal counts: the lower record first.
// tokens_per_expert: [layer][num_experts], empty for dense layers.
std::vector<PageId> pinned_weights(const RunShape& shape, const PageTable& pages,
                                   const std::vector<SlotClass>& slots,
                                   std::span<const std::vector<int64_t>> tokens_per_expert,
                                   double fraction);

}  // namespace pagoda
