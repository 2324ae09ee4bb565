// Recorded plans that tests break on purpose, for the validator to see.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "tests/testing/plan/planned_case.h"

namespace pagoda {

using Step = std::vector<PlacedTask>;
using Steps = std::vector<Step>;

// Two steps in which every layer has experts with and without tokens, at the smallest budgets
// unless there is more room.
struct Recorded {
  explicit Recorded(bool eager, int64_t group_blocks = 1, int devices = 1, bool zebra = false,
                    int stages = 1, bool in_place = false, bool in_parts = false,
                    int64_t kept_rows = 0, bool in_order = false, double room = 0) {
    std::mt19937 random(7);
    StepKind kind;
    kind.eager = eager;
    kind.group_blocks = group_blocks;
    kind.kept_rows = kept_rows;
    kind.zebra = zebra;
    kind.lags = {1, 1, 1};
    kind.stages = stages;
    kind.order = PipelineOrder::kOneForwardOneBackward;
    kind.options.in_place = in_place;
    kind.experts_in_order = in_order;
    do {
      do {
        made = std::make_unique<PlannedCase>(random, devices, kind, in_place ? 0.4 : room);
      } while (made->shape.num_layers < 3 || made->shape.num_experts < 5 ||
               !made->shape.is_moe[1] || made->shape.microbatches < 2 ||
               made->shape.sums.shards < 2 || ((zebra || stages > 1) && made->shape.rounds() < 2) ||
               std::ssize(made->shape.attending_devices()) < devices ||
               made->shape.in_place != in_place);
      record();
    } while (in_parts && std::none_of(steps[1].begin(), steps[1].end(),
                                      [](const PlacedTask& t) { return t.task.first_byte > 0; }));
  }
  void record() {
    steps.clear();
    Replay replay(&made->pages, made->start());
    for (int step = 0; step < 2; ++step) {
      std::vector<std::vector<int64_t>> layers(made->shape.num_layers);
      for (int64_t l = 0; l < made->shape.num_layers; ++l) {
        if (!made->shape.is_moe[l]) continue;
        layers[l].assign(made->shape.num_experts, 2 * made->shape.row_block - 1);
        layers[l][static_cast<size_t>(step)] = 0;
      }
      Step& placed = steps.emplace_back();
      made->run->train(Routing(made->shape.microbatches, layers), [&](const StepPiece& piece) {
        for (const Task& task : piece.tasks) placed.push_back(place(replay, task));
      });
    }
  }
  PlanFaults faults(const Steps& broken) const {
    PlanValidator validator = made->validator();
    for (const auto& step : broken) {
      validator.begin_step();
      for (const PlacedTask& t : step) validator.check(t.task, t.moves, t.slots);
      validator.end_step(true);
    }
    return validator.faults();
  }
  std::unique_ptr<PlannedCase> made;
  Steps steps;
};

// The n-th task of a step for which `is` holds.
template <typename Is>
size_t find(const Step& step, Is&& is, int n = 0) {
  for (size_t i = 0; i < step.size(); ++i) {
    if (is(step[i]) && n-- == 0) return i;
  }
  CHECK(false, "the plan has no such task");
}

// The same of the second step.
template <typename Is>
size_t find(const Steps& steps, Is&& is, int n = 0) {
  return find(steps[1], is, n);
}

inline auto of_kind(TaskKind kind) {
  return [kind](const PlacedTask& t) { return t.task.kind == kind; };
}

inline auto with_move(Move::Kind kind) {
  return [kind](const PlacedTask& t) {
    return std::any_of(t.moves.begin(), t.moves.end(),
                       [&](const Move& move) { return move.kind == kind; });
  };
}

// An optimizer's task that has a gradient, as against one that applies old updates.
inline bool consumes(const PlacedTask& t) {
  return t.task.kind == TaskKind::kAdam && t.task.num_uses == 3;
}

inline void erase(Step& step, size_t i) { step.erase(step.begin() + static_cast<int64_t>(i)); }
inline void erase(Steps& steps, size_t i) { erase(steps[1], i); }

inline void repeat(Steps& steps, size_t i) {
  PlacedTask again = steps[1][i];
  again.moves.clear();
  steps[1].insert(steps[1].begin() + static_cast<int64_t>(i) + 1, again);
}

inline void expect_found(PlanRule rule, const PlanFaults& faults) {
  const bool found = std::any_of(faults.begin(), faults.end(),
                                 [&](const PlanFault& fault) { return fault.rule == rule; });
  EXPECT_TRUE(found) << "the first fault found is " << first_fault(faults);
}

inline void expect_broken(PlanRule rule, const char* what,
                          const std::function<void(Steps&)>& mutate, const Recorded& good) {
  SCOPED_TRACE(what);
  ASSERT_EQ(first_fault(good.faults(good.steps)), "");
  Steps broken = good.steps;
  mutate(broken);
  expect_found(rule, good.faults(broken));
}

inline void expect_broken(PlanRule rule, const char* what,
                          const std::function<void(Steps&)>& mutate, bool eager = false) {
  static const Recorded recorded[2] = {Recorded(false), Recorded(true)};
  expect_broken(rule, what, mutate, recorded[eager]);
}

}  // namespace pagoda
