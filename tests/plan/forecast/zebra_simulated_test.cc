// The fast clock of actions (plan/zebra/action_clock.h) against the simulator's time of the tasks
// that a run makes of the same actions; HeterMoE's Figure 6 from both; and the clock of the paper's
// figures where all chunks go through a layer together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "plan/forecast/simulator.h"
#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"
#include "plan/step/zebra_actions.h"
#include "plan/zebra/zebra_search.h"
#include "tests/testing/hetermoe/paper_clock.h"

namespace pagoda {
namespace {

constexpr int64_t kRows = 16;  // of an expert and a microbatch

// Two kinds of devices and what they do: those of the first kind attend.
struct Case {
  std::vector<uint8_t> is_moe;
  int chunks = 1;
  bool zebra = true;
  Lags lags = {};
  int faster = 1, slower = 1;  // of each stage
  int stages = 1;
  PipelineOrder order = PipelineOrder::kBreadthFirst;
  bool all_attend = false;  // the slower ones too
  int64_t experts = 6, blocks = 16;
  std::vector<int64_t> moved;  // [layer] experts of a layer that the faster devices have
  PassExtent extent = PassExtent::kStep;
  // Seconds of a chunk on a device; of all experts; of an expert's rows on their way.
  PassSeconds attention, slower_attention, faster_experts, slower_experts;
  double head_s = 0, slower_head_s = 0, row_s = 0, latency_s = 0;

  int of_stage() const { return faster + slower; }
  int devices() const { return stages * of_stage(); }
  int attending() const { return all_attend ? of_stage() : faster; }
};

RunShape shape_of(const Case& c) {
  RunShape shape;
  shape.num_layers = std::ssize(c.is_moe);
  shape.is_moe = c.is_moe;
  shape.num_experts = c.experts;
  shape.hidden_size = 16;
  shape.experts_per_token = 1;
  shape.training = c.extent == PassExtent::kStep;
  shape.microbatches = c.chunks * c.attending();
  shape.sums.chunks = c.chunks;
  shape.sums.shards = c.attending();
  shape.zebra = c.zebra;
  shape.lags = c.lags;
  shape.microbatch_tokens = c.experts * kRows;
  shape.row_block = kRows * c.attending();
  shape.group_blocks = c.blocks;
  shape.devices = c.devices();
  shape.stages = divide_into_stages(c.stages, c.order, shape.num_layers, shape.devices);
  for (int stage = 0; stage < c.stages; ++stage) {
    for (int d = 0; d < c.attending(); ++d) shape.shard_device.push_back(stage * c.of_stage() + d);
  }
  shape.records.push_back({.num_elements = 1});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const int first = shape.stage_of(l) * c.of_stage();
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({1, l});
    shape.records.back().device = first;
    if (!c.is_moe[static_cast<size_t>(l)]) continue;
    const int64_t moved = c.moved[static_cast<size_t>(l)];
    for (int64_t e = 0; e < c.experts; ++e) {
      const int64_t kept = c.experts - moved;
      const int64_t device = e < kept ? c.faster + e % c.slower : (e - kept) % c.faster;
      shape.records.push_back({1, l, e, first + static_cast<int>(device)});
    }
  }
  shape.records.push_back(
      {.num_elements = 1, .device = shape.stage_of(shape.num_layers) * c.of_stage()});
  return shape;
}

// A device's seconds for one expert's row.
double row_s(const Case& c, double experts_s) {
  return experts_s / static_cast<double>(c.experts * kRows * c.attending());
}

MachineProfile profile_of(const Case& c) {
  MachineProfile profile;
  profile.cores = 2 * c.devices();
  for (int d = 0; d < c.devices(); ++d) {
    const bool faster = d % c.of_stage() < c.faster;
    const PassSeconds& attention = faster ? c.attention : c.slower_attention;
    const PassSeconds& experts = faster ? c.faster_experts : c.slower_experts;
    TaskCosts costs;
    const auto of = [&](TaskKind kind) -> Cost& { return costs[static_cast<size_t>(kind)]; };
    of(TaskKind::kAttention).fixed_s = attention.forward_s;
    of(TaskKind::kAttentionBackward).fixed_s = attention.backward_s;
    of(TaskKind::kHead).fixed_s = faster ? c.head_s : c.slower_head_s;
    of(TaskKind::kExpert).unit_s = row_s(c, experts.forward_s);
    of(TaskKind::kExpertBackward).unit_s = row_s(c, experts.backward_s);
    profile.device_tasks.push_back(costs);
  }
  profile.wire = {c.latency_s, c.row_s / static_cast<double>(kRows * 32), 0};
  return profile;
}

double simulated_s(const Case& c) {
  const RunShape shape = shape_of(c);
  const PageTable pages(shape);
  const MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(shape.devices, 0)};
  const MemoryPlan memory = plan_memory(shape, pages, budget, 0).take();
  const StepPlan plan(shape, pages, {.training = shape.training});
  StepSchedule schedule(&plan, nullptr, nullptr, c.extent);
  Simulator simulator(&shape, &pages, profile_of(c), all_on_disk(shape, pages, memory.classes));
  const auto routing = [&](int64_t, Microbatches of) {
    return LayerRouting(static_cast<size_t>(of.count),
                        std::vector<int64_t>(static_cast<size_t>(c.experts), kRows));
  };
  walk(schedule, routing, [&](const StepPiece& piece) { simulator.run(piece); });
  return simulator.finish().makespan_s;
}

ChunkTimes chunk_times(const Case& c, int32_t layer) {
  const auto share = [&](const PassSeconds& experts, int64_t count) {
    return experts * (static_cast<double>(count) / static_cast<double>(c.experts));
  };
  const int64_t moved = c.moved[static_cast<size_t>(layer)];
  const int64_t kept = (c.experts - moved) / c.slower;
  ChunkTimes times;
  times.faster = {c.attention, {}, c.head_s};
  if (c.all_attend) times.slower = {c.slower_attention, {}, c.slower_head_s};
  if (moved > 0) times.faster.experts = share(c.faster_experts, moved / c.faster);
  if (kept > 0) times.slower.experts = share(c.slower_experts, kept);
  times.faster_exchange = c.attending() > 1;
  // Rows are of 32 bytes; in the backward gradients go with them, and a scale of 4 bytes each way.
  const double rows_s = c.row_s * static_cast<double>(kept);
  const auto there = [&](double s) {
    return PassSeconds{c.latency_s + s, c.latency_s + s * (32 + 32 + 4) / 32};
  };
  const auto back = [&](double s) {
    return PassSeconds{c.latency_s + s, c.latency_s + s * (32 + 4) / 32};
  };
  times.to_experts = there(rows_s);
  times.to_attention = back(rows_s);
  if (moved > 0 && c.attending() > 1) {
    const double own_s = c.row_s * static_cast<double>(moved / c.faster);
    times.to_faster_experts = there(own_s);
    times.from_faster_experts = back(own_s);
  }
  return times;
}

double clock_s(const Case& c, const std::optional<SumTimes>& sums = {}) {
  ActionTimes times;
  times.of = [&](int32_t layer, int32_t) { return chunk_times(c, layer); };
  times.chunks = c.chunks;
  times.sums = sums;
  const TimedActions timed = time_actions(make_actions(shape_of(c), c.extent), times);
  return time_streams(timed.queue, kStepStreams).makespan_s;
}

// A record has one element, of which the other of two devices sends a sum of 4 bytes, where a row
// has 32.
SumTimes sums_of(const Case& c) {
  const double sum_s = c.attending() > 1 ? c.latency_s + c.row_s / kRows * 4 / 32 : 0;
  return {sum_s, sum_s, sum_s, 0};
}

Case figure_6(std::vector<int64_t> moved) {
  Case c;
  c.is_moe = {1, 1, 1};
  c.chunks = 3;
  c.moved = std::move(moved);
  c.extent = PassExtent::kLayers;
  c.attention = {3, 6};
  c.faster_experts = c.slower_experts = {4, 8};
  c.latency_s = 2.0 / 3;
  return c;
}

TEST(ZebraSimulated, Figure6) {
  using Seconds = std::function<double(const Case&)>;
  const Seconds by_clock = [](const Case& c) { return clock_s(c); };
  for (const Seconds& seconds : {Seconds(simulated_s), by_clock}) {
    EXPECT_NEAR(seconds(figure_6({0, 0, 0})), 40 + 1.0 / 3, 1e-9);
    EXPECT_NEAR(seconds(figure_6({0, 1, 1})), 36 + 1.0 / 3, 1e-9);
    EXPECT_NEAR(seconds(figure_6({1, 1, 1})), 36 + 1.0 / 3, 1e-9);
  }
}

int64_t draw(std::mt19937& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least + 1));
}

PassSeconds random_pass(std::mt19937& random) {
  const auto forward = static_cast<double>(draw(random, 2, 12));
  return {forward, forward * static_cast<double>(draw(random, 1, 3))};
}

// A transfer's latency is at most so many sixteenths of what the experts take that it feeds, and
// its rows take at most a third of that beside.
Case random_case(std::mt19937& random, int64_t longest = 4) {
  Case c;
  c.is_moe.assign(static_cast<size_t>(draw(random, 1, 4)), 1);
  for (uint8_t& moe : c.is_moe) moe = random() % 4 != 0;
  c.chunks = static_cast<int>(draw(random, 2, 5));
  const auto lag = [&] { return static_cast<int32_t>(draw(random, 0, c.chunks)); };
  do {
    c.lags = {lag(), lag(), lag()};
  } while (lags_wait_for_each_other(c.lags, c.is_moe.back() != 0, c.chunks));
  c.faster = static_cast<int>(draw(random, 1, 2));
  c.slower = static_cast<int>(draw(random, 1, 3));
  c.experts = 12;
  if (c.faster > 1 && random() % 3 == 0) c.extent = PassExtent::kLayers;
  c.attention = random_pass(random);
  c.faster_experts = random_pass(random);
  c.slower_experts = random_pass(random);
  c.head_s = static_cast<double>(draw(random, 0, 6));
  const int64_t evenly = std::lcm(c.slower, c.faster);  // each kind's devices have equally many
  for (const uint8_t moe : c.is_moe) {
    const bool some = moe != 0 && random() % 2 == 0;
    c.moved.push_back(some ? evenly * draw(random, 0, (12 - c.slower) / evenly) : 0);
  }
  const int64_t most = *std::ranges::max_element(c.moved);
  const double least_s = std::min(c.slower_experts.forward_s, c.slower_experts.backward_s) *
                         static_cast<double>((12 - most) / c.slower) / 12;
  c.latency_s = least_s * static_cast<double>(draw(random, 0, longest)) / 16;
  c.row_s = least_s * static_cast<double>(draw(random, 0, longest)) / 16 / 3 / 12;
  return c;
}

// How far the clock is from tasks whose gradients are summed.
struct Distance {
  int cases = 0, with_sums = 0, own_with_sums = 0, later = 0;
  double most = 1, most_bound = 1;
};

// Nothing but sums keeps the clock from the times of the tasks. The home of a sum waits for those
// of other devices, and these do not: so tasks, each of which waits for some others to end, are no
// later than if all waited as the home does, and no sooner than if none did. Without sums both are
// one.
void expect_times_of_tasks(const Case& c, Distance& distance) {
  const double expected = simulated_s(c), least = clock_s(c), most = clock_s(c, sums_of(c));
  const bool sums = c.faster > 1 && c.extent == PassExtent::kStep;
  if (!sums) {
    EXPECT_DOUBLE_EQ(least, most);
  }
  EXPECT_GE(expected, least * (1 - 1e-9));
  EXPECT_LE(expected, most * (1 + 1e-9));
  ++distance.cases;
  if (!sums) return;
  ++distance.with_sums;
  distance.own_with_sums += *std::ranges::max_element(c.moved) > 0;
  distance.later += most > expected * (1 + 1e-9);
  distance.most = std::max(distance.most, most / expected);
  distance.most_bound = std::max(distance.most_bound, most / least);
}

Distance expect_times_of_tasks(uint32_t seed, int cases, int64_t longest) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  Distance distance;
  for (int k = 0; k < cases; ++k) {
    const Case c = random_case(random, longest);
    SCOPED_TRACE(testing::Message() << "case " << k << ": " << c.is_moe.size() << " layers, "
                                    << c.chunks << " chunks, " << c.faster << " + " << c.slower
                                    << ", lags " << c.lags.head << c.lags.attention << c.lags.expert
                                    << ", " << *std::ranges::max_element(c.moved) << " kept");
    expect_times_of_tasks(c, distance);
  }
  std::printf(
      "%d of %d with sums, %d of these with kept experts; the clock is later for %d, by %.2f %% at "
      "most, and sums make %.2f %% at most\n",
      distance.with_sums, distance.cases, distance.own_with_sums, distance.later,
      100 * (distance.most - 1), 100 * (distance.most_bound - 1));
  return distance;
}

TEST(ZebraSimulated, TheClockGivesTheTimesOfTasks) {
  const Distance distance = expect_times_of_tasks(61, 500, 4);
  EXPECT_GT(distance.with_sums, 100);
  EXPECT_GT(distance.own_with_sums, 50);
  EXPECT_GT(distance.most_bound, 1) << "sums took no time in any case";
}

// Rows have pages for two waves on their way: what is sent waits until it may be taken.
TEST(ZebraSimulated, TheClockKnowsHowManyWavesHaveRoom) { expect_times_of_tasks(66, 300, 40); }

// The clock with the times that it makes of a run's shape and costs.
TEST(ZebraSimulated, TimesOfARunAreThoseOfItsTasks) {
  std::mt19937 random(63);
  for (int k = 0; k < 200; ++k) {
    const Case c = random_case(random);
    const RunShape shape = shape_of(c);
    const TimedActions timed =
        time_actions(make_actions(shape, c.extent), run_times(shape, profile_of(c)));
    const double seconds = time_streams(timed.queue, kStepStreams).makespan_s;
    EXPECT_NEAR(seconds, clock_s(c, sums_of(c)), 1e-9 * seconds) << k;
  }
}

// Stages of both kinds of devices, whose transfers take no time. Where stages wait for each other,
// the clock may be early: it does not know what one stage's lanes hold up in the next.
TEST(ZebraSimulated, TheClocksOfStagesGiveTheTimesOfTasks) {
  std::mt19937 random(65);
  int in_stages = 0, waited = 0;
  double most = 1;
  for (int k = 0; k < 300; ++k) {
    Case c = random_case(random);
    c.stages = static_cast<int>(std::min<int64_t>(draw(random, 2, 3), std::ssize(c.is_moe)));
    c.order = static_cast<PipelineOrder>(random() % 3);
    c.latency_s = c.row_s = 0;
    c.moved.assign(c.is_moe.size(), 0);
    SCOPED_TRACE(testing::Message()
                 << "case " << k << ": " << c.stages << " stages, order "
                 << static_cast<int>(c.order) << ", " << c.is_moe.size() << " layers, " << c.chunks
                 << " chunks, " << c.faster << " + " << c.slower);
    const RunShape shape = shape_of(c);
    ActionTimes times = run_times(shape, profile_of(c));
    const auto clocked_s = [&] {
      const TimedActions timed = time_run(shape, c.extent, times);
      return time_streams(timed.queue, kPipelineStreams * c.stages).makespan_s;
    };
    const double seconds = clocked_s(), expected = simulated_s(c);
    times.sums.reset();
    EXPECT_GE(expected, clocked_s() * (1 - 1e-9));
    waited += expected > seconds * (1 + 1e-9);
    most = std::max(most, expected / seconds);
    in_stages += c.stages > 1;
  }
  std::printf("%d of %d waited longer, at most %.1f %%\n", waited, in_stages, 100 * (most - 1));
  EXPECT_GT(in_stages, 150);
  EXPECT_LT(waited, in_stages / 2);
}

// Every number of kept experts in each layer, and all lags: the tasks of the choice are as fast as
// those of the best, but for a few per cent, and faster than those of what nobody chose.
TEST(ZebraSimulated, TheChoiceIsNearTheBest) {
  std::mt19937 random(64);
  double gained = 0;
  for (int k = 0; k < 3; ++k) {
    Case c = random_case(random);
    c.is_moe = k % 3 == 0 ? std::vector<uint8_t>{1, 0} : std::vector<uint8_t>{1, 1};
    c.chunks = 3;
    c.faster = c.slower = 1;
    c.experts = 6;
    c.extent = PassExtent::kStep;
    c.slower_experts = c.slower_experts * 2;
    const auto with = [&](std::vector<int64_t> moved, const Lags& lags) {
      Case other = c;
      other.moved = std::move(moved);
      other.lags = lags;
      return other;
    };
    const ZebraShape shape = [&](int64_t, int64_t moved) {
      return shape_of(with(std::vector<int64_t>(c.is_moe.size(), moved), {}));
    };
    const ZebraRun run = search_zebra({}, shape, profile_of(c));
    double best_s = 1e9;
    for (const Lags& lags : lag_choices(3, c.is_moe.back() != 0)) {
      if (lags_wait_for_each_other(lags, c.is_moe.back() != 0, 3)) continue;
      for (int64_t first = 0; first <= 6; ++first) {
        for (int64_t second = 0; second <= (c.is_moe.back() != 0 ? 6 : 0); ++second) {
          best_s = std::min(best_s, simulated_s(with({first, second}, lags)));
        }
      }
    }
    const double chosen_s = simulated_s(with(run.offloaded, run.lags));
    const double without_s = simulated_s(with({0, 0}, {1, 1, 1}));
    std::printf("chosen %.2f, best %.2f, without %.2f, %lld timed\n", chosen_s, best_s, without_s,
                (long long)run.timed);
    EXPECT_LE(chosen_s, 1.05 * best_s);
    EXPECT_LE(chosen_s, without_s);
    gained = std::max(gained, without_s / chosen_s);
  }
  EXPECT_GT(gained, 1.1);
}

// Expert parallelism and disaggregated experts: all chunks together, layer by layer. Devices that
// all attend send to each other as soon as a pair is ready, and by the clock once all are.
TEST(ZebraSimulated, ThePapersClockGivesTheTimesOfLayerMajorTasks) {
  std::mt19937 random(62);
  for (int k = 0; k < 300; ++k) {
    Case c = random_case(random);
    c.zebra = false;
    c.chunks = 1;
    c.extent = PassExtent::kLayers;
    c.all_attend = random() % 2 == 0;
    const bool alike = random() % 2 == 0;
    c.slower_attention = alike ? c.attention : random_pass(random);
    if (alike) c.faster_experts = c.slower_experts;
    c.moved.assign(c.is_moe.size(), c.all_attend ? c.faster * 12 / c.devices() : 0);
    if (12 % c.devices() != 0) continue;
    SCOPED_TRACE(testing::Message() << "case " << k << ": " << c.faster << " + " << c.slower
                                    << (c.all_attend ? ", EP" : ", DistEP"));
    PaperTimes times;
    times.of = [&](int32_t layer, int32_t) { return chunk_times(c, layer); };
    const TimedActions timed = time_on_paper(make_actions(shape_of(c), c.extent), times);
    const double expected = simulated_s(c);
    const double seconds = time_streams(timed.queue, kPaperStreams).makespan_s;
    EXPECT_GE(seconds, expected * (1 - 1e-9));
    if (alike || !c.all_attend) {
      EXPECT_NEAR(seconds, expected, 1e-9 * expected);
    }
  }
}

// Devices that attend and have experts do both: rows for experts leave and arrive by other lanes
// than what experts gave, but where all chunks are one.
TEST(ZebraSimulated, WhatExpertsGaveHasLanesOfItsOwn) {
  Case c;
  c.is_moe = {1, 1};
  c.moved = {6, 6};
  c.experts = 12;
  c.faster = c.slower = 2;
  for (const int chunks : {2, 1}) {
    c.chunks = chunks;
    const RunShape shape = shape_of(c);
    const PageTable pages(shape);
    const StepPlan plan(shape, pages, {.training = true});
    StepSchedule schedule(&plan, nullptr, nullptr, c.extent);
    std::map<TaskKind, std::set<Lane>> lanes;
    const auto even = [](int64_t, Microbatches of) {
      return LayerRouting(static_cast<size_t>(of.count), std::vector<int64_t>(12, kRows));
    };
    walk(schedule, even, [&](const StepPiece& piece) {
      for (const Task& task : piece.tasks) lanes[task.kind].insert(task.lane);
    });
    const bool apart = chunks > 1;
    const std::set<Lane> out = {apart ? Lane::kOutBack : Lane::kOut};
    const std::set<Lane> in = {apart ? Lane::kInBack : Lane::kIn};
    EXPECT_EQ(lanes[TaskKind::kPackRows], out);
    EXPECT_EQ(lanes[TaskKind::kCombine], in);
    EXPECT_EQ(lanes[TaskKind::kCombineBackward], in);
    EXPECT_EQ(lanes[TaskKind::kIndex], std::set<Lane>{Lane::kOut});
    EXPECT_EQ(lanes[TaskKind::kPlaceRows], std::set<Lane>{Lane::kIn});
    EXPECT_EQ(lanes[TaskKind::kReceive].contains(Lane::kInBack), apart);
  }
}

// A second for an expert's rows of a microbatch. 2 devices attend, 2 have three experts each of a
// layer, and those that attend three each. In one rank any two have a wire of their own, by which
// the rows of three experts go. Between ranks a card has them for both slower devices, or from both
// that attend.
TEST(ZebraSimulated, RowsBetweenRanksGoThroughCards) {
  Case c;
  c.is_moe = {1};
  c.moved = {6};
  c.experts = 12;
  c.faster = c.slower = 2;
  RunShape shape = shape_of(c);
  MachineProfile profile;
  profile.tasks = {};
  profile.wire = profile.network = {0, 1 / static_cast<double>(kRows * 16 * 2), 0};
  const ChunkTimes within = run_times(shape, profile).of(0, 0);
  EXPECT_FALSE(within.one_card);
  EXPECT_DOUBLE_EQ(within.to_experts.forward_s, 3);
  EXPECT_DOUBLE_EQ(within.to_attention.forward_s, 3);
  EXPECT_DOUBLE_EQ(within.to_faster_experts.forward_s, 3);
  shape.device_rank = {0, 1, 2, 3};
  const ChunkTimes between = run_times(shape, profile).of(0, 0);
  EXPECT_TRUE(between.one_card);
  EXPECT_DOUBLE_EQ(between.to_experts.forward_s, 6);
  EXPECT_DOUBLE_EQ(between.to_attention.forward_s, 6);
  EXPECT_DOUBLE_EQ(between.to_faster_experts.forward_s, 3);
}

// The slower device has six experts of one element. Adding two sums takes 8 s, so that each of the
// three chunks behind the first takes 16 s longer, all four 12 s on the mean.
TEST(ZebraSimulated, LaterChunksAddToGradients) {
  Case c;
  c.is_moe = {1};
  c.moved = {0};
  c.chunks = 4;
  MachineProfile profile;
  profile.tasks = {};
  profile.of(TaskKind::kAddSums).unit_s = 8;
  const PassSeconds experts = *run_times(shape_of(c), profile).of(0, 0).slower.experts;
  EXPECT_DOUBLE_EQ(experts.forward_s, 0);
  EXPECT_DOUBLE_EQ(experts.backward_s, 12);
}

// A brief run (plan/memory/coarse_run.h) has all chunks and layers of an order that was given, and
// needs as much memory as the run, which in this case has the order that its lags make.
TEST(ZebraSimulated, AGivenOrderNeedsAsMuchMemory) {
  Case c;
  c.is_moe.assign(6, 1);
  c.moved.assign(6, 2);
  c.chunks = 4;
  c.faster = 2;
  RunShape shape = shape_of(c);
  const auto needed = [&](const RunShape& of) { return least_slots(of, PageTable(of), 4096); };
  const LeastSlots usual = needed(shape);
  shape.order = std::make_shared<const ActionList>(zebra_actions(shape, PassExtent::kStep));
  const LeastSlots brief = needed(brief_shape(shape));
  EXPECT_EQ(brief.device_bytes, usual.device_bytes);
  EXPECT_EQ(brief.host_bytes, usual.host_bytes);
}

}  // namespace
}  // namespace pagoda
