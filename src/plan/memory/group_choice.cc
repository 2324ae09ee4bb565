#include "plan/memory/group_choice.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"
#include "plan/step/expert_seats.h"

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

namespace {

// Whether weights have fewer bytes than the rows of an expert and a device, if all have equally
// many.
bool guests_are_likely(const RunShape& shape) {
  if (shape.sharing == Sharing::kData) return true;
  const auto layer = std::find(shape.is_moe.begin(), shape.is_moe.end(), 1) - shape.is_moe.begin();
  const int64_t rows =
      shape.round_rows() / (shape.num_experts * std::ssize(shape.attending_devices()));
  return rows * travelling_row_bytes(shape, shape.kept_rows > 0) >
         travelling_weight_bytes(shape, shape.expert(layer, 0));
}

int64_t guest_page_bytes(const RunShape& shape) {
  for (const PageTable::Class& c : PageTable(shape).classes) {
    if (c.kind == PageKind::kGuestWeights) return c.page_bytes;
  }
  return 0;
}

// [device of the rank] guest_layer_bytes() for pages of that size.
std::vector<int64_t> guest_layer_bytes(const RunShape& shape, int64_t page_bytes) {
  RunShape by_turns = shape;
  by_turns.guest_layers = 0;
  const int64_t more =
      PageTable::guest_pages(shape, shape.rank) - PageTable::guest_pages(by_turns, shape.rank);
  std::vector<int64_t> bytes;
  const DeviceRange own = shape.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    bytes.push_back(shape.attends(d) ? more * page_bytes : 0);
  }
  return bytes;
}

}  // namespace

std::vector<int64_t> guest_layer_bytes(const RunShape& shape) {
  return guest_layer_bytes(shape, guest_page_bytes(shape));
}

int64_t choose_guest_layers(RunShape shape, const DeviceBudget& budget,
                            const std::function<int64_t(int)>& fixed_bytes) {
  shape.guest_layers = 0;
  const int64_t all = shape.moe_layers();
  if (all == 0 || !shape.has_far_guests() || !guests_are_likely(shape)) return 0;
  const GroupNeed need = need_of(shape, [&](int64_t, int device) { return fixed_bytes(device); });
  const int64_t page_bytes = guest_page_bytes(shape);
  for (int64_t layers = all; layers >= std::min<int64_t>(2, all); --layers) {
    shape.guest_layers = layers;
    const std::vector<int64_t> bytes = guest_layer_bytes(shape, page_bytes);
    bool modest = true;
    for (size_t d = 0; d < bytes.size(); ++d) {
      const int64_t of_device = budget.of(static_cast<int>(d));
      modest = modest && kShareOfSeveral * bytes[d] <= of_device - need.least[d] &&
               (need.whole[d] > of_device || need.whole[d] + bytes[d] <= of_device);
    }
    if (modest) return layers;
  }
  return 0;
}

}  // namespace pagoda
