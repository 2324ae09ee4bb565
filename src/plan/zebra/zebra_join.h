// Data-parallel zebra groups that need not be equal, since few clusters divide evenly: each works
// on its own share of the tokens, and the gradients of every layer are summed over all of them.
// Attention is replicated over all attention devices, so that its all-reduce begins when the last
// group has a layer's gradient; an expert has one copy in each group. Sums of attention and of
// experts, each in the order of the backward, slow nothing else; the end of the step waits for
// them. (HeterMoE section 5 has data parallelism over equal groups, which plan_zebra() plans too.)
// Planned only: `pagoda plan` simulates it, and no run executes it yet. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

struct ZebraJoin {
  // All groups have the same number of layers, agree on experts in the last one, and have a
  // backward. The sums in their own times are ignored; those below are a layer's over all groups.
  std::vector<ZebraGroup> groups;
  double attention_reduce_s = 0;
  double expert_reduce_s = 0;
};

struct JoinedStep {
  std::vector<ZebraStep> groups;  // each group by itself, without sums
  double attention_wait_s = 0;    // wait of the step's end for sums of attention, beyond computing
  double step_s = 0;
};

// Each group gets its own best lags. O(groups) times best_zebra. kUsage: no group, the errors of
// check_zebra, groups that do not agree, sums with a time that no network has.
Result<JoinedStep> best_zebra_join(const ZebraJoin& join);

// Divides `microbatches` equal microbatches among the groups so that the slowest group ends
// soonest, if a group's time grows with its number of microbatches: one by one they go to the group
// that has it done first, the first among equals. Each group gets at least one. Ignores
// group.microbatches; sizes must be empty. kUsage as above, and for fewer microbatches than groups.
// O(microbatches) times best_zebra.
Result<std::vector<int32_t>> share_microbatches(std::span<const ZebraGroup> groups,
                                                int32_t microbatches);

}  // namespace pagoda
