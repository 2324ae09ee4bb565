// Zebra plans: the figures and the theorem of the HeterMoE paper, against exhaustive search of all
// schedules where it is small, and against what each task waits for, written down again here.
#include "tests/testing/hetermoe/zebra.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/forecast/timeline.h"
#include "tests/testing/plan/job_search.h"

namespace pagoda {
namespace {

constexpr int kAttentionStream = static_cast<int>(PaperStream::kFaster);
constexpr int kExpertStream = static_cast<int>(PaperStream::kSlower);
constexpr int kToExperts = static_cast<int>(PaperStream::kToExperts);
constexpr int kToAttention = static_cast<int>(PaperStream::kToAttention);

int64_t draw(std::mt19937& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least + 1));
}

PassSeconds pass(int64_t forward, int64_t factor) {
  return {static_cast<double>(forward), static_cast<double>(forward * factor)};
}

// Times of the theorem's setting: whole numbers, transfers no longer than computing, one ratio of
// backward to forward.
ZebraGroup random_group(std::mt19937& random, int32_t layers, int32_t microbatches) {
  ZebraGroup group;
  group.layers = layers;
  group.microbatches = microbatches;
  group.last_layer_experts = false;
  const int64_t attention = draw(random, 1, 9), expert = draw(random, 1, 9);
  const int64_t most = std::min(attention, expert), factor = draw(random, 1, 3);
  group.times.attention = pass(attention, factor);
  group.times.expert = pass(expert, factor);
  group.times.offloaded_expert = group.times.expert;
  group.times.dispatch = pass(draw(random, 0, most), factor);
  group.times.combine = pass(draw(random, 0, most), factor);
  return group;
}

// What a microbatch goes through, as machines and times of a job shop.
Job job_of(const ZebraGroup& g, int32_t microbatch) {
  const MicrobatchSize size =
      g.sizes.empty() ? MicrobatchSize() : g.sizes[static_cast<size_t>(microbatch)];
  Job job;
  const auto add = [&](int machine, double seconds) {
    job.push_back({machine, std::llround(seconds)});
  };
  const ZebraTimes& t = g.times;
  for (int32_t i = 0; i < g.layers; ++i) {
    add(kAttentionStream, t.attention.forward_s * size.tokens);
    if (!g.has_experts(i)) continue;
    add(kToExperts, t.dispatch.forward_s * size.tokens);
    add(kExpertStream, t.expert.forward_s * size.expert_tokens);
    add(kToAttention, t.combine.forward_s * size.tokens);
  }
  if (t.head_s > 0) add(kAttentionStream, t.head_s * size.tokens);
  for (int32_t i = g.layers - 1; i >= 0; --i) {
    if (g.has_experts(i)) {
      add(kToExperts, t.combine.backward_s * size.tokens);
      add(kExpertStream, t.expert.backward_s * size.expert_tokens);
      add(kToAttention, t.dispatch.backward_s * size.tokens);
    }
    add(kAttentionStream, t.attention.backward_s * size.tokens);
  }
  return job;
}

std::vector<Job> jobs_of(const ZebraGroup& g) {
  std::vector<Job> jobs;
  for (int32_t j = 0; j < g.microbatches; ++j) jobs.push_back(job_of(g, j));
  return jobs;
}

Lags all_first(const ZebraGroup& g) {
  const int32_t lag = g.microbatches - 1;
  return {lag, lag, lag};
}

StreamTimes times_of(const ZebraGroup& group, const Lags& lags) {
  return time_streams(plan_zebra(group, lags).value().queue, kPaperStreams);
}

int64_t makespan(const ZebraGroup& group, const Lags& lags) {
  return std::llround(times_of(group, lags).makespan_s);
}

// Figure 6, in thirds of its unit so that all is whole: n = 6 experts, attention 3, experts 4,
// transfers 2/3.
ZebraGroup figure_6(std::vector<int32_t> offloaded) {
  ZebraGroup group;
  group.layers = group.microbatches = 3;
  group.experts = 6;
  group.backward = false;
  group.offloaded = std::move(offloaded);
  group.times.attention = pass(9, 2);
  group.times.expert = group.times.offloaded_expert = pass(12, 2);
  group.times.dispatch = group.times.combine = pass(2, 1);
  return group;
}

TEST(ZebraTest, TimesAreThoseOfFigure6) {
  const ZebraGroup none = figure_6({});
  const StreamTimes plain = times_of(none, all_first(none));
  EXPECT_EQ(plain.makespan_s, 121);  // 40 1/3
  EXPECT_EQ(plain.makespan_s - plain.streams[kAttentionStream].busy_s, 40);  // 13 1/3
  const StreamTimes::Stream& experts = plain.streams[kExpertStream];
  EXPECT_EQ(experts.end_s - experts.start_s, experts.busy_s);
  EXPECT_EQ(plain.streams[kAttentionStream].busy_s / (experts.end_s - experts.start_s), 0.75);
  EXPECT_NEAR(plain.streams[kAttentionStream].busy_s / plain.makespan_s, 0.669, 0.0005);

  const ZebraGroup two = figure_6({0, 1, 1});
  const StreamTimes moved = times_of(two, all_first(two));
  EXPECT_EQ(moved.makespan_s, 109);  // 36 1/3
  EXPECT_EQ(moved.makespan_s - moved.streams[kAttentionStream].busy_s, 16);  // 5 1/3
  EXPECT_NEAR(moved.makespan_s / plain.makespan_s - 1, -0.099, 0.0005);

  const ZebraGroup three = figure_6({1, 1, 1});
  const StreamTimes all = times_of(three, all_first(three));
  EXPECT_EQ(all.makespan_s, 109);
  const StreamTimes::Stream& busy = all.streams[kExpertStream];
  EXPECT_EQ(busy.busy_s / (busy.end_s - busy.start_s), 1 - 0.0625);
}

struct Search {
  int64_t planned = 0;
  ShortestSchedule found;
};

Search search(const ZebraGroup& group, const Lags& lags) {
  constexpr int64_t kMostStates = 500'000;
  const int64_t planned = makespan(group, lags);
  return {planned, shortest_schedule(jobs_of(group), kPaperStreams, planned, kMostStates)};
}

std::string text(const ZebraGroup& g) {
  return strf("L %d R %d A %g E %g D %g C %g backward A %g", g.layers, g.microbatches,
              g.times.attention.forward_s, g.times.expert.forward_s, g.times.dispatch.forward_s,
              g.times.combine.forward_s, g.times.attention.backward_s);
}

struct Regret {
  int count = 0, beaten = 0;
  double worst = 1;
  void add(int64_t planned, int64_t optimum) {
    ++count;
    beaten += planned > optimum;
    worst = std::max(worst, static_cast<double>(planned) / static_cast<double>(optimum));
  }
  void print(const char* name) const {
    std::printf("%-34s beaten in %d of %d, worst by %.1f %%\n", name, beaten, count,
                100 * (worst - 1));
  }
};

// In its own setting, with experts that are no slower than attention, no schedule is shorter than
// the theorem's.
TEST(ZebraTest, TheoremOneIsOptimalInItsSetting) {
  constexpr uint32_t kSeed = 71;
  constexpr int kEach = 370;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  int64_t states = 0;
  int count = 0;
  Regret slower;
  for (int32_t layers = 2; layers <= 4; ++layers) {
    for (int32_t microbatches = 1; microbatches <= 4; ++microbatches) {
      for (int k = 0; k < kEach; ++k) {
        ZebraGroup group = random_group(random, layers, microbatches);
        if (group.times.expert.forward_s > group.times.attention.forward_s) {
          if (k % 8 == 0) {
            const Search other = search(group, {0, 0, microbatches - 1});
            ASSERT_TRUE(other.found.certain) << text(group);
            slower.add(other.planned, other.found.makespan);
          }
          std::swap(group.times.expert, group.times.attention);
        }
        const Search own = search(group, {0, 0, microbatches - 1});
        ASSERT_TRUE(own.found.certain) << text(group);
        ASSERT_EQ(own.found.makespan, own.planned) << text(group);
        states += own.found.states;
        ++count;
      }
    }
  }
  std::printf("%d instances, none beaten, %lld states searched\n", count,
              static_cast<long long>(states));
  slower.print("experts slower than attention:");
  EXPECT_GT(states, count);
}

// Experts that are slower than attention: the theorem's order leaves them idle while the last layer
// turns, which another hides behind experts of earlier layers that it keeps back. The schedule of
// 100 was checked operation by operation.
TEST(ZebraTest, TheoremOneIsBeatenBySlowExperts) {
  ZebraGroup group;
  group.layers = group.microbatches = 3;
  group.last_layer_experts = false;
  group.times.attention = pass(5, 1);
  group.times.expert = pass(7, 1);
  group.times.dispatch = pass(1, 1);
  group.times.combine = pass(2, 1);
  const Search result = search(group, {0, 0, 2});
  EXPECT_EQ(result.planned, 102);
  EXPECT_TRUE(result.found.certain);
  EXPECT_EQ(result.found.makespan, 100);
}

ZebraGroup counterexample() {
  ZebraGroup group;
  group.layers = 2;
  group.microbatches = 3;
  group.times.attention = pass(6, 2);
  group.times.expert = pass(2, 2);
  group.times.dispatch = group.times.combine = pass(2, 1);
  return group;
}

// With one queue for dispatches and one for combines (section 4.1), each of both directions.
int64_t by_kind_of_transfer(const ZebraGroup& group, const Lags& lags) {
  TimedActions plan = plan_zebra(group, lags).take();
  for (size_t t = 0; t < plan.tasks.size(); ++t) {
    if (plan.tasks[t].kind == TaskKind::kCombineBackward) plan.queue[t].stream = kToExperts;
    if (plan.tasks[t].kind == TaskKind::kDispatchBackward) plan.queue[t].stream = kToAttention;
  }
  return std::llround(time_streams(plan.queue, kPaperStreams).makespan_s);
}

// Experts in the last layer: the theorem's order is beaten, by one that turns sooner.
TEST(ZebraTest, LagsOfTheCounterexample) {
  const ZebraGroup group = counterexample();
  std::map<int64_t, std::vector<Lags>> by_time;
  for (int32_t h = 0; h < 3; ++h) {
    for (int32_t a = 0; a < 3; ++a) {
      for (int32_t e = 0; e < 3; ++e) {
        const auto plan = plan_zebra(group, {h, a, e});
        if (!plan.ok()) continue;
        by_time[makespan(group, {h, a, e})].push_back({h, a, e});
      }
    }
  }
  for (const auto& [time, lags] : by_time) {
    std::printf("%lld:", static_cast<long long>(time));
    for (const Lags& l : lags) std::printf(" %d%d%d", l.head, l.attention, l.expert);
    std::printf("\n");
  }
  EXPECT_EQ(makespan(group, all_first(group)), 118);
  EXPECT_EQ(by_kind_of_transfer(group, all_first(group)), 122);
  const auto best = best_zebra(group);
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best.value().times.makespan_s, 112);
  const ShortestSchedule found = shortest_schedule(jobs_of(group), kPaperStreams, 112, 2'000'000);
  EXPECT_TRUE(found.certain);
  EXPECT_EQ(found.makespan, 108);
}

// With experts in the last layer and a head: what the choice of lags leaves to gain.
TEST(ZebraTest, RegretOfLagsAgainstAllSchedules) {
  constexpr uint32_t kSeed = 72;
  constexpr int kInstances = 400;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Regret one_after_other, chosen;
  int given_up = 0;
  for (int k = 0; k < kInstances; ++k) {
    ZebraGroup group = random_group(random, static_cast<int32_t>(draw(random, 1, 3)),
                                    static_cast<int32_t>(draw(random, 1, 3)));
    group.last_layer_experts = true;
    group.times.head_s = static_cast<double>(draw(random, 0, 9));
    const auto best = best_zebra(group);
    ASSERT_TRUE(best.ok()) << best.status().message();
    const Search result = search(group, best.value().lags);
    const int64_t plain = makespan(group, all_first(group));
    ASSERT_LE(result.planned, plain);
    given_up += !result.found.certain;
    if (!result.found.certain) continue;
    one_after_other.add(plain, result.found.makespan);
    chosen.add(result.planned, result.found.makespan);
  }
  one_after_other.print("all forwards, then all backwards:");
  chosen.print("lags chosen:");
  EXPECT_LE(given_up, kInstances / 10);
  EXPECT_LE(chosen.beaten, one_after_other.beaten);
  EXPECT_LE(chosen.worst, one_after_other.worst);
}

// With unequal loads of experts in microbatches the theorem's order is only a start.
TEST(ZebraTest, RegretWithUnequalMicrobatches) {
  constexpr uint32_t kSeed = 73;
  constexpr int kInstances = 400;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Regret regret;
  int given_up = 0;
  for (int k = 0; k < kInstances; ++k) {
    ZebraGroup group = random_group(random, static_cast<int32_t>(draw(random, 2, 3)), 3);
    for (int j = 0; j < 3; ++j) {
      group.sizes.push_back({1, static_cast<double>(draw(random, 1, 3))});
    }
    const Search result = search(group, {0, 0, 2});
    given_up += !result.found.certain;
    if (result.found.certain) regret.add(result.planned, result.found.makespan);
  }
  regret.print("unequal microbatches:");
  EXPECT_LE(given_up, kInstances / 10);
  EXPECT_GT(regret.count, 0);
}

// A random group of any kind.
ZebraGroup any_group(std::mt19937& random) {
  ZebraGroup group = random_group(random, static_cast<int32_t>(draw(random, 2, 5)),
                                  static_cast<int32_t>(draw(random, 1, 6)));
  group.last_layer_experts = random() % 2 == 0;
  group.backward = random() % 4 != 0;
  group.send_again = random() % 2 == 0;
  group.attention_devices = static_cast<int32_t>(draw(random, 1, 2));
  group.expert_devices = 2;
  group.experts = 6;
  group.times.head_s = static_cast<double>(draw(random, 0, 5));
  group.times.attention_reduce_s = static_cast<double>(draw(random, 0, 2));
  group.times.expert_reduce_s = static_cast<double>(draw(random, 0, 2));
  if (random() % 2 == 0) {
    for (int32_t i = 0; i < group.layers; ++i) {
      const int32_t most = group.has_experts(i) ? 3 : 0;
      group.offloaded.push_back(static_cast<int32_t>(draw(random, 0, most)));
    }
  }
  if (random() % 2 == 0) {
    for (int32_t j = 0; j < group.microbatches; ++j) {
      group.sizes.push_back({static_cast<double>(draw(random, 1, 3)),
                             static_cast<double>(draw(random, 0, 3))});
    }
  }
  return group;
}

// Where a task stands in a plan.
class Places {
 public:
  explicit Places(const TimedActions& plan) {
    for (size_t t = 0; t < plan.tasks.size(); ++t) {
      const TimedTask& task = plan.tasks[t];
      const std::tuple place(task.kind, task.phase, plan.queue[t].stream, task.layer, task.chunk);
      EXPECT_TRUE(places_.emplace(place, t).second);
    }
  }
  bool has(TaskKind kind, Phase phase, int stream, int32_t layer, int32_t microbatch) const {
    return places_.count({kind, phase, stream, layer, microbatch}) > 0;
  }
  size_t at(TaskKind kind, Phase phase, int stream, int32_t layer, int32_t microbatch) const {
    return places_.at({kind, phase, stream, layer, microbatch});
  }

 private:
  std::map<std::tuple<TaskKind, Phase, int, int32_t, int32_t>, size_t> places_;
};

// What a microbatch goes through in one layer, in this order, and where.
std::vector<std::pair<TaskKind, int>> passage(const ZebraGroup& g, int32_t layer, bool backward) {
  using enum TaskKind;
  const std::pair attention(backward ? kAttentionBackward : TaskKind::kAttention, kAttentionStream);
  if (!g.has_experts(layer)) return {attention};
  if (backward) {
    return {{kDispatchBackward, kToExperts},
            {kExpertBackward, kExpertStream},
            {kCombineBackward, kToAttention},
            attention};
  }
  return {attention,
          {kDispatch, kToExperts},
          {TaskKind::kExpert, kExpertStream},
          {kCombine, kToAttention}};
}

void expect_in_turn(const ZebraGroup& g, const TimedActions& plan, const StreamTimes& times) {
  const Places places(plan);
  const auto own = [&](bool backward, int32_t i, int32_t j) {
    return places.at(backward ? TaskKind::kExpertBackward : TaskKind::kExpert,
                     backward ? Phase::kBackward : Phase::kForward, kAttentionStream, i, j);
  };
  for (int32_t j = 0; j < g.microbatches; ++j) {
    double before_s = 0;
    const auto pass_place = [&](size_t place) {
      EXPECT_GE(times.start_s[place], before_s);
      before_s = times.end_s[place];
    };
    const auto pass_layer = [&](int32_t i, bool backward) {
      const Phase phase = backward ? Phase::kBackward : Phase::kForward;
      for (const auto& [kind, stream] : passage(g, i, backward)) {
        pass_place(places.at(kind, phase, stream, i, j));
      }
    };
    for (int32_t i = 0; i < g.layers; ++i) pass_layer(i, false);
    const auto attends = [&](TaskKind kind, Phase phase, int32_t i) {
      return places.at(kind, phase, kAttentionStream, i, j);
    };
    if (g.backward) pass_place(attends(TaskKind::kHead, Phase::kForward, -1));
    for (int32_t i = g.layers - 1; i >= 0 && g.backward; --i) pass_layer(i, true);
    for (int32_t i = 0; i < g.layers; ++i) {
      const bool again = g.send_again && g.backward && g.has_experts(i);
      EXPECT_EQ(places.has(TaskKind::kDispatch, Phase::kBackward, kToExperts, i, j), again);
      const bool moved = g.offloaded_of(i) > 0;
      EXPECT_EQ(places.has(TaskKind::kExpert, Phase::kForward, kAttentionStream, i, j), moved);
      if (!moved) continue;
      // Several attention devices have rows of each other's experts, which travel with the rest.
      const bool exchanged = g.attention_devices > 1;
      const auto attention = attends(TaskKind::kAttention, Phase::kForward, i);
      const auto sent = places.at(TaskKind::kDispatch, Phase::kForward, kToExperts, i, j);
      const size_t forward = own(false, i, j);
      EXPECT_GE(times.start_s[forward], times.end_s[exchanged ? sent : attention]);
      if (i + 1 < g.layers) {
        const auto next = attends(TaskKind::kAttention, Phase::kForward, i + 1);
        EXPECT_LE(times.end_s[forward], times.start_s[next]);
      }
      if (!g.backward) continue;
      const size_t back = own(true, i, j);
      const auto behind = attends(TaskKind::kAttentionBackward, Phase::kBackward, i);
      EXPECT_LE(times.end_s[back], times.start_s[behind]);
      EXPECT_GE(times.start_s[back], times.end_s[forward]);
    }
  }
}

// The same queue on the clockwork of the step simulator.
void expect_as_timeline(const TimedActions& plan, const StreamTimes& times) {
  Timeline timeline;
  for (int s = 0; s < kPaperStreams; ++s) timeline.add_stream("");
  std::vector<Timeline::Work> works;
  for (const StreamTask& task : plan.queue) {
    std::vector<Timeline::Work> after;
    for (const int32_t earlier : task.after) {
      if (earlier >= 0) after.push_back(works[static_cast<size_t>(earlier)]);
    }
    works.push_back(timeline.add(task.stream, Timeline::kNone, 0, task.seconds, after));
  }
  timeline.run();
  // The clockwork ends pieces together that end within 1e-12 of a step of each other; beside that,
  // rounding of sums of at most 500 terms is small.
  const double tolerance = (1e-12 + 500 * 1.2e-16) * times.makespan_s;
  for (size_t t = 0; t < works.size(); ++t) {
    EXPECT_NEAR(timeline.end_s(works[t]), times.end_s[t], tolerance) << "task " << t;
  }
}

TEST(ZebraTest, TasksWaitForWhatTheyNeed) {
  constexpr uint32_t kSeed = 74;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  int plans = 0, refused = 0;
  for (int k = 0; k < 200; ++k) {
    const ZebraGroup group = any_group(random);
    const auto lag = [&] { return static_cast<int32_t>(draw(random, 0, group.microbatches)); };
    const Lags lags = {lag(), lag(), lag()};
    const auto plan = plan_zebra(group, lags);
    ++(plan.ok() ? plans : refused);
    if (!plan.ok()) {
      EXPECT_TRUE(group.last_layer_experts && group.backward &&
                  lags.expert > lags.head + lags.attention)
          << plan.status().message();
      continue;
    }
    const StreamTimes times = time_streams(plan.value().queue, kPaperStreams);
    expect_in_turn(group, plan.value(), times);
    expect_as_timeline(plan.value(), times);
  }
  std::printf("%d plans, %d refused\n", plans, refused);
  EXPECT_GT(plans, 100);
  EXPECT_GT(refused, 0);
}

// What is offloaded is no longer on the expert devices, and all of it on the attention devices.
TEST(ZebraTest, OffloadedExpertsMoveTheirTime) {
  std::mt19937 random(75);
  ZebraGroup group = random_group(random, 3, 4);
  group.last_layer_experts = true;
  group.attention_devices = 2;
  group.expert_devices = 4;
  group.experts = 12;
  group.times.expert = pass(12, 2);
  group.times.offloaded_expert = pass(6, 2);
  const double without = times_of(group, all_first(group)).streams[kAttentionStream].busy_s;
  group.offloaded = {1, 0, 2};
  const StreamTimes times = times_of(group, all_first(group));
  // 12 of 3 experts is 4 an expert; 4 microbatches, forward and twice that backward.
  EXPECT_EQ(times.streams[kExpertStream].busy_s, 4 * 3 * (3 * 12 - 3 * 4));
  // 2 an expert; of 4 expert devices, 2 attention devices acquire 2 and 4.
  EXPECT_EQ(times.streams[kAttentionStream].busy_s - without, 4 * 3 * (2 + 4) * 2);
}

// A transfer of 8 seconds has 2 that do not depend on rows, of which three quarters travel: 2 + 6 *
// 3 / 4.
TEST(ZebraTest, TheOnlyAttentionDeviceSendsNothingToItsOwnExperts) {
  ZebraGroup group;
  group.layers = 2;
  group.last_layer_experts = false;
  group.experts = 4;
  group.backward = false;
  group.times = {.attention = {1, 1},
                 .expert = {4, 4},
                 .offloaded_expert = {4, 4},
                 .dispatch = {8, 8},
                 .combine = {8, 8},
                 .transfer_fixed = 0.25};
  const auto makespan_s = [&](int32_t moved) {
    group.offloaded = {moved, 0};
    return times_of(group, {}).makespan_s;
  };
  EXPECT_DOUBLE_EQ(makespan_s(0), 1 + 8 + 4 + 8 + 1);
  EXPECT_DOUBLE_EQ(makespan_s(1), 1 + 6.5 + 3 + 6.5 + 1);
  EXPECT_DOUBLE_EQ(makespan_s(4), 1 + 4 + 1);  // all its own: nothing is sent
}

TEST(ZebraTest, ScalesWithItsMicrobatches) {
  std::mt19937 random(76);
  ZebraGroup group = random_group(random, 3, 4);
  group.last_layer_experts = true;
  group.times.head_s = 3;
  const double equal = best_zebra(group).value().times.makespan_s;
  group.sizes.assign(4, {2, 2});
  EXPECT_EQ(best_zebra(group).value().times.makespan_s, 2 * equal);
}

// Sums of gradients over devices hide behind the layers that are still to come, but the last.
TEST(ZebraTest, GradientSumsHideButTheLast) {
  ZebraGroup group = counterexample();
  const double without = times_of(group, {1, 1, 1}).makespan_s;
  group.times.attention_reduce_s = 5;
  EXPECT_EQ(times_of(group, {1, 1, 1}).makespan_s, without + 5);
  group.times.attention_reduce_s = 100;  // more than a layer's backward: they wait for each other
  const StreamTimes times = times_of(group, {1, 1, 1});
  const StreamTimes::Stream& sums = times.streams[static_cast<int>(PaperStream::kSums)];
  EXPECT_EQ(times.makespan_s, sums.start_s + 200);
}

TEST(ZebraTest, InputsSentAgainTakeTheLink) {
  ZebraGroup group = counterexample();
  const double kept = times_of(group, {1, 1, 1}).streams[kToExperts].busy_s;
  group.send_again = true;
  EXPECT_EQ(times_of(group, {1, 1, 1}).streams[kToExperts].busy_s, kept + 2 * 3 * 2);
}

TEST(ZebraTest, RefusesNonsenseInOneLine) {
  const auto refused = [](const std::string& word, auto&& change) {
    ZebraGroup group = counterexample();
    group.experts = 4;
    group.expert_devices = 2;
    group.times.offloaded_expert = group.times.expert;
    change(group);
    const auto plan = plan_zebra(group, {1, 1, 1});
    ASSERT_FALSE(plan.ok()) << word;
    EXPECT_EQ(plan.status().code(), Exit::kUsage);
    EXPECT_NE(plan.status().message().find(word), std::string::npos) << plan.status().message();
    EXPECT_EQ(plan.status().message().find('\n'), std::string::npos);
  };
  refused("0 layers", [](ZebraGroup& g) { g.layers = 0; });
  refused("-1 microbatches", [](ZebraGroup& g) { g.microbatches = -1; });
  refused("divide over", [](ZebraGroup& g) { g.experts = 5; });
  refused("no layer has experts", [](ZebraGroup& g) {
    g.layers = 1;
    g.last_layer_experts = false;
  });
  refused("offloaded experts of 1 layers", [](ZebraGroup& g) { g.offloaded = {1}; });
  refused("it can leave 0 to 2", [](ZebraGroup& g) { g.offloaded = {0, 3}; });
  refused("it can leave 0 to 2", [](ZebraGroup& g) { g.offloaded = {-1, 0}; });
  refused("attention devices", [](ZebraGroup& g) {
    g.attention_devices = 4;
    g.offloaded = {1, 0};
  });
  refused("sizes of 2", [](ZebraGroup& g) { g.sizes.assign(2, {}); });
  refused("microbatch 1", [](ZebraGroup& g) { g.sizes = {{}, {0, 1}, {}}; });
  refused("attention takes 0", [](ZebraGroup& g) { g.times.attention.forward_s = 0; });
  refused("an expert device takes", [](ZebraGroup& g) { g.times.expert.backward_s = NAN; });
  refused("dispatch takes -1", [](ZebraGroup& g) { g.times.dispatch.forward_s = -1; });
  refused("the head takes inf", [](ZebraGroup& g) { g.times.head_s = INFINITY; });
  refused("an offloaded expert takes 0", [](ZebraGroup& g) {
    g.offloaded = {0, 0};
    g.times.offloaded_expert = {};
  });
  const auto lags = plan_zebra(counterexample(), {0, 0, 1});
  ASSERT_FALSE(lags.ok());
  EXPECT_NE(lags.status().message().find("wait for each other"), std::string::npos);
  EXPECT_FALSE(plan_zebra(counterexample(), {-1, 0, 0}).ok());
}

}  // namespace
}  // namespace pagoda
