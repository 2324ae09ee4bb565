// Plans of small random models, and tasks with what a residency makes of them.
#pragma once

#include <random>
#include <vector>

#include "plan/step/replay.h"
#include "tests/testing/plan/dry_run.h"

namespace pagoda {

// A task with what a residency made of it.
struct PlacedTask {
  Task task;
  std::vector<Move> moves;
  std::vector<int32_t> slots;
};

PlacedTask place(Replay& replay, const Task& task);

// Small numbers of everything: layers with and without experts, devices, microbatches.
struct StageCount {
  int most = 1;  // fewer where layers or devices are
  PipelineOrder order = PipelineOrder::kBreadthFirst;
};
RunShape random_shape(std::mt19937& random, int devices, StageCount stages = {});
// Deals the devices to so many ranks, at least one to each. REQUIRES: ranks <= devices.
void divide_into_ranks(std::mt19937& random, int ranks, RunShape& shape);
// Makes so many copies of all experts. REQUIRES: each stage has as many devices; an expert's sums
// are by shards.
void divide_into_copies(int copies, RunShape& shape);
// Tokens of each expert, spread over the microbatches as evenly as they go.
LayerRouting spread(const std::vector<int64_t>& tokens_per_expert, int64_t microbatches);
// Some experts get many tokens, some none.
Routing random_routing(std::mt19937& random, const RunShape& shape);

}  // namespace pagoda
