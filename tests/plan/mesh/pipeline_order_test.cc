// Orders of pipeline stages, run by a simulation here that knows only what waits for what: they
// end, keep as many microbatches as said, and take as long; run_pipeline has the same ends.
#include "plan/mesh/pipeline_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

namespace pagoda {
namespace {

constexpr PipelineSchedule kGpipe = PipelineSchedule::kGpipe;
constexpr PipelineSchedule k1f1b = PipelineSchedule::kOneForwardOneBackward;

using Orders = std::vector<std::vector<PipelineWork>>;  // [stage]

const std::vector<std::pair<int64_t, int64_t>> kTimes = {{1, 2}, {3, 3}, {5, 2}, {1, 7}};

Orders orders(PipelineSchedule schedule, int64_t stages, int64_t microbatches) {
  Orders all;
  for (int64_t i = 0; i < stages; ++i) {
    all.push_back(stage_order(schedule, stages, i, microbatches).take());
  }
  return all;
}

struct Outcome {
  int64_t end = 0;
  std::vector<int64_t> in_flight;  // [stage], the most
};

// Times of whole units: [stage] of a forward and of a backward.
Outcome simulate(const Orders& orders, int64_t microbatches, const std::vector<int64_t>& forward,
             const std::vector<int64_t>& backward) {
  const size_t stages = orders.size();
  const std::vector<int64_t> none(static_cast<size_t>(microbatches), -1);
  std::vector<std::vector<int64_t>> forward_end(stages, none), backward_end(stages, none);
  std::vector<size_t> next(stages, 0);
  std::vector<int64_t> free_at(stages, 0), in_flight(stages, 0);
  Outcome run;
  run.in_flight.assign(stages, 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t i = 0; i < stages; ++i) {
      if (next[i] == orders[i].size()) continue;
      const PipelineWork work = orders[i][next[i]];
      const auto m = static_cast<size_t>(work.microbatch);
      const bool is_forward = work.phase == Phase::kForward;
      int64_t ready = 0;
      if (is_forward && i > 0) ready = forward_end[i - 1][m];
      if (!is_forward) ready = i + 1 < stages ? backward_end[i + 1][m] : forward_end[i][m];
      if (ready < 0 || (!is_forward && forward_end[i][m] < 0)) continue;
      const int64_t end = std::max(ready, free_at[i]) + (is_forward ? forward[i] : backward[i]);
      (is_forward ? forward_end : backward_end)[i][m] = free_at[i] = end;
      in_flight[i] += is_forward ? 1 : -1;
      run.in_flight[i] = std::max(run.in_flight[i], in_flight[i]);
      run.end = std::max(run.end, end);
      ++next[i];
      moved = true;
    }
  }
  for (size_t i = 0; i < stages; ++i) EXPECT_EQ(next[i], orders[i].size()) << "stage " << i;
  return run;
}

double end_of(const PipelineRun& run) {
  double end = 0;
  for (size_t i = 0; i < run.stages.size(); ++i) end = std::max(end, run.end_s(i));
  return end;
}

TEST(PipelineOrder, HasEachMicrobatchOnceForwardAndThenBackward) {
  for (const PipelineSchedule schedule : {kGpipe, k1f1b}) {
    for (int64_t stages = 1; stages <= 6; ++stages) {
      for (int64_t microbatches = 1; microbatches <= 9; ++microbatches) {
        for (const auto& order : orders(schedule, stages, microbatches)) {
          ASSERT_EQ(order.size(), static_cast<size_t>(2 * microbatches));
          int64_t forwards = 0, backwards = 0;
          for (const PipelineWork& work : order) {
            int64_t& count = work.phase == Phase::kForward ? forwards : backwards;
            EXPECT_EQ(work.microbatch, count++);
            EXPECT_LE(backwards, forwards);
          }
          EXPECT_EQ(forwards, backwards);
        }
      }
    }
  }
}

TEST(PipelineOrder, KeepsAndTakesWhatTheFormulasSay) {
  for (const PipelineSchedule schedule : {kGpipe, k1f1b}) {
    for (int64_t stages = 1; stages <= 8; ++stages) {
      for (int64_t microbatches = 1; microbatches <= 20; ++microbatches) {
        for (const auto& [tf, tb] : kTimes) {
          SCOPED_TRACE(testing::Message() << "PP " << stages << " M " << microbatches << " tf "
                                          << tf << " tb " << tb);
          const auto n = static_cast<size_t>(stages);
          const Outcome run = simulate(orders(schedule, stages, microbatches), microbatches,
                                   std::vector<int64_t>(n, tf), std::vector<int64_t>(n, tb));
          EXPECT_EQ(run.end, (microbatches + stages - 1) * (tf + tb));
          const std::vector<StageSeconds> seconds(
              n, {static_cast<double>(tf), static_cast<double>(tb)});
          EXPECT_EQ(end_of(run_pipeline(schedule, seconds, microbatches).take()),
                    static_cast<double>(run.end));
          for (int64_t i = 0; i < stages; ++i) {
            const int64_t most = most_in_flight(schedule, stages, i, microbatches);
            EXPECT_EQ(run.in_flight[static_cast<size_t>(i)], most);
            EXPECT_EQ(most, schedule == kGpipe ? microbatches
                                               : std::min(stages - i, microbatches));
          }
        }
      }
    }
  }
}

// Whole units, so that all ends are exact.
TEST(PipelineOrder, OfUnequalStagesIsBetweenItsBounds) {
  double closest = 0, longest = 1e9;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto stages = static_cast<int64_t>(1 + random() % 6);
    const auto microbatches = static_cast<int64_t>(1 + random() % 12);
    std::vector<int64_t> forward, backward;
    std::vector<StageSeconds> seconds;
    for (int64_t i = 0; i < stages; ++i) {
      forward.push_back(static_cast<int64_t>(1 + random() % 20));
      backward.push_back(static_cast<int64_t>(1 + random() % 40));
      seconds.push_back({static_cast<double>(forward.back()),
                         static_cast<double>(backward.back())});
    }
    const auto schedule = random() % 2 == 0 ? kGpipe : k1f1b;
    const Orders all = orders(schedule, stages, microbatches);
    const Outcome own = simulate(all, microbatches, forward, backward);
    const PipelineRun run = run_pipeline(schedule, seconds, microbatches).take();
    EXPECT_EQ(end_of(run), static_cast<double>(own.end));
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(run.stages[i].size(), all[i].size());
      double before_s = 0;
      for (size_t p = 0; p < all[i].size(); ++p) {
        const PipelinePiece& piece = run.stages[i][p];
        const bool is_forward = all[i][p].phase == Phase::kForward;
        EXPECT_EQ(piece.work.phase, all[i][p].phase);
        EXPECT_EQ(piece.work.microbatch, all[i][p].microbatch);
        EXPECT_GE(piece.start_s, before_s);
        EXPECT_EQ(piece.end_s - piece.start_s,
                  is_forward ? seconds[i].forward_s : seconds[i].backward_s);
        before_s = piece.end_s;
      }
    }
    // No stage begins before the forwards on the way to it, nor ends after the backwards from it.
    int64_t least = 0, way = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      least = std::max(least, way + microbatches * (forward[i] + backward[i]));
      way += forward[i] + backward[i];
    }
    EXPECT_GE(own.end, least);
    const int64_t most = (microbatches + stages - 1) *
                         (*std::max_element(forward.begin(), forward.end()) +
                          *std::max_element(backward.begin(), backward.end()));
    EXPECT_LE(own.end, most);
    closest = std::max(closest, static_cast<double>(own.end) / static_cast<double>(most));
    longest = std::min(longest, static_cast<double>(least) / static_cast<double>(own.end));
  }
  std::printf("at most %.3f of what slowest times give; the lower bound is at least %.3f of it\n",
              closest, longest);
}

TEST(PipelineOrder, RefusesNonsense) {
  EXPECT_EQ(stage_order(k1f1b, 0, 0, 4).status().code(), Exit::kUsage);
  EXPECT_EQ(stage_order(k1f1b, 2, 2, 4).status().code(), Exit::kUsage);
  EXPECT_EQ(stage_order(k1f1b, 2, -1, 4).status().code(), Exit::kUsage);
  EXPECT_EQ(stage_order(kGpipe, 2, 0, 0).status().code(), Exit::kUsage);
  const std::vector<StageSeconds> two = {{1, 2}, {1, 2}};
  EXPECT_EQ(run_pipeline(k1f1b, {}, 1).status().code(), Exit::kUsage);
  EXPECT_EQ(run_pipeline(k1f1b, two, 0).status().code(), Exit::kUsage);
  EXPECT_EQ(run_pipeline(k1f1b, std::vector<StageSeconds>{{std::nan(""), 1}}, 1).status().code(),
            Exit::kUsage);
  EXPECT_EQ(run_pipeline(kGpipe, std::vector<StageSeconds>{{1, -2}}, 1).status().code(),
            Exit::kUsage);
}

}  // namespace
}  // namespace pagoda
