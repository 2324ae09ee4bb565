#include "plan/memory/group_choice.h"

#include <algorithm>
#include <vector>

#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kAmple = int64_t{1} << 60;  // bytes
constexpr int64_t kShare = 8, kShareOfSeveral = 3;

int64_t page_bytes(const RunShape& shape) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : PageTable(shape).classes) bytes += c.total_bytes();
  return bytes;
}

// What groups of some size take on each device.
struct GroupNeed {
  std::vector<int64_t> least;  // [device] for a step
  std::vector<int64_t> whole;  // [device] if all pages lay there
  int64_t most() const { return *std::max_element(least.begin(), least.end()); }
};

GroupNeed need_of(const RunShape& shape, const std::function<int64_t(int64_t, int)>& fixed_bytes) {
  const RunShape brief = brief_shape(shape);
  const std::vector<int64_t> no_workspace(static_cast<size_t>(shape.devices), 0);
  GroupNeed need;
  need.least = plan_memory(brief, PageTable(brief), {kAmple, kAmple, no_workspace}, 0)
                   .take()
                   .min_on_device;
  need.whole.assign(static_cast<size_t>(shape.devices), page_bytes(shape));
  for (int d = 0; d < shape.devices; ++d) {
    const int64_t fixed = fixed_bytes(shape.group_blocks, d);
    need.least[static_cast<size_t>(d)] += fixed;
    need.whole[static_cast<size_t>(d)] += fixed;
  }
  return need;
}

// Whether the device may have the groups, as against those of one block.
bool is_modest(const GroupNeed& single, const GroupNeed& group, int64_t budget, size_t device) {
  const int64_t share = single.least.size() > 1 ? kShareOfSeveral : kShare;
  const int64_t more = group.least[device] - single.least[device];
  return share * more <= budget - single.least[device] &&
         (single.whole[device] > budget || group.whole[device] <= budget);
}

}  // namespace

GroupChoice choose_group(RunShape shape, bool together, const DeviceBudget& budget, int64_t most,
                         const std::function<int64_t(int64_t, int)>& fixed_bytes) {
  if (shape.options.group_blocks > 0) return {shape.options.group_blocks, 0};
  if (!together || shape.num_experts == 0) return {};
  shape.group_blocks = 1;
  const GroupNeed single = need_of(shape, fixed_bytes);
  for (int64_t blocks = most; blocks > 1; blocks /= 2) {
    shape.group_blocks = blocks;
    const GroupNeed group = need_of(shape, fixed_bytes);
    bool modest = true;
    for (int d = 0; d < shape.devices; ++d) {
      modest = modest && is_modest(single, group, budget.of(d), static_cast<size_t>(d));
    }
    if (modest) return {blocks, group.most() - single.most()};
  }
  return {};
}

}  // namespace pagoda
