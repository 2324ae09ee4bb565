#include "plan/sums/sum_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace pagoda {
namespace {

using Kind = SumStep::Kind;

int64_t first_of(const std::string& text) {
  return std::stoll(text.substr(text.find_first_not_of('(')));
}

// Carries out the plan with texts for numbers: what it leaves at the home, written out. Both orders
// of two numbers that are added give the same bits, so that of the smaller microbatch stands first.
// Each buffer must have what a step reads, and nothing that a step overwrites. `most`: buffers that
// are in use at once, at most.
std::string carry_out(const SumPlan& plan, int home, int64_t most) {
  std::map<std::pair<int, int64_t>, std::string> held;
  const auto take = [&](int device, int64_t buffer) {
    const auto at = held.find({device, buffer});
    EXPECT_NE(at, held.end()) << "device " << device << " has nothing in buffer " << buffer;
    const std::string text = at == held.end() ? "" : at->second;
    held.erase({device, buffer});
    return text;
  };
  const auto put = [&](int device, int64_t buffer, const std::string& text) {
    EXPECT_TRUE(held.emplace(std::pair{device, buffer}, text).second) << "overwritten";
  };
  for (const SumStep& step : plan.steps) {
    EXPECT_LE(std::ssize(held), most);
    const std::string microbatch = std::to_string(step.microbatch);
    if (step.kind == Kind::kChain) {
      put(step.device, step.buffer,
          step.first ? microbatch : take(step.device, step.buffer) + "+" + microbatch);
    } else if (step.kind == Kind::kMove) {
      EXPECT_NE(step.device, step.to);
      put(step.to, step.other, take(step.device, step.buffer));
    } else {
      const std::string a = take(step.device, step.buffer), b = take(step.device, step.other);
      const bool ordered = first_of(a) < first_of(b);
      put(step.device, step.buffer, "(" + (ordered ? a + "," + b : b + "," + a) + ")");
    }
  }
  EXPECT_EQ(held.size(), 1u) << "something is left";
  return take(home, plan.root);
}

// A device's buffers are numbered.
std::string carry_out(const SumPlan& plan, int home) {
  for (const SumStep& step : plan.steps) {
    EXPECT_LT(std::max(step.buffer, step.other), plan.buffers);
  }
  return carry_out(plan, home, INT64_MAX);
}

std::string sum_of(const SumShape& sums, int64_t microbatches) {
  const SumPlan plan = plan_sums(sums, {}, microbatches, 0);
  EXPECT_EQ(plan.root, 0);
  return carry_out(plan, 0);
}

TEST(SumPlan, OneShardIsAChain) { EXPECT_EQ(sum_of({1, 1}, 4), "0+1+2+3"); }

TEST(SumPlan, ShardsAreTheLeavesOfABinaryTree) {
  EXPECT_EQ(sum_of({1, 2}, 4), "(0+1,2+3)");
  EXPECT_EQ(sum_of({1, 4}, 4), "((0,1),(2,3))");
  EXPECT_EQ(sum_of({1, 8}, 8), "(((0,1),(2,3)),((4,5),(6,7)))");
}

TEST(SumPlan, AShardWithoutNeighbourGoesUpAlone) {
  EXPECT_EQ(sum_of({1, 3}, 3), "((0,1),2)");
  EXPECT_EQ(sum_of({1, 5}, 5), "(((0,1),(2,3)),4)");
  EXPECT_EQ(sum_of({1, 6}, 6), "(((0,1),(2,3)),(4,5))");
  EXPECT_EQ(sum_of({1, 7}, 7), "(((0,1),(2,3)),((4,5),6))");
}

// Two chunks of four columns: microbatches 4..7 lie under 0..3.
TEST(SumPlan, AShardHasTheSameColumnsOfEveryChunk) {
  EXPECT_EQ(sum_of({2, 2}, 8), "(0+1+4+5,2+3+6+7)");
  EXPECT_EQ(sum_of({2, 4}, 8), "((0+4,1+5),(2+6,3+7))");
  EXPECT_EQ(sum_of({4, 1}, 4), "0+1+2+3");
}

TEST(SumPlan, BuffersGrowWithTheLogarithmOfTheShards) {
  const std::map<int64_t, int64_t> expected = {{1, 1}, {2, 2}, {3, 2}, {4, 3},
                                               {5, 3}, {7, 3}, {8, 4}, {16, 5}};
  for (const auto& [shards, buffers] : expected) {
    EXPECT_EQ(plan_sums({1, shards}, {}, shards, 0).buffers, buffers) << shards;
  }
}

int64_t moves(const SumPlan& plan, int from, int to) {
  int64_t count = 0;
  for (const SumStep& step : plan.steps) {
    count += step.kind == Kind::kMove && step.device == from && step.to == to;
  }
  return count;
}

// Half of the shards each: the device that is not the home sends its sum, once.
TEST(SumPlan, TheHomeReceivesOneSumOfAnotherDevice) {
  const std::vector<int> halves = {0, 0, 1, 1};
  for (const int home : {0, 1}) {
    const SumPlan plan = plan_sums({1, 4}, halves, 8, home);
    EXPECT_EQ(carry_out(plan, home), "((0+1,2+3),(4+5,6+7))");
    EXPECT_EQ(moves(plan, 1 - home, home), 1);
    EXPECT_EQ(moves(plan, home, 1 - home), 0);
  }
}

// Devices take turns: no device's first microbatch stands behind another's last.
TEST(SumPlan, DevicesTakeTheirMicrobatchesByTurns) {
  const SumPlan plan = plan_sums({1, 4}, {0, 0, 1, 1}, 8, 0);
  std::vector<int> devices;
  for (const SumStep& step : plan.steps) {
    if (step.kind == Kind::kChain) devices.push_back(step.device);
  }
  EXPECT_EQ(devices, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
}

// Whoever attends to which shards, and wherever the home is, the sum is the one of one device.
TEST(SumPlan, RandomDealsGiveTheSumOfOneDevice) {
  std::mt19937 random(11);
  int64_t moved = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const auto shards = static_cast<int64_t>(1 + random() % 9);
    const auto chunks = static_cast<int64_t>(1 + random() % 3);
    const int64_t microbatches = chunks * shards * static_cast<int64_t>(1 + random() % 3);
    const SumShape sums{chunks, shards};
    std::vector<int> deal;
    for (int64_t i = 0; i < shards; ++i) deal.push_back(static_cast<int>(random() % 4));
    const int home = static_cast<int>(random() % 4);
    const SumPlan plan = plan_sums(sums, deal, microbatches, home);
    EXPECT_EQ(carry_out(plan, home), sum_of(sums, microbatches)) << "trial " << trial;
    for (const SumStep& step : plan.steps) moved += step.kind == Kind::kMove;
  }
  EXPECT_GT(moved, 2000);
}

// The tree over the shards [first, end) of a level, of cells in which an expert has rows.
std::string tree_of(const std::vector<uint8_t>& present, int64_t shards, int64_t width,
                    int64_t index) {
  if (width == 1) {
    std::string chain;
    for (int64_t cell = index; cell < std::ssize(present); cell += shards) {
      if (present[static_cast<size_t>(cell)] == 0) continue;
      chain += (chain.empty() ? "" : "+") + std::to_string(cell);
    }
    return index < shards ? chain : "";
  }
  const std::string a = tree_of(present, shards, width / 2, 2 * index);
  const std::string b = tree_of(present, shards, width / 2, 2 * index + 1);
  if (a.empty() || b.empty()) return a + b;
  return "(" + (first_of(a) < first_of(b) ? a + "," + b : b + "," + a) + ")";
}

// Every set of cells, of up to nine shards and three chunks.
TEST(SumPlan, AnExpertHasTheTreeOfItsShards) {
  for (const auto& [chunks, most] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 9}, {2, 5}, {3, 3}}) {
    for (int64_t shards = 1; shards <= most; ++shards) {
      const SumShape sums{chunks, shards, shards};
      for (uint32_t set = 1; set < 1u << sums.cells(); ++set) {
        std::vector<uint8_t> present;
        for (int64_t cell = 0; cell < sums.cells(); ++cell) present.push_back(set >> cell & 1);
        const SumPlan plan = plan_expert_sum(sums, present);
        ASSERT_EQ(carry_out(plan, 0, expert_sum_buffers(sums)), tree_of(present, shards, 16, 0))
            << chunks << " x " << shards << ", set " << set;
        bool added = false;
        for (const SumStep& step : plan.steps) {
          EXPECT_TRUE(chunks == 1 || !added || step.kind == Kind::kAdd) << "adds before it knows";
          added = added || step.kind == Kind::kAdd;
          EXPECT_LT(std::max(step.buffer, step.other), shards);
        }
      }
    }
  }
}

// The same tree wherever each shard's rows are computed, and the whole at the home. Every
// assignment of up to five shards to three devices, and every home.
TEST(SumPlan, AnExpertHasItsTreeOnSeveralDevices) {
  const auto most_on_a_device = [](const SumPlan& plan) {
    std::map<int, int64_t> held;
    int64_t most = 0;
    for (const SumStep& step : plan.steps) {
      held[step.device] += step.kind == Kind::kChain ? step.first : -1;
      if (step.kind == Kind::kMove) ++held[step.to];
      for (const auto& [device, count] : held) most = std::max(most, count);
    }
    return most;
  };
  for (const int64_t chunks : {1, 2}) {
    for (int64_t shards = 1; shards <= (chunks == 1 ? 5 : 3); ++shards) {
      const SumShape sums{chunks, shards, shards};
      const int assignments = static_cast<int>(std::pow(3, shards));
      for (uint32_t set = 1; set < 1u << sums.cells(); ++set) {
        std::vector<uint8_t> present;
        for (int64_t cell = 0; cell < sums.cells(); ++cell) present.push_back(set >> cell & 1);
        const std::string tree = tree_of(present, shards, 16, 0);
        for (int i = 0; i < 3 * assignments; ++i) {
          std::vector<int> device;
          for (int64_t s = 0, left = i / 3; s < shards; ++s, left /= 3) {
            device.push_back(static_cast<int>(left % 3));
          }
          const int home = i % 3;
          const SumPlan plan = plan_expert_sum(sums, present, device, home);
          ASSERT_EQ(carry_out(plan, home, INT64_MAX), tree)
              << chunks << " x " << shards << ", set " << set << ", devices " << i;
          EXPECT_LE(most_on_a_device(plan), expert_sum_buffers(sums, true));
          for (const SumStep& step : plan.steps) {
            if (step.kind != Kind::kChain) continue;
            EXPECT_EQ(step.device, device[static_cast<size_t>(step.microbatch % shards)]);
          }
        }
      }
    }
  }
}

// Eight shards of four devices, at home on the first, where the third's rows are a guest's and the
// others' are not: one sum travels, of both of the guest's shards.
TEST(SumPlan, AGuestSendsWhatItHasOfTheTree) {
  const SumShape sums{1, 8, 8};
  const SumPlan plan = plan_expert_sum(sums, std::vector<uint8_t>(8, 1), {0, 0, 0, 0, 2, 2, 0, 0});
  EXPECT_EQ(carry_out(plan, 0, INT64_MAX), "(((0,1),(2,3)),((4,5),(6,7)))");
  const auto moves = std::count_if(plan.steps.begin(), plan.steps.end(),
                                   [](const SumStep& s) { return s.kind == Kind::kMove; });
  EXPECT_EQ(moves, 1);
}

// One sum of a single shard; of one chunk the counter's; of several chunks one for each shard.
TEST(SumPlan, SumsOfAnExpertAtATime) {
  const auto most = [](int64_t chunks, int64_t shards) {
    return expert_sum_buffers({chunks, shards, shards});
  };
  EXPECT_EQ(expert_sum_buffers({3, 4, 1}), 1);
  EXPECT_EQ(most(1, 2), 2);
  EXPECT_EQ(most(1, 4), 3);
  EXPECT_EQ(most(1, 8), 4);
  EXPECT_EQ(most(2, 4), 4);
  EXPECT_EQ(most(3, 8), 8);
  EXPECT_EQ(expert_sum_buffers({1, 8, 8}, true), 5);
}

}  // namespace
}  // namespace pagoda
