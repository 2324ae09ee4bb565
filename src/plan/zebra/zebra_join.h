// Data-parallel zebra groups that need not be alike, since few clusters divide evenly: each works
// on its own share of the tokens, and the gradients of every layer are summed over all of them.
// Attention is replicated over all attention devices, so that its all-reduce begins when the last
// group has a layer's gradient; an expert has one copy in each group. Sums of attention and of
// experts, each in the order of the backward, slow nothing else; the end of the step waits for
// them. (HeterMoE section 5 has data parallelism over groups that are alike, which plan_zebra()
// plans too.) Planned only: `pagoda plan` simulates it, and no run executes it yet. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

struct ZebraJoin {
  // Equally many layers, with experts in the last or without, and a backward. Sums among their own
  // times are not looked at: these are of a layer over all groups.
  std::vector<ZebraGroup> groups;
  double attention_reduce_s = 0;
  double expert_reduce_s = 0;
};

struct JoinedStep {
  std::vector<ZebraStep> groups;  // by itself, without sums
  double attention_wait_s = 0;    // of the end of the step for sums of attention, beyond computing
  double step_s = 0;
};

// Each group with the lags that are best for it. O(groups) times best_zebra. kUsage: no group, what
// check_zebra refuses, groups that do not agree, sums that take no time that a network takes.
Result<JoinedStep> best_zebra_join(const ZebraJoin& join);

// How many of `microbatches` equal ones each group takes so that the slowest is done soonest, if a
// group's time grows with the number of its microbatches: one by one to who has it done first; of
// equal ones the first. Each at least one. group.microbatches is not looked at, sizes must be
// empty. kUsage as above, and fewer microbatches than groups. O(microbatches) times best_zebra.
Result<std::vector<int32_t>> share_microbatches(std::span<const ZebraGroup> groups,
                                                int32_t microbatches);

}  // namespace pagoda
