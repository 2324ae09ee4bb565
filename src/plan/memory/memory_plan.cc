#include "plan/memory/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "plan/memory/host_division.h"
#include "plan/memory/slot_share.h"
#include "plan/step/expert_seats.h"
#include "plan/step/steady_run.h"

namespace pagoda {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 60;  // bytes

// Holds slots for a layer's experts, where they are uploaded together.
void hold_whole_layers(const RunShape& shape, const PageTable& pages,
                       std::vector<SlotClass>& slots) {
  const DeviceRange own = shape.own_devices();
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<int32_t> experts(own.count, 0);
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      for (int device = 0; device < own.count; ++device) {
        if (!shape.has_seat(own.first + device, shape.expert(l, e))) continue;
        int32_t& held =
            slots[pages.pages[pages.weights(shape.expert(l, e))].slot_class].device_slots[device];
        held = std::max(held, ++experts[device]);
      }
    }
  }
}

// Holds slots for the pages of a task, or of several that are computed together. Each page counts
// once.
void hold_uses(const std::vector<PageUse>& uses, const PageTable& pages,
               std::vector<SlotClass>& slots) {
  for (const PageUse& use : uses) {
    const uint16_t slot_class = pages.pages[use.page].slot_class;
    const auto count = std::count_if(uses.begin(), uses.end(), [&](const PageUse& other) {
      return other.place == use.place && pages.pages[other.page].slot_class == slot_class;
    });
    SlotClass& c = slots[slot_class];
    int32_t& held = use.place.tier == Tier::kHost ? c.host_slots : c.device_slots[use.place.device];
    held = std::max(held, static_cast<int32_t>(count));
  }
}

void add_distinct(const Task& task, std::vector<PageUse>& uses) {
  for (const PageUse& use : task.used()) {
    const bool there = std::any_of(uses.begin(), uses.end(), [&](const PageUse& other) {
      return other.page == use.page && other.place == use.place;
    });
    if (!there) uses.push_back(use);
  }
}

// [device of the rank] the most experts of a layer that it computes.
std::vector<int64_t> most_experts(const RunShape& shape) {
  const DeviceRange own = shape.own_devices();
  std::vector<int64_t> most(static_cast<size_t>(own.count), 0);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.is_moe[l]) continue;
    std::vector<int64_t> experts(most.size(), 0);
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      for (int d = 0; d < own.count; ++d) {
        if (shape.has_seat(own.first + d, shape.expert(l, e))) ++experts[static_cast<size_t>(d)];
      }
    }
    const int64_t any = std::accumulate(experts.begin(), experts.end(), int64_t{0});
    for (size_t d = 0; d < most.size(); ++d) {
      const bool computes_any = shape.may_compute_any(own.first + static_cast<int>(d));
      most[d] = std::max(most[d], computes_any ? any : experts[d]);
    }
  }
  return most;
}

// The most experts whose weights a group uses at once (plan/step/expert_blocks.h).
int64_t experts_at_once(const RunShape& shape) {
  if (shape.options.padded_experts) return 1;
  const std::vector<int64_t> most = most_experts(shape);
  return std::clamp<int64_t>(*std::max_element(most.begin(), most.end()), 1, shape.group_blocks);
}

// Holds slots for the experts of a group on each device. A device that has few of them may compute
// them in one group, though others with more of them end a wave sooner in a steady run.
void hold_groups(const RunShape& shape, const PageTable& pages, std::vector<SlotClass>& slots) {
  const std::vector<int64_t> most = most_experts(shape);
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    if (info.kind != PageKind::kWeights || !info.expert) continue;
    for (size_t d = 0; d < most.size(); ++d) {
      int32_t& held = slots[c].device_slots[d];
      held = std::max(held, static_cast<int32_t>(std::min(most[d], experts_at_once(shape))));
    }
  }
}

// Where seats follow from routing, every device has room for what any of them computes, and one
// whose guests experts may be for their weights.
void hold_any_seat(const RunShape& shape, const PageTable& pages, std::vector<SlotClass>& slots) {
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    const bool weights = info.kind == PageKind::kWeights;
    if (!info.expert || info.stays() || (shape.seat_speeds.empty() && !weights)) continue;
    std::vector<int32_t>& held = slots[c].device_slots;
    int32_t most = *std::max_element(held.begin(), held.end());
    if (weights) most = std::max(most, static_cast<int32_t>(experts_at_once(shape)));
    for (size_t d = 0; d < held.size(); ++d) {
      const int device = shape.own_devices().first + static_cast<int>(d);
      if (shape.may_compute_any(device)) held[d] = most;
    }
  }
}

// Where rows are read in place, a group may have those of all microbatches of its device, and add
// to all their sums.
void hold_rows_in_place(const RunShape& shape, const PageTable& pages,
                        std::vector<SlotClass>& slots) {
  const DeviceRange own = shape.own_devices();
  std::vector<SlotClass> read(slots.size());
  for (SlotClass& c : read) c.device_slots.assign(static_cast<size_t>(own.count), 0);
  const auto hold = [&](PageId id) {
    const PageTable::Page& page = pages.pages[id];
    if (!own.contains(page.device)) return;
    ++read[page.slot_class].device_slots[static_cast<size_t>(page.device - own.first)];
  };
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    for (int64_t b = 0; b < shape.microbatches; ++b) {
      hold(pages.normed(stage, b));
      if (shape.training) hold(pages.dresidual(stage, b));
      if (shape.adds_in_place()) hold(pages.sum(stage, b));
    }
  }
  for (size_t c = 0; c < slots.size(); ++c) {
    for (size_t d = 0; d < read[c].device_slots.size(); ++d) {
      int32_t& held = slots[c].device_slots[d];
      // A model without experts has no use for them.
      if (held > 0) held = std::max(held, read[c].device_slots[d]);
    }
  }
}

// Where devices have experts, rows may come to each, and go back, though each has all of its own in
// place in the run that was gone through, or none went to another node.
void expect_rows(const PageTable& pages, std::vector<uint8_t>& used) {
  uint8_t any = 0;
  const auto kind = [&](size_t c) { return pages.classes[c].kind; };
  for (size_t c = 0; c < used.size(); ++c) any |= kind(c) == PageKind::kOutbound ? used[c] : 0;
  for (size_t c = 0; c < used.size(); ++c) {
    const bool rows = kind(c) == PageKind::kInbound || kind(c) == PageKind::kOutbound ||
                      kind(c) == PageKind::kKeptRows;
    used[c] |= rows ? any : 0;
  }
}

// The fewest slots of every class at every place, and their depths.
std::vector<SlotClass> minimum_slots(const StepPlan& plan) {
  const DeviceRange own = plan.shape().own_devices();
  const PageTable& pages = plan.pages();
  const std::vector<int64_t> here = pages_here(plan.shape(), pages);
  std::vector<SlotClass> slots(pages.classes.size());
  for (SlotClass& c : slots) c.device_slots.assign(own.count, 0);
  SteadyRun run(&plan, SteadyRun::Tokens::kOne);
  run.foresee_nothing();
  run.skip_first();
  std::vector<PageUse> together;
  std::vector<uint8_t> used(slots.size(), 0);  // [class] on any rank: rows may take any way
  run.step([&](const StepPiece& piece) {
    for (const Task& task : piece.all_tasks()) {
      for (const PageUse& use : task.used()) used[pages.pages[use.page].slot_class] = 1;
    }
    for (const Task& task : piece.tasks) {
      add_distinct(task, together);
      if (task.joins_next) continue;
      hold_uses(together, pages, slots);
      together.clear();
    }
  });
  if (plan.shape().devices > 1) expect_rows(pages, used);
  // Whose guests experts are depends on their rows.
  for (size_t c = 0; c < used.size() && plan.shape().weights_travel(); ++c) {
    used[c] |= pages.classes[c].kind == PageKind::kGuestWeights ? 1 : 0;
  }
  if (plan.shape().options.whole_layers) hold_whole_layers(plan.shape(), pages, slots);
  hold_groups(plan.shape(), pages, slots);
  if (plan.shape().in_place) hold_rows_in_place(plan.shape(), pages, slots);
  hold_any_seat(plan.shape(), pages, slots);
  std::vector<std::vector<int64_t>> on_device;  // [device][class]
  for (int d = own.first; d < own.end(); ++d) {
    on_device.push_back(pages_on_device(plan.shape(), pages, d));
  }
  // An upload and a download of an evicted page pass through the host at the same time.
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    int64_t passing = std::min<int64_t>(2, here[c]);
    if (info.stays()) {
      passing = 0;
      std::vector<int32_t>& held = slots[c].device_slots;
      for (int d = 0; d < own.count && used[c] != 0; ++d) {
        held[d] = static_cast<int32_t>(on_device[static_cast<size_t>(d)][c]);
      }
    }
    slots[c].host_slots = std::max(slots[c].host_slots, static_cast<int32_t>(passing));
    // The weights of a group are uploaded while another group is in work.
    if (info.kind == PageKind::kWeights && info.expert) {
      slots[c].device_depth = static_cast<int32_t>(2 * experts_at_once(plan.shape()));
    }
  }
  return slots;
}

int64_t device_bytes(const PageTable& pages, const std::vector<SlotClass>& slots, int device) {
  int64_t bytes = 0;
  for (size_t c = 0; c < slots.size(); ++c) {
    bytes += slots[c].device_slots[device] * pages.classes[c].page_bytes;
  }
  return bytes;
}

int64_t host_bytes(const PageTable& pages, const std::vector<SlotClass>& slots, int64_t header) {
  int64_t bytes = 0;
  for (size_t c = 0; c < slots.size(); ++c) {
    bytes += slots[c].host_slots * (pages.classes[c].page_bytes + header);
  }
  return bytes;
}

// In-layer buffers come first: one without room is uploaded for one expert after the other.
void grow_device(const RunShape& shape, const PageTable& pages, int device, int64_t left,
                 bool everything, std::vector<SlotClass>& slots) {
  const std::vector<int64_t> all =
      pages_on_device(shape, pages, shape.own_devices().first + device, everything);
  std::vector<SlotShare> layer_buffers, dense, other;
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    SlotShare share{&slots[c].device_slots[device], info.page_bytes, all[c]};
    // A model without experts, or one that only generates, has no use for some.
    const bool unused = info.kind == PageKind::kLayerBuffer && *share.slots == 0;
    if (unused || info.stays()) share.most = 0;
    share.most = std::max<int64_t>(share.most, *share.slots);
    const bool updated_below = info.kind == PageKind::kState || info.kind == PageKind::kGradient;
    if (updated_below && !everything) {
      // A gradient leaves for the host; two slots let one leave while the next is made.
      share.most = info.kind == PageKind::kState ? 0 : std::min<int64_t>(2, share.most);
      share.most = std::max<int64_t>(share.most, *share.slots);
    }
    const bool stays = info.kind == PageKind::kWeights && !info.expert;
    std::vector<SlotShare>& rank = stays ? dense : other;
    (info.kind == PageKind::kLayerBuffer ? layer_buffers : rank).push_back(share);
  }
  share_out(layer_buffers, left);
  share_out(dense, left);
  share_out(other, left);
}

// Whether the weights of a copied expert come from another rank, or go there; or those of any go to
// guests.
bool travels(const RunShape& shape, int64_t record) {
  if (shape.has_far_guests()) return shape.is_home(record);
  const DeviceRange own = shape.own_devices();
  const bool home = shape.is_home(record);
  for (int d = 0; d < shape.devices; ++d) {
    if (own.contains(d) != home && shape.computes_with(d, record)) return true;
  }
  return false;
}

// The weights of a layer's experts come from other ranks, or go there, before the first is used.
// Until then they are in the host.
void grow_for_copies(const RunShape& shape, const PageTable& pages, int64_t left, int64_t header,
                     std::vector<SlotClass>& slots) {
  if (shape.ranks() == 1 || !shape.has_guests()) return;
  std::vector<int64_t> most(slots.size(), 0);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<int64_t> together(slots.size(), 0);
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      const int64_t record = shape.expert(l, e);
      if (travels(shape, record)) ++together[pages.pages[pages.weights(record)].slot_class];
    }
    for (size_t c = 0; c < most.size(); ++c) most[c] = std::max(most[c], together[c]);
  }
  std::vector<SlotShare> shares;
  for (size_t c = 0; c < slots.size(); ++c) {
    const int32_t passing = slots[c].host_slots;
    shares.push_back(
        {&slots[c].host_slots, pages.classes[c].page_bytes + header, passing + most[c]});
  }
  share_out(shares, left);
}

// A step takes the optimizer states of experts one after another, and their gradients if these wait
// for the norm of all. Pages that the host has no room for are missed all along the step, if that
// costs at most a twentieth more misses: the slots that pages pass through keep none.
void keep_in_host(const RunShape& shape, const PageTable& pages, std::vector<SlotClass>& slots) {
  constexpr int32_t kPassing = 5;  // one in work, two on their way up, two on their way down
  const std::vector<int64_t> here = pages_here(shape, pages);
  for (size_t c = 0; c < slots.size(); ++c) {
    const PageTable::Class& info = pages.classes[c];
    const bool in_order = info.kind == PageKind::kState ||
                          (info.kind == PageKind::kGradient && !shape.updates_in_backward());
    const int64_t more = kPassing - (slots[c].host_depth - 1);
    const bool cheap = 20 * more <= here[c] - slots[c].host_slots;
    if (in_order && cheap) slots[c].host_kept = std::max(0, slots[c].host_slots - kPassing);
  }
}

// The device of a run, to tell it from others.
std::string among_others(const MemoryBudget& budget, size_t device) {
  if (budget.fixed_bytes.size() == 1) return "";
  const bool named = device < budget.device_names.size();
  return strf(" on device %zu%s", device,
              named ? (" (" + budget.device_names[device] + ")").c_str() : "");
}

Status check_device_minimum(const MemoryPlan& plan, const MemoryBudget& budget) {
  int64_t most_lacking = 0;
  size_t device = 0;
  for (size_t d = 0; d < plan.min_on_device.size(); ++d) {
    const int64_t lacking = plan.min_on_device[d] - budget.device_bytes.of(static_cast<int>(d));
    if (lacking > most_lacking) device = d;
    most_lacking = std::max(most_lacking, lacking);
  }
  if (most_lacking == 0) return Status();
  return Status(Exit::kDeviceMemory,
                strf("memory.device is %s%s but a step needs at least %s%s (%s of it workspace); "
                     "raise memory.device, or lower %s",
                     format_bytes(budget.device_bytes.of(static_cast<int>(device))).c_str(),
                     among_others(budget, device).c_str(),
                     format_bytes_up(plan.min_on_device[device]).c_str(),
                     plan.min_on_device.size() > 1 ? " there" : "",
                     format_bytes(budget.fixed_bytes[device]).c_str(), budget.lower));
}

Status check_minimum(const MemoryPlan& plan, const MemoryBudget& budget) {
  RETURN_IF_ERROR(check_device_minimum(plan, budget));
  if (budget.host_bytes < plan.min_host_bytes) {
    return Status(Exit::kHostMemory,
                  strf("memory.host is %s but a step needs at least %s; raise memory.host",
                       format_bytes(budget.host_bytes).c_str(),
                       format_bytes_up(plan.min_host_bytes).c_str()));
  }
  return Status();
}

bool fits(const PageTable& pages, const std::vector<SlotClass>& slots, const MemoryBudget& budget) {
  for (size_t d = 0; d < budget.fixed_bytes.size(); ++d) {
    const int device = static_cast<int>(d);
    const int64_t least = budget.fixed_bytes[d] + device_bytes(pages, slots, device);
    if (least > budget.device_bytes.of(device)) return false;
  }
  return true;
}

// The slots of a run that has all on the devices, and what they take on each with its workspace.
struct WholeRun {
  std::vector<SlotClass> classes;
  std::vector<int64_t> on_device;

  WholeRun(const RunShape& shape, const PageTable& pages, const MemoryBudget& budget);
  bool fits(const DeviceBudget& budget) const;
};

// The state's slots come with the plan that has Adam there.
WholeRun::WholeRun(const RunShape& shape, const PageTable& pages, const MemoryBudget& budget)
    : classes(minimum_slots(
          StepPlan(shape, pages, {.training = shape.training, .state_on_device = true}))) {
  for (int d = 0; d < shape.own_devices().count; ++d) {
    grow_device(shape, pages, d, kNoLimit, true, classes);
    on_device.push_back(budget.fixed_bytes[static_cast<size_t>(d)] +
                        device_bytes(pages, classes, d));
  }
}

bool WholeRun::fits(const DeviceBudget& budget) const {
  for (size_t d = 0; d < on_device.size(); ++d) {
    if (on_device[d] > budget.of(static_cast<int>(d))) return false;
  }
  return true;
}

// Takes the slots of a run that has all on the devices.
void take_whole(const RunShape& shape, const PageTable& pages, WholeRun whole, int64_t budget,
                int64_t header, MemoryPlan& plan) {
  plan.in_place = shape.in_place;
  plan.weights_travel = shape.weights_travel();
  plan.classes = whole.classes;
  grow_for_copies(shape, pages, kNoLimit, header, whole.classes);
  plan.whole_host_bytes = host_bytes(pages, whole.classes, header);
  const int64_t left = budget - host_bytes(pages, plan.classes, header);
  grow_for_copies(shape, pages, std::max<int64_t>(0, left), header, plan.classes);
}

}  // namespace

RunShape settled(RunShape shape, bool weights_travel) {
  shape.seat_speeds.clear();
  if (!weights_travel) shape.sharing = Sharing::kRows;
  return shape;
}

RunShape seated(RunShape shape, const MemoryPlan& memory) {
  if (memory.state_on_device) shape = settled(std::move(shape), memory.weights_travel);
  shape.in_place = memory.in_place;
  return shape;
}

int64_t MemoryPlan::on_devices(const PageTable& pages, PageKind kind) const {
  int64_t bytes = 0;
  for (size_t c = 0; c < classes.size(); ++c) {
    if (pages.classes[c].kind != kind) continue;
    for (int32_t slots : classes[c].device_slots) bytes += slots * pages.classes[c].page_bytes;
  }
  return bytes;
}

int64_t MemoryPlan::in_host(const PageTable& pages, PageKind kind) const {
  int64_t bytes = 0;
  for (size_t c = 0; c < classes.size(); ++c) {
    if (pages.classes[c].kind == kind) bytes += classes[c].host_slots * pages.classes[c].page_bytes;
  }
  return bytes;
}

LeastSlots least_slots(const RunShape& shape, const PageTable& pages, int64_t header_bytes) {
  RunShape copying = shape;
  copying.in_place = false;
  LeastSlots least;
  least.classes = minimum_slots(StepPlan(copying, pages, {.training = shape.training}));
  for (int d = 0; d < shape.own_devices().count; ++d) {
    least.device_bytes.push_back(device_bytes(pages, least.classes, d));
  }
  least.host_bytes = host_bytes(pages, least.classes, header_bytes);
  return least;
}

Result<MemoryPlan> plan_memory(const RunShape& shape, const PageTable& pages,
                               const MemoryBudget& budget, int64_t header_bytes,
                               DivisionEffort effort) {
  const int devices = shape.own_devices().count;
  LeastSlots least = least_slots(shape, pages, header_bytes);
  MemoryPlan plan;
  plan.classes = std::move(least.classes);
  for (int d = 0; d < devices; ++d) {
    plan.min_on_device.push_back(budget.fixed_bytes[d] + least.device_bytes[d]);
  }
  plan.min_device_bytes =
      *std::max_element(plan.min_on_device.begin(), plan.min_on_device.end());
  plan.min_host_bytes = least.host_bytes;
  RETURN_IF_ERROR(check_minimum(plan, budget));
  // Everything on the devices, if it fits.
  const RunShape rows = settled(shape, false);
  WholeRun whole(rows, pages, budget);
  plan.whole_on_device = whole.on_device;
  plan.whole_device_bytes = *std::max_element(whole.on_device.begin(), whole.on_device.end());
  const bool updates = budget.device_updates || !shape.training;
  plan.state_on_device = updates && whole.fits(budget.device_bytes);
  if (plan.state_on_device) {
    const RunShape data = settled(shape, true);
    std::optional<WholeRun> with_guests;
    if (shape.has_far_guests() && budget.guests_too) with_guests.emplace(data, pages, budget);
    const bool guests = with_guests && with_guests->fits(budget.device_bytes);
    take_whole(guests ? data : rows, pages, guests ? *std::move(with_guests) : std::move(whole),
               budget.host_bytes, header_bytes, plan);
  } else {
    plan.weights_travel = shape.weights_travel();
    if (shape.in_place) {
      std::vector<SlotClass> slots =
          minimum_slots(StepPlan(shape, pages, {.training = shape.training}));
      plan.in_place = fits(pages, slots, budget);
      if (plan.in_place) plan.classes = std::move(slots);
    }
    for (int d = 0; d < devices; ++d) {
      const int64_t left =
          budget.device_bytes.of(d) - budget.fixed_bytes[d] - device_bytes(pages, plan.classes, d);
      grow_device(shape, pages, d, left, false, plan.classes);
    }
    RunShape chosen_shape = shape;
    chosen_shape.in_place = plan.in_place;
    const StepPlan chosen(chosen_shape, pages, {.training = shape.training});
    plan.whole_host_bytes = divide_host(chosen, budget.host_bytes - plan.min_host_bytes,
                                        header_bytes, plan.classes, effort)
                                .bytes_without_disk;
    keep_in_host(shape, pages, plan.classes);
  }
  for (int d = 0; d < devices; ++d) {
    plan.device_slot_bytes.push_back(device_bytes(pages, plan.classes, d));
  }
  plan.host_slot_bytes = host_bytes(pages, plan.classes, header_bytes);
  return plan;
}

}  // namespace pagoda
