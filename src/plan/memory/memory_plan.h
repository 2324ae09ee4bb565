// Divides the budgets into slots, before anything is allocated.
//
// Device memory = fixed workspace + slots. Host memory = slots. The minimum of each place is the
// largest need of any task, or of any group of tasks that joins, in a step in which every expert is
// used. It is read off the plan itself. The host's minimum adds the slots that a transfer between
// disk and a device passes through. The rest of a device goes first to in-layer buffers, which
// would move once for every expert, then to the dense weights (attention stays on the device), then
// to experts and activations in proportion to their bytes. The rest of the host goes to the classes
// that save most traffic with the disk (plan/memory/host_division.h). Where the host has room for a
// part of the states or waiting gradients of experts, most of that part stays there
// (SlotClass::host_kept). Experts read rows in place where each device has room for all in-layer
// buffers that they read, beside everything that a step needs at a time; the least budgets are
// those of copied rows. If everything fits on the devices, optimizer state included, Adam runs
// there, no byte moves, and experts are computed at home (RunShape::seat_speeds, sharing). Between
// ranks weights then still travel to guests, if there is room for all of these too: what a network
// carries is more than what goes between device and host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine/device_budget.h"
#include "plan/memory/host_division.h"
#include "plan/step/pages.h"
#include "plan/step/step_plan.h"

namespace pagoda {

// Bytes of a budget that takes whatever there is.
inline constexpr int64_t kRoomForAll = int64_t{1} << 40;

// What RunShape::rank may take. [device] counts its own devices.
struct MemoryBudget {
  DeviceBudget device_bytes;
  int64_t host_bytes = 0;
  std::vector<int64_t> fixed_bytes;  // workspace on each device
  // [device] as the run file names it, for the refusal of one among several.
  std::vector<std::string> device_names = {};
  // Names the settings that take less device memory when they are lower, for the refusal.
  const char* lower = "train.tokens_per_step or train.micro_batch_tokens";
  bool device_updates = true;  // devices can run the optimizer
  bool guests_too = true;      // and may have guests where they do
};

struct MemoryPlan {
  std::vector<SlotClass> classes;
  bool state_on_device = false;  // so are all weights; without training, the weights alone
  bool weights_travel = false;   // RunShape's
  bool in_place = false;         // RunShape's
  std::vector<int64_t> device_slot_bytes;  // on each device
  int64_t host_slot_bytes = 0;             // header room included
  int64_t min_device_bytes = 0;  // smallest memory.device that would do, the same for each device
  int64_t min_host_bytes = 0;
  std::vector<int64_t> min_on_device;  // [device] the smallest for it, with what groups take
  // RunShape's, as all ranks have chosen, and [device] what the first two of them take beyond the
  // least (plan/memory/group_choice.h).
  int64_t group_blocks = 1, waves_in_flight = kLeastWaves, guest_layers = 0;
  std::vector<int64_t> group_bytes;
  // The memory.device from which on everything stays on the devices, and nothing moves: the same
  // for each, and [device].
  int64_t whole_device_bytes = 0;
  std::vector<int64_t> whole_on_device;
  // With these devices, the memory.host from which on a step in which every expert is used needs no
  // disk. With several devices it is that of a step whose experts have a row block each: others
  // make other waves (plan/step/expert_blocks.h), and may need some more.
  int64_t whole_host_bytes = 0;

  // Bytes of one kind's slots on all devices or in host memory.
  int64_t on_devices(const PageTable& pages, PageKind kind) const;
  int64_t in_host(const PageTable& pages, PageKind kind) const;
};

// What each of several ranks has room for. Where one has none, all do without.
struct RoomOfRanks {
  bool states = true, guests_too = true, in_place = true;

  // Whether the plan of a rank uses no more than that.
  bool holds(const MemoryPlan& plan) const {
    const bool guests = !states || plan.weights_travel == guests_too;
    return plan.state_on_device == states && guests && plan.in_place == in_place;
  }
  // The budget of a rank that is to use no more.
  MemoryBudget of(MemoryBudget budget) const {
    budget.device_updates = budget.device_updates && states;
    budget.guests_too = guests_too;
    return budget;
  }
};

// The shape of the run that goes with the plan: whether rows are read in place; and experts are
// computed at home where all stays on the devices, or by guests on other ranks.
RunShape seated(RunShape shape, const MemoryPlan& memory);
// The shape of a run that has all on the devices, of which weights travel or none do.
RunShape settled(RunShape shape, bool weights_travel);

// The fewest slots in which the rank's step goes, whatever the budgets, and with copied rows.
struct LeastSlots {
  std::vector<SlotClass> classes;
  std::vector<int64_t> device_bytes;  // of slots, on each device
  int64_t host_bytes = 0;             // header room included
};
LeastSlots least_slots(const RunShape& shape, const PageTable& pages, int64_t header_bytes);

// Divides the budgets of RunShape::rank. kDeviceMemory or kHostMemory, naming the smallest budget
// that would do, when it does not fit; of several devices also the one that lacks most.
// `header_bytes` is the room before each host slot's payload.
Result<MemoryPlan> plan_memory(const RunShape& shape, const PageTable& pages,
                               const MemoryBudget& budget, int64_t header_bytes,
                               DivisionEffort effort = DivisionEffort::kFull);

}  // namespace pagoda
