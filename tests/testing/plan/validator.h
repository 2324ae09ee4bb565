// Checks a plan and what a residency makes of it, task by task, against rules stated apart from the
// code that makes them (plan_fault.h): what exists before it is read, what lies in which slot, what
// is moved how often. For tests, on real plans and on plans broken on purpose.
//
//   PlanValidator validator(&shape, &pages, memory, budget, header_bytes, replay.residency());
//   validator.begin_step();
//   ... for each task: placed = replay.place(task); validator.check(task, placed.moves, ...) ...
//   validator.end_step();
//   EXPECT_TRUE(validator.faults().empty());
//
// With several ranks each has a validator, which sees the tasks of all in their order, and its own
// with what its residency made of them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "plan/memory/memory_plan.h"
#include "tests/testing/plan/order_check.h"
#include "tests/testing/plan/place_check.h"
#include "tests/testing/plan/plan_fault.h"
#include "tests/testing/plan/rank_check.h"

namespace pagoda {

class PlanValidator {
 public:
  // `shape` and `pages` are not owned. `header_bytes`: room before each host slot's payload, as for
  // plan_memory.
  PlanValidator(const RunShape* shape, const PageTable* pages, const MemoryPlan& memory,
                const MemoryBudget& budget, int64_t header_bytes, const Residency& start);
  PlanValidator(const PlanValidator&) = delete;  // its parts write into its faults

  void begin_step();
  // One task of RunShape::rank, with the moves before it and the slots of its uses. Its places are
  // those of the run.
  void check(const Task& task, std::span<const Move> moves, std::span<const int32_t> slots);
  // One task of another rank.
  void see(const Task& task);
  // A page's content is given up outside of any task: the gradients of a step that is skipped.
  void discard(PageId page);
  // `complete`: the step had a backward; each gradient it computed must have been made.
  void end_step(bool complete);

  const PlanFaults& faults() const { return faults_; }

 private:
  struct Counts {
    int64_t fetches = 0, uploads = 0;  // by demand
  };

  void fault(PlanRule rule, PageId page, const char* what);
  void check_budget(const MemoryPlan& memory, const MemoryBudget& budget, int64_t header_bytes);
  void check_gradient_uses(const Task& task);
  void check_layer_buffer_uses(const Task& task);
  void check_freshness(const Task& task);
  void count_moves(const Task& task, std::span<const Move> moves);
  bool stays_for_chunks(int64_t record, int seat, Phase phase) const;
  int64_t most_expert_reads(int64_t record, Phase phase) const;
  int64_t most_reads(PageId page, Phase phase);

  const RunShape& shape_;
  const PageTable& pages_;
  PlanFaults faults_;
  PlaceCheck places_;
  OrderCheck order_;
  RankCheck ranks_;
  std::vector<SlotClass> slots_;
  std::vector<PageKind> kind_;                          // [page]
  std::map<std::pair<PageId, Phase>, Counts> demand_;   // of the step
  std::map<std::pair<PageId, Phase>, Counts> prefetched_;
  std::map<int64_t, int64_t> updates_;                  // of the step: kAdam tasks by record
  std::set<int64_t> made_;                              // of the step: records with a gradient
  std::map<int64_t, int64_t> sent_;                     // of the step: kSendPage tasks by record
  std::set<PageId> waiting_;      // gradients that exist
  std::set<PageId> waited_;       // since before the step began
};

}  // namespace pagoda
