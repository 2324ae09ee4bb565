#include "tests/testing/plan/planned_case.h"

#include <algorithm>

namespace pagoda {

void StepKind::apply_to(RunShape& shape) const {
  shape.options = options;
  shape.in_place = options.in_place && !options.padded_experts;
  shape.experts_in_order = experts_in_order;
  shape.eager_adam = eager;
  shape.pinned_share = pinned_share;
  shape.group_blocks = group_blocks;
  shape.waves_in_flight = zebra ? kLeastWaves : waves_in_flight;
  if (options.same_blocks()) shape.kept_rows = kept_rows;
  shape.zebra = zebra;
  if (shape.sums.expert_shards > 1) shape.sharing = sharing;
  if (shape.has_far_guests() && guest_layers > 1) shape.guest_layers = guest_layers;
  shape.lags = lags;
  const bool by_shards = shape.sums.expert_shards > 1;
  const bool fit = copies <= shape.devices / shape.stages.count;
  if (copies > 1 && by_shards && fit) divide_into_copies(copies, shape);
}

int64_t budget_between(int64_t least, int64_t most, double room) {
  const auto more = static_cast<double>(std::max<int64_t>(0, most - least));
  return least + static_cast<int64_t>(room * more);
}

namespace {

RunShape kind_of_shape(std::mt19937& random, int devices, const StepKind& kind) {
  RunShape shape = random_shape(random, devices, {kind.stages, kind.order});
  kind.apply_to(shape);
  for (int d = 0; d < devices && devices > 1 && kind.seats_by_step; ++d) {
    shape.seat_speeds.push_back(1 + random() % 4);
  }
  return shape;
}

}  // namespace

PlannedCase::PlannedCase(std::mt19937& random, int devices, const StepKind& of, double room)
    : kind(of), shape(kind_of_shape(random, devices, of)), pages(shape) {
  constexpr int64_t kWorkspace = 12345;  // bytes of a device
  budget = {kGiB, kGiB, std::vector<int64_t>(static_cast<size_t>(devices), kWorkspace)};
  auto roomy = plan_memory(shape, pages, budget, kHeaderBytes);
  CHECK(roomy.ok(), "%s", roomy.status().message().c_str());
  const int64_t all = kWorkspace + *std::max_element(roomy->device_slot_bytes.begin(),
                                                     roomy->device_slot_bytes.end());
  int64_t host_all = 0;
  for (const PageTable::Class& c : pages.classes) host_all += c.total_bytes();
  budget.device_bytes = budget_between(roomy->min_device_bytes, all, room);
  budget.host_bytes = budget_between(roomy->min_host_bytes, host_all, room);
  memory = plan_memory(shape, pages, budget, kHeaderBytes).take();
  shape = seated(shape, memory);
  for (SlotClass& c : memory.classes) {
    if (kind.keep_in_host) c.host_kept = static_cast<int32_t>(random() % (c.host_slots + 1));
  }
  const std::vector<int64_t> no_steps(shape.records.size(), 0);
  run = std::make_unique<DryRun>(shape, pages, memory.classes, memory.state_on_device,
                                 Ledger(kind.skip_untouched, 0, no_steps));
}

}  // namespace pagoda
