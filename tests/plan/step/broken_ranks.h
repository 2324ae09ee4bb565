// Recorded plans of several ranks that tests break on purpose, for the validators of all to see.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "tests/plan/step/broken_plan.h"
#include "tests/testing/plan/checked_ranks.h"

namespace pagoda {

// Two steps of four devices at the smallest budgets: the tasks of all ranks, each with what the
// rank that runs it made of it.
struct MergedRun {
  explicit MergedRun(const StepKind& kind, ExchangeOrder exchange = ExchangeOrder::kFlat,
                     const std::vector<int>& device_rank = {0, 1, 2, 2}) {
    std::mt19937 random(11);
    RunShape shape;
    do {
      shape = random_shape(random, 4);
    } while (shape.num_layers < 3 || shape.num_experts < 6 || !shape.is_moe[1] ||
             (kind.guest_layers > 0 && shape.moe_layers() < 3) || shape.sums.shards < 3 ||
             std::ssize(shape.attending_devices()) < 3 || (kind.zebra && shape.sums.chunks == 1) ||
             (kind.sharing != Sharing::kRows && shape.sums.expert_shards == 1));
    shape.device_rank = device_rank;
    shape.exchange = exchange;
    ranks = std::make_unique<CheckedRanks>(shape, kind, 0.0);
    for (int step = 0; step < 2; ++step) {
      ranks->each([](CheckedRank& rank) {
        rank.records = true;
        rank.own.clear();
        rank.all.clear();
      });
      ranks->train(random_routing(random, shape), false);
      steps.push_back(merge());
    }
  }
  // What a rank guesses stands before the next task of that rank.
  Step merge() {
    Step merged;
    auto& of = ranks->ranks();
    const auto take = [&](CheckedRank& rank) {
      merged.push_back(std::move(rank.own.front()));
      rank.own.pop_front();
    };
    for (const Task& task : of[0]->all) {
      if (is_guess(task)) continue;
      CheckedRank& rank = *of[static_cast<size_t>(ranks->shape().rank_of(task.device))];
      while (is_guess(rank.own.front().task)) take(rank);
      take(rank);
    }
    return merged;
  }
  PlanFaults faults(const Steps& of_steps) {
    PlanFaults found;
    ranks->each([&](CheckedRank& rank) {
      const auto validator = rank.validator();
      for (const Step& step : of_steps) {
        validator->begin_step();
        for (const PlacedTask& t : step) {
          if (runs_here(rank.shape, t.task)) {
            validator->check(t.task, t.moves, t.slots);
          } else {
            validator->see(t.task);
          }
        }
        validator->end_step(true);
      }
      validator->begin_step();
      found.insert(found.end(), validator->faults().begin(), validator->faults().end());
    });
    return found;
  }
  std::unique_ptr<CheckedRanks> ranks;
  Steps steps;
};

// `mutate` breaks the second step.
inline void expect_broken(PlanRule rule, const char* what, const std::function<void(Step&)>& mutate,
                          MergedRun& good) {
  SCOPED_TRACE(what);
  Steps broken = good.steps;
  mutate(broken[1]);
  expect_found(rule, good.faults(broken));
}

}  // namespace pagoda
