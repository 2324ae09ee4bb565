#include "plan/step/expert_sums.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda {

ExpertSums::ExpertSums(const RunShape& shape, const PageTable& pages, int64_t layer,
                       const LayerRouting& routing, const LayerSeats& seats)
    : shape_(shape), pages_(pages), layer_(layer), routing_(routing), seats_(seats) {}

ExpertSums::Expert& ExpertSums::of(int64_t expert) {
  const auto [at, is_new] = experts_.try_emplace(expert);
  Expert& e = at->second;
  if (!is_new) return e;
  Source source{std::vector<uint8_t>(static_cast<size_t>(shape_.sums.cells()), 0), {}, 0};
  std::vector<uint8_t>& present = source.present;
  for (size_t b = 0; b < routing_.size(); ++b) {
    const int64_t cell = shape_.sums.cell(static_cast<int64_t>(b), shape_.microbatches);
    present[static_cast<size_t>(cell)] |= routing_[b][static_cast<size_t>(expert)] > 0;
  }
  const bool any = std::find(present.begin(), present.end(), 1) != present.end();
  const int64_t shards = shape_.sums.expert_shards;
  for (int64_t s = 0; s < shards; ++s) {
    source.shard_device.push_back(seats_.device_of(expert, s, shards));
  }
  source.home = seats_.seat(expert);
  const auto [plan, is_first] = plans_.try_emplace(source);
  if (is_first && any) {
    plan->second = plan_expert_sum(shape_.sums, source.present, source.shard_device, source.home);
  }
  e.plan = &plan->second;
  return e;
}

std::deque<int64_t>& ExpertSums::free_pages(int device) {
  const auto [at, is_new] = free_.try_emplace(device);
  const int64_t count = is_new ? PageTable::expert_sum_pages(shape_) : 0;
  for (int64_t i = 0; i < count; ++i) at->second.push_back(i);
  return at->second;
}

// The page that the device has for a buffer of the plan; it takes one if it has none.
PageId ExpertSums::page(int64_t expert, int device, int64_t buffer) {
  if (shape_.rounds() > 1) {
    const int64_t first =
        pages_.first_expert_sum(shape_.expert(layer_, expert), shape_.copies.of_device(device));
    return pages_.expert_sum(device, first + buffer);
  }
  const auto [at, is_new] = of(expert).taken.try_emplace({device, buffer});
  if (is_new) {
    std::deque<int64_t>& free = free_pages(device);
    CHECK(!free.empty(), "device %d has fewer sums of experts", device);
    at->second = free.front();
    free.pop_front();
  }
  return pages_.expert_sum(device, at->second);
}

void ExpertSums::give_up(Expert& expert, int device, int64_t buffer) {
  const auto taken = expert.taken.find({device, buffer});
  if (taken == expert.taken.end()) return;
  free_pages(device).push_back(taken->second);
  expert.taken.erase(taken);
}

ExpertSums::Chain ExpertSums::chain(const ExpertGroup::Block& block) {
  const SumStep* newest = nullptr;  // up to the block's cell; padding alone may be in another one
  for (const SumStep& s : steps_of(block.expert)) {
    const bool before = s.kind == SumStep::Kind::kChain && s.microbatch <= block.cell;
    if (before) newest = &s;
  }
  const bool here = newest != nullptr && newest->microbatch == block.cell;
  const bool begins = block.begins_cell && (newest == nullptr || (here && newest->first));
  const int64_t buffer = newest == nullptr ? 0 : newest->buffer;
  const int device = seats_.device_of(block.expert, block.cell, shape_.sums.expert_shards);
  return {page(block.expert, device, buffer), begins};
}

// Those from a step of the plan on, up to the next chain. What comes behind a move waits for it.
std::vector<ExpertSums::Step> ExpertSums::steps_from(int64_t expert, size_t step) {
  Expert& e = of(expert);
  std::vector<Step> steps;
  bool waits = false;
  for (size_t i = step; i < e.plan->steps.size(); ++i) {
    const SumStep& s = e.plan->steps[i];
    if (s.kind == SumStep::Kind::kChain) break;
    const bool moves = s.kind == SumStep::Kind::kMove;
    Step next{s.device, page(expert, s.device, s.buffer), 0, moves ? s.to : -1};
    next.other = page(expert, moves ? s.to : s.device, s.other);
    next.waits = waits && !moves;
    waits = waits || moves;
    steps.push_back(next);
    give_up(e, s.device, moves ? s.buffer : s.other);
  }
  return steps;
}

std::vector<ExpertSums::Step> ExpertSums::behind(const ExpertGroup::Block& block) {
  Expert& e = of(block.expert);
  const std::vector<SumStep>& steps = e.plan->steps;
  if (steps.empty() && block.ends_cell) give_up(e, seats_.seat(block.expert), 0);  // of padding
  const auto step = std::find_if(steps.begin(), steps.end(), [&](const SumStep& s) {
    return s.kind == SumStep::Kind::kChain && s.microbatch == block.cell;
  });
  // Cells of later chunks are not known yet: the plan's additions are not the step's.
  const bool waits = shape_.rounds() > 1 && std::ssize(routing_) < shape_.microbatches;
  if (!block.ends_cell || step == steps.end() || waits) return {};
  return steps_from(block.expert, static_cast<size_t>(step - steps.begin()) + 1);
}

std::vector<ExpertSums::Step> ExpertSums::rest(int64_t expert) {
  const std::vector<SumStep>& steps = steps_of(expert);
  const auto is_chain = [](const SumStep& s) { return s.kind == SumStep::Kind::kChain; };
  const auto newest = std::find_if(steps.rbegin(), steps.rend(), is_chain);
  return steps_from(expert, static_cast<size_t>(newest.base() - steps.begin()));
}

ExpertSums::Whole ExpertSums::take_whole(int64_t expert) {
  Expert& e = of(expert);
  const int seat = seats_.seat(expert);
  const Whole whole{page(expert, seat, e.plan->root), e.plan->moves()};
  give_up(e, seat, e.plan->root);
  return whole;
}

}  // namespace pagoda
