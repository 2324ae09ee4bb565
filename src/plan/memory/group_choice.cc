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

// What groups of some size take on each device of the rank.
struct GroupNeed {
  std::vector<int64_t> least;   // [device] for a step
  std::vector<int64_t> whole;   // [device] where all that it uses stays there, but guests' weights
  std::vector<int64_t> guests;  // [device] these

  // Whether the device has room for what stays where that of `before` has it.
  bool stays_as(const GroupNeed& before, size_t device, int64_t bytes) const {
    const int64_t more = guests[device], more_before = before.guests[device];
    return (whole[device] <= bytes || before.whole[device] > bytes) &&
           (whole[device] + more <= bytes || before.whole[device] + more_before > bytes);
  }
};

// Takes the pages of a run that has all on the devices, as plan_memory() counts them.
void add_pages(const RunShape& shape, GroupNeed& need) {
  const PageTable pages(shape);
  const RunShape whole = settled(shape, false);
  const DeviceRange own = shape.own_devices();
  for (int d = 0; d < own.count; ++d) {
    const std::vector<int64_t> count = pages_on_device(whole, pages, own.first + d, true);
    for (size_t c = 0; c < count.size(); ++c) {
      const PageTable::Class& info = pages.classes[c];
      auto& bytes = info.kind == PageKind::kGuestWeights ? need.guests : need.whole;
      bytes[static_cast<size_t>(d)] += count[c] * info.page_bytes;
    }
  }
}

// [device of the rank] its workspace.
std::vector<int64_t> workspaces(const RunShape& shape, const GroupWorkspace& fixed_bytes) {
  std::vector<int64_t> bytes;
  const DeviceRange own = shape.own_devices();
  for (int d = own.first; d < own.end(); ++d) bytes.push_back(fixed_bytes(shape.group_blocks, d));
  return bytes;
}

// [device of the rank] what a step needs at least.
std::vector<int64_t> step_bytes(const RunShape& shape, const GroupWorkspace& fixed_bytes) {
  const RunShape brief = brief_shape(shape);
  std::vector<int64_t> bytes = least_slots(brief, PageTable(brief), 0).device_bytes;
  const std::vector<int64_t> fixed = workspaces(shape, fixed_bytes);
  for (size_t d = 0; d < bytes.size(); ++d) bytes[d] += fixed[d];
  return bytes;
}

GroupNeed need_of(const RunShape& shape, const GroupWorkspace& fixed_bytes) {
  GroupNeed need;
  need.least = step_bytes(shape, fixed_bytes);
  need.whole = workspaces(shape, fixed_bytes);
  need.guests.assign(need.whole.size(), 0);
  add_pages(shape, need);
  return need;
}

// Whether each device has room for what is more than `least`: a `share`th of what is left.
bool is_modest(const GroupNeed& least, const GroupNeed& need, const DeviceBudget& budget,
               int64_t share) {
  for (size_t d = 0; d < need.least.size(); ++d) {
    const int64_t of_device = budget.of(static_cast<int>(d));
    const int64_t more = need.least[d] - least.least[d];
    if (share * more > of_device - least.least[d]) return false;
    if (!need.stays_as(least, d, of_device)) return false;
  }
  return true;
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

namespace {

// Chooses as choose_group() does, with the fewest waves.
GroupChoice choose_blocks(RunShape shape, bool together, const DeviceBudget& budget, int64_t most,
                          const GroupWorkspace& fixed_bytes) {
  if (shape.options.group_blocks > 0) return {.blocks = shape.options.group_blocks};
  if (!together) return {};
  shape.group_blocks = 1;
  const GroupNeed single = need_of(shape, fixed_bytes);
  if (rounds_overlap(shape)) {
    const int64_t all = most_for_overlap(shape);
    most = div_ceil(all, div_ceil(all, most));
  }
  const int64_t share = shape.devices > 1 ? kShareOfSeveral : kShare;
  for (int64_t blocks = most; blocks > 1; blocks = div_ceil(blocks, 2)) {
    if (shape.devices > 1 && blocks > most_for_overlap(shape)) continue;
    shape.group_blocks = blocks;
    if (is_modest(single, need_of(shape, fixed_bytes), budget, share)) return {.blocks = blocks};
  }
  return {};
}

// The waves of a layer if one device has all of its rows. The last block of each expert may have
// few rows.
int64_t most_waves(const RunShape& shape) {
  const int64_t blocks = shape.num_experts + div_ceil(shape.round_rows(), shape.row_block);
  return div_ceil(blocks, shape.group_blocks);
}

}  // namespace

GroupChoice choose_group(RunShape shape, bool together, const DeviceBudget& budget, int64_t most,
                         const GroupWorkspace& fixed_bytes) {
  if (shape.num_experts == 0) return {};
  shape.waves_in_flight = kLeastWaves;
  GroupChoice choice = choose_blocks(shape, together, budget, most, fixed_bytes);
  if (shape.devices == 1 || shape.zebra) return choice;
  if (shape.options.waves_in_flight > 0) {
    choice.waves = shape.options.waves_in_flight;
    return choice;
  }
  shape.group_blocks = choice.blocks;
  const GroupNeed fewest = need_of(shape, fixed_bytes);
  const int64_t all = most_waves(shape);
  for (int64_t waves = kMostWaves; waves > kLeastWaves; waves /= 2) {
    if (waves / 2 >= all) continue;
    shape.waves_in_flight = waves;
    if (PageTable::count(shape) > kMostPages) continue;
    if (!is_modest(fewest, need_of(shape, fixed_bytes), budget, kShare)) continue;
    choice.waves = waves;
    break;
  }
  return choice;
}

std::vector<int64_t> group_bytes(RunShape shape, const GroupWorkspace& fixed_bytes) {
  shape.guest_layers = 0;
  RunShape least = shape;
  if (shape.options.group_blocks == 0) least.group_blocks = 1;
  if (shape.options.waves_in_flight == 0) least.waves_in_flight = kLeastWaves;
  const bool same =
      least.group_blocks == shape.group_blocks && least.waves_in_flight == shape.waves_in_flight;
  if (same) return std::vector<int64_t>(static_cast<size_t>(shape.own_devices().count), 0);
  std::vector<int64_t> bytes = step_bytes(shape, fixed_bytes);
  const std::vector<int64_t> of_least = step_bytes(least, fixed_bytes);
  for (size_t d = 0; d < bytes.size(); ++d) bytes[d] -= of_least[d];
  return bytes;
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
      const int64_t whole = need.whole[d] + need.guests[d];
      modest = modest && kShareOfSeveral * bytes[d] <= of_device - need.least[d] &&
               (whole > of_device || whole + bytes[d] <= of_device);
    }
    if (modest) return layers;
  }
  return 0;
}

}  // namespace pagoda
