// How the budgets are divided into slots, before anything is allocated.
//
// Device memory = fixed workspace + slots. Host memory = slots. The minimum of each place is the
// largest simultaneous need of any task of a step in which every expert is touched, or of a group
// of them, read off the plan itself, plus the host slots that a transfer between disk and a device
// passes through. What is left on a device goes first to in-layer buffers, which would move once
// for every expert, then to the dense weights (attention stays on the device), then to experts and
// activations in proportion to their bytes; in the host to whatever saves most traffic with the
// disk (plan/memory/host_division.h). Where the host has room for a part of the states or waiting
// gradients of experts, most of that part stays there (SlotClass::host_kept). If everything fits on
// the devices, optimizer state included, Adam runs there and no byte moves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/memory/host_division.h"
#include "plan/step/pages.h"
#include "plan/step/step_plan.h"

namespace pagoda {

struct MemoryBudget {
  int64_t device_bytes = 0;          // of each device
  int64_t host_bytes = 0;
  std::vector<int64_t> fixed_bytes;  // workspace on each device
  // Settings that take less device memory when they are lower, for the refusal.
  const char* lower = "train.tokens_per_step or train.micro_batch_tokens";
  bool device_updates = true;  // devices can run the optimizer
};

struct MemoryPlan {
  std::vector<SlotClass> classes;
  bool state_on_device = false;  // all weights too; without training these alone
  std::vector<int64_t> device_slot_bytes;  // on each device
  int64_t host_slot_bytes = 0;             // header room included
  int64_t min_device_bytes = 0;            // smallest memory.device that would do
  int64_t min_host_bytes = 0;
  // Row blocks of experts that are computed together, and what of a device that takes beyond
  // min_device_bytes (plan/memory/group_choice.h).
  int64_t group_blocks = 1, group_bytes = 0;
  // From this memory.device on everything stays there, and nothing moves.
  int64_t whole_device_bytes = 0;
  // Beside these devices, from this memory.host on a step in which every expert is used needs no
  // disk.
  int64_t whole_host_bytes = 0;

  // Bytes of one kind's slots on all devices or in host memory.
  int64_t on_devices(const PageTable& pages, PageKind kind) const;
  int64_t in_host(const PageTable& pages, PageKind kind) const;
};

// kDeviceMemory or kHostMemory, naming the smallest budget that would do, when it does not fit.
// `header_bytes` is the room before each host slot's payload.
Result<MemoryPlan> plan_memory(const RunShape& shape, const PageTable& pages,
                               const MemoryBudget& budget, int64_t header_bytes,
                               DivisionEffort effort = DivisionEffort::kFull);

}  // namespace pagoda
