// A random run with all that a validator wants of it: its shape, its memory plan at some budget,
// and a dry run that makes its pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "plan/memory/memory_plan.h"
#include "tests/testing/plan/random_plan.h"
#include "tests/testing/plan/validator.h"

namespace pagoda {

// What a step is told of itself.
struct StepKind {
  bool eager = false, skip_untouched = false, seats_by_step = false;
  bool keep_in_host = false;  // any number of pages of each class, as against what is planned
  double pinned_share = 0;
  int64_t group_blocks = 1, waves_in_flight = kLeastWaves, kept_rows = 0;
  bool zebra = false;
  Sharing sharing = Sharing::kRows;
  int64_t guest_layers = 0;  // where weights travel between ranks, and there may be so many
  Lags lags = {};
  int stages = 1;
  PipelineOrder order = PipelineOrder::kBreadthFirst;
  int copies = 1;  // where devices and sums allow them
  bool experts_in_order = false;
  PlanOptions options = {};

  void apply_to(RunShape& shape) const;  // all but the seats and stages
};

// A budget as far between the least and the most that make sense as `room` says, in [0, 1].
int64_t budget_between(int64_t least, int64_t most, double room);

struct PlannedCase {
  static constexpr int64_t kHeaderBytes = 4096;  // of a page on disk

  PlannedCase(std::mt19937& random, int devices, const StepKind& kind, double room);
  Residency start() const { return all_on_disk(shape, pages, memory.classes); }
  PlanValidator validator() const {
    return PlanValidator(&shape, &pages, memory, budget, kHeaderBytes, start());
  }

  StepKind kind;
  RunShape shape;
  PageTable pages;
  MemoryBudget budget;
  MemoryPlan memory;
  std::unique_ptr<DryRun> run;
};

}  // namespace pagoda
