// Steps of several ranks, each with devices, a host and a page file of its own: every rank makes
// the same tasks, and a validator of each sees them all, with what the rank's residency makes of
// its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "tests/testing/plan/planned_case.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {

// Random runs that a test of such steps tries.
inline constexpr uint32_t kAssignments = kUnderSanitizer ? 100 : 400;

// A task that a rank makes for itself alone.
inline bool is_guess(const Task& task) { return task.kind == TaskKind::kPrefetch; }

inline bool computes_experts(const Task& task) {
  return task.kind == TaskKind::kExpert || task.kind == TaskKind::kExpertBackward;
}

// Weights of an expert come to a device of another rank than its home's.
inline bool comes_to_guest(const Task& task) {
  return task.kind == TaskKind::kReceivePage && task.expert >= 0;
}

// One rank of a run: its plan, and what its residency makes of it.
struct CheckedRank {
  CheckedRank(const RunShape& of_all, int rank, const StepKind& kind, double room,
              const RoomOfRanks& of_ranks);
  // Once all ranks agree where updates are made, and whether rows are read in place.
  void begin();
  Residency start() const { return all_on_disk(shape, pages, memory.classes); }
  std::unique_ptr<PlanValidator> validator() const;
  // Places the rank's tasks and checks all. Appends all tasks but guesses.
  void take(const StepPiece& piece);
  void discard_gradients();

  RunShape shape;
  PageTable pages;
  MemoryBudget budget;
  MemoryPlan memory;
  bool skip_untouched = false;
  std::unique_ptr<DryRun> run;
  std::unique_ptr<Replay> replay;
  std::unique_ptr<PlanValidator> made;
  TaskList certain;  // tasks of a step
  bool records = false;
  std::deque<PlacedTask> own;  // if it records
  TaskList all;
};

class CheckedRanks {
 public:
  // A random shape, whose devices are dealt to the ranks.
  CheckedRanks(std::mt19937& random, int ranks, int devices, const StepKind& kind, double room);
  CheckedRanks(const RunShape& shape, const StepKind& kind, double room);

  using Each = std::function<void(CheckedRank&)>;
  void each(const Each& act);
  // Steps of all ranks, which fail the test where two ranks' tasks differ.
  void train(const Routing& routing, bool skip);
  void evaluate(const Routing& routing);
  // A pass of generation.
  void generate(const Routing& routing);

  const RunShape& shape() const { return shape_; }
  std::vector<std::unique_ptr<CheckedRank>>& ranks() { return ranks_; }
  void expect_valid();

 private:
  void make(const StepKind& kind, double room);
  void step(const Each& act, bool complete);

  RunShape shape_;
  std::vector<std::unique_ptr<CheckedRank>> ranks_;
};

}  // namespace pagoda
