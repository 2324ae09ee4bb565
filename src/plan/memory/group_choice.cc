#include "plan/memory/group_choice.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kShare = 8, kShareOfSeveral = 3;
constexpr int64_t kLeastGroups = 8;  // of a layer on each of several devices

int64_t page_bytes(const RunShape& shape) {
  const PageTable pages(shape);
  const std::vector<int64_t> here = pages_here(shape, pages);
  int64_t bytes = 0;
  for (size_t c = 0; c < here.size(); ++c) bytes += here[c] * pages.classes[c].page_bytes;
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
  const DeviceRange own = shape.own_devices();
  const auto devices = static_cast<size_t>(own.count);
  GroupNeed need;
  need.least = least_slots(brief, PageTable(brief), 0).device_bytes;
  need.whole.assign(devices, page_bytes(shape));
  for (size_t d = 0; d < devices; ++d) {
    const int64_t fixed = fixed_bytes(shape.group_blocks, own.first + static_cast<int>(d));
    need.least[d] += fixed;
    need.whole[d] += fixed;
  }
  return need;
}

// Whether the device may have the groups, as against those of one block.
bool is_modest(const GroupNeed& single, const GroupNeed& group, int64_t budget, size_t device,
               bool several) {
  const int64_t share = several ? kShareOfSeveral : kShare;
  const int64_t more = group.least[device] - single.least[device];
  return share * more <= budget - single.least[device] &&
         (single.whole[device] > budget || group.whole[device] <= budget);
}

// Whether other chunks' experts are computed while a chunk's rows travel.
bool rounds_overlap(const RunShape& shape) { return shape.zebra && shape.rounds() > 1; }

// The most row blocks that leave each of several devices so many groups of a layer's rows that
// most of what they send travels beside what they compute.
int64_t most_for_overlap(const RunShape& shape) {
  if (rounds_overlap(shape)) return std::max<int64_t>(1, shape.most_round_blocks());
  const int64_t blocks = div_ceil(shape.round_rows(), shape.row_block);
  // The devices of a copy share a layer, and its rows are a part of these.
  const int64_t groups = kLeastGroups * div_ceil(shape.devices, shape.stages.count);
  // No layer has more: of each expert one block may have few rows.
  if (!shape.training && blocks < groups) return blocks + shape.num_experts;
  return std::max<int64_t>(1, blocks / groups);
}

}  // namespace

GroupChoice choose_group(RunShape shape, bool together, const DeviceBudget& budget, int64_t most,
                         const std::function<int64_t(int64_t, int)>& fixed_bytes) {
  if (shape.options.group_blocks > 0) return {shape.options.group_blocks, 0};
  if (!together || shape.num_experts == 0) return {};
  shape.group_blocks = 1;
  const GroupNeed single = need_of(shape, fixed_bytes);
  if (rounds_overlap(shape)) {
    const int64_t all = most_for_overlap(shape);
    most = div_ceil(all, div_ceil(all, most));
  }
  for (int64_t blocks = most; blocks > 1; blocks = div_ceil(blocks, 2)) {
    if (shape.devices > 1 && blocks > most_for_overlap(shape)) continue;
    shape.group_blocks = blocks;
    const GroupNeed group = need_of(shape, fixed_bytes);
    bool modest = true;
    for (int d = 0; d < shape.own_devices().count; ++d) {
      modest = modest && is_modest(single, group, budget.of(d), static_cast<size_t>(d),
                                   shape.devices > 1);
    }
    if (modest) return {blocks, group.most() - single.most()};
  }
  return {};
}

}  // namespace pagoda
