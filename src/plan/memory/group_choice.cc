#include "plan/memory/group_choice.h"

#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"

namespace pagoda {
namespace {

constexpr int64_t kAmple = int64_t{1} << 60;  // bytes
constexpr int64_t kShare = 8, kShareOfSeveral = 3;

int64_t least_bytes(const RunShape& shape) {
  const RunShape brief = brief_shape(shape);
  MemoryBudget budget{kAmple, kAmple, std::vector<int64_t>(static_cast<size_t>(shape.devices), 0)};
  return plan_memory(brief, PageTable(brief), budget, 0).take().min_device_bytes;
}

int64_t page_bytes(const RunShape& shape) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : PageTable(shape).classes) bytes += c.total_bytes();
  return bytes;
}

}  // namespace

GroupChoice choose_group(RunShape shape, bool together, int64_t device_bytes, int64_t most,
                         const std::function<int64_t(int64_t)>& fixed_bytes) {
  if (shape.options.group_blocks > 0) return {shape.options.group_blocks, 0};
  if (!together || shape.num_experts == 0) return {};
  shape.group_blocks = 1;
  const int64_t least = least_bytes(shape) + fixed_bytes(1);
  const int64_t whole = page_bytes(shape) + fixed_bytes(1);
  for (int64_t blocks = most; blocks > 1; blocks /= 2) {
    shape.group_blocks = blocks;
    const int64_t more = least_bytes(shape) + fixed_bytes(blocks) - least;
    const int64_t share = shape.devices > 1 ? kShareOfSeveral : kShare;
    const bool modest = share * more <= device_bytes - least;
    const bool whole_stays = whole > device_bytes ||
                             page_bytes(shape) + fixed_bytes(blocks) <= device_bytes;
    if (modest && whole_stays) return {blocks, more};
  }
  return {};
}

}  // namespace pagoda
