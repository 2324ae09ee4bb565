// The simulator against times worked out by hand, and against what must hold of any plan: no
// resource does more than it can, slower parts never help, equal input gives equal output.
#include "plan/forecast/simulator.h"

#include <gtest/gtest.h>

#include "plan/memory/memory_plan.h"
#include "tests/testing/plan/random_plan.h"

namespace pagoda {
namespace {

// Sums of a few numbers of the order of 1: some units in the last place.
constexpr double kTolerance = 1e-12;

using Work = Timeline::Work;

TEST(Timeline, StreamsWaitForOneAnother) {
  Timeline timeline;
  const int a = timeline.add_stream("a"), b = timeline.add_stream("b");
  const Work first = timeline.add(a, Timeline::kNone, 0, 2, {});
  const Work other = timeline.add(b, Timeline::kNone, 0, 1, {});
  const std::vector<Work> both = {first, other};
  const Work join = timeline.add(b, Timeline::kNone, 0, 3, both);
  const Work behind = timeline.add(a, Timeline::kNone, 0, 0.5, {});
  const Work alone = timeline.add(Timeline::kNone, Timeline::kNone, 0, 0.25, {&behind, 1});
  timeline.run();
  EXPECT_NEAR(timeline.end_s(first), 2, kTolerance);
  EXPECT_NEAR(timeline.end_s(other), 1, kTolerance);
  EXPECT_NEAR(timeline.end_s(join), 5, kTolerance) << "waits for stream a";
  EXPECT_NEAR(timeline.end_s(behind), 2.5, kTolerance) << "does not wait for stream b";
  EXPECT_NEAR(timeline.end_s(alone), 2.75, kTolerance);
  EXPECT_NEAR(timeline.streams()[b].busy_s, 4, kTolerance);
  EXPECT_NEAR(timeline.end_s(), 5, kTolerance);
}

// Two cores: 2 s on both beside 2 s on one. Together they want three, so both run at 2/3; after 3 s
// both are done. What shares nothing is not slowed.
TEST(Timeline, WorkSharesCores) {
  Timeline timeline;
  const int cores = timeline.add_resource(2), drive = timeline.add_resource(1);
  const int streams[] = {timeline.add_stream("a"), timeline.add_stream("b"),
                         timeline.add_stream("c"), timeline.add_stream("d")};
  const Work both = timeline.add(streams[0], cores, 2, 2, {});
  const Work one = timeline.add(streams[1], cores, 1, 2, {});
  const Work read = timeline.add(streams[2], drive, 1, 1, {});
  const Work write = timeline.add(streams[3], drive, 1, 3, {});
  timeline.run();
  EXPECT_NEAR(timeline.end_s(both), 3, kTolerance);
  EXPECT_NEAR(timeline.end_s(one), 3, kTolerance);
  EXPECT_NEAR(timeline.end_s(read), 2, kTolerance) << "half the drive until 2 s";
  EXPECT_NEAR(timeline.end_s(write), 4, kTolerance) << "half of it until 2 s, then all";
}

// A stream waits for its turn when it stood idle until another's piece ended and others have all
// cores: not behind its own work, not when it had work until later, and not when cores are free.
// Until its turn it takes nothing: the other piece has both cores until 3.5 s.
TEST(Timeline, AStreamThatWaitedForAnotherWaitsForItsTurn) {
  Timeline timeline;
  timeline.set_wake(0, 0.5);
  const int cores = timeline.add_resource(2);
  const int a = timeline.add_stream("a"), b = timeline.add_stream("b");
  const int c = timeline.add_stream("c");
  const Work first = timeline.add(a, Timeline::kNone, 0, 3, {});
  const Work woken = timeline.add(b, cores, 2, 1, {&first, 1});
  const Work beside = timeline.add(c, cores, 2, 4, {});
  const Work behind = timeline.add(b, Timeline::kNone, 0, 1, {});
  const Work late = timeline.add(c, Timeline::kNone, 0, 1, {&first, 1});
  const Work free = timeline.add(Timeline::kNone, Timeline::kNone, 0, 1, {&first, 1});
  const Work after_free = timeline.add(a, Timeline::kNone, 0, 2, {&free, 1});
  const Work alone = timeline.add(timeline.add_stream("d"), cores, 1, 1, {&after_free, 1});
  timeline.run();
  EXPECT_NEAR(timeline.start_s(alone), 6, kTolerance) << "both cores are free";
  EXPECT_NEAR(timeline.start_s(first), 0, kTolerance);
  EXPECT_NEAR(timeline.start_s(woken), 3.5, kTolerance);
  EXPECT_NEAR(timeline.end_s(beside), 4.5, kTolerance) << "half the cores from 3.5 s on";
  EXPECT_NEAR(timeline.end_s(woken), 5, kTolerance) << "half the cores until 4.5 s";
  EXPECT_NEAR(timeline.start_s(behind), 5, kTolerance);
  EXPECT_NEAR(timeline.start_s(late), 4.5, kTolerance);
  EXPECT_NEAR(timeline.start_s(free), 3, kTolerance);
  EXPECT_NEAR(timeline.start_s(after_free), 4, kTolerance);
  EXPECT_NEAR(timeline.streams()[b].busy_s, 2.5, kTolerance) << "waiting is no work";
}

// A stream that stood idle until another's piece ended goes on later; one behind its own work, and
// what is in no stream, do not. A slice comes behind that where others have all cores.
TEST(Timeline, AStreamThatWaitedForAnotherWakes) {
  Timeline timeline;
  timeline.set_wake(0.25, 0.5);
  const int cores = timeline.add_resource(1);
  const int a = timeline.add_stream("a"), b = timeline.add_stream("b");
  const int c = timeline.add_stream("c");
  const Work first = timeline.add(a, Timeline::kNone, 0, 2, {});
  const Work woken = timeline.add(b, Timeline::kNone, 0, 1, {&first, 1});
  const Work behind = timeline.add(b, Timeline::kNone, 0, 1, {&first, 1});
  const Work in_no_stream = timeline.add(Timeline::kNone, Timeline::kNone, 0, 1, {&first, 1});
  timeline.add(c, cores, 1, 4, {});
  const Work turn = timeline.add(timeline.add_stream("d"), cores, 1, 1, {&first, 1});
  timeline.run();
  EXPECT_NEAR(timeline.start_s(woken), 2.25, kTolerance);
  EXPECT_NEAR(timeline.start_s(behind), 3.25, kTolerance);
  EXPECT_NEAR(timeline.start_s(in_no_stream), 2, kTolerance);
  EXPECT_NEAR(timeline.start_s(turn), 2.75, kTolerance);
  EXPECT_NEAR(timeline.streams()[b].busy_s, 2, kTolerance) << "waking is no work";
}

// Three together want twice what the memory can move: what moves all the time takes twice as long,
// what moves for a fifth of it longer by a fifth, what does not as long as alone.
TEST(Timeline, WorkSharesMemory) {
  Timeline timeline;
  const int cores = timeline.add_resource(2);
  const auto add = [&](double seconds, double demand, double memory) {
    return timeline.add(timeline.add_stream(""), cores, demand, seconds, {}, memory);
  };
  const Work all = add(2, 0.5, 1), again = add(2, 0.5, 0.8), part = add(5, 0.5, 0.2);
  const Work none = add(5, 0.5, 0);
  timeline.run();
  // 1 s of `again` takes 1.8 s: it ends at 3.6 s, and `all`, of which 0.2 s are left then, at 1.2
  // of what the memory has, so after 0.24 s more.
  EXPECT_NEAR(timeline.end_s(again), 3.6, kTolerance);
  EXPECT_NEAR(timeline.end_s(all), 3.6 + 0.2 * 1.2, kTolerance);
  EXPECT_NEAR(timeline.end_s(none), 5, kTolerance);
  const double done = 3.6 / 1.2 + 0.24 / 1.04;
  EXPECT_NEAR(timeline.end_s(part), 3.84 + 5 - done, kTolerance);
}

// What gets half of a core moves half as much.
TEST(Timeline, WorkThatWaitsForCoresMovesLess) {
  Timeline timeline;
  const int cores = timeline.add_resource(1);
  const Work a = timeline.add(timeline.add_stream("a"), cores, 1, 1, {}, 1);
  const Work b = timeline.add(timeline.add_stream("b"), cores, 1, 1, {}, 1);
  timeline.run();
  EXPECT_NEAR(timeline.end_s(a), 2, kTolerance);
  EXPECT_NEAR(timeline.end_s(b), 2, kTolerance);
}

// ---- plans ----

struct Budgeted {
  Budgeted(std::mt19937& random, int devices, double room, PlanOptions options = {})
      : shape(random_shape(random, devices)), pages(shape) {
    shape.options = options;
    MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(devices, 0)};
    auto roomy = plan_memory(shape, pages, budget, 0);
    CHECK(roomy.ok());
    if (room < 1) {
      budget.device_bytes = roomy->min_device_bytes;
      budget.host_bytes = roomy->min_host_bytes + static_cast<int64_t>(room * kMiB);
    }
    memory = plan_memory(shape, pages, budget, 0).take();
  }
  // Steps with the routings of `seed`, simulated; the gradients of step `skipped` are not finite.
  // `core_s`: where the time of cores that tasks take goes, if anywhere.
  Simulated simulate(const MachineProfile& profile, uint32_t seed, int steps, bool eager,
                     int skipped = -1, double* core_s = nullptr) const {
    std::mt19937 random(seed);
    RunShape as_asked = shape;
    as_asked.eager_adam = eager;
    DryRun run(as_asked, pages, memory.classes, memory.state_on_device,
               Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
    Simulator simulator(&shape, &pages, profile,
                        all_on_disk(shape, pages, memory.classes));
    for (int step = 0; step < steps; ++step) {
      const auto visit = [&](const StepPiece& piece) {
        simulator.run(piece);
        for (const Task& task : piece.tasks) {
          const Cost& cost = profile.of(task.kind);
          if (core_s == nullptr) continue;
          *core_s += cost.seconds(task_units(task, shape)) * cost.cores;
          *core_s += profile.issue.seconds(0) * profile.issue.cores;
        }
      };
      run.train(random_routing(random, shape), visit, step == skipped);
      simulator.end_step();
      if (step != skipped) continue;
      for (int64_t record : run.touched()) simulator.discard(pages.gradient(record));
    }
    return simulator.finish();
  }
  RunShape shape;
  PageTable pages;
  MemoryPlan memory;
};

MachineProfile some_profile() {
  MachineProfile profile;
  profile.cores = 2;
  for (Cost& cost : profile.tasks) cost = {1e-4, 1e-6, 2};
  profile.of(TaskKind::kPrefetch) = profile.of(TaskKind::kUpload) = {};
  profile.issue = {1e-6, 0, 1};
  profile.upload = profile.download = {0, 1e-10, 1};
  profile.checksum = {0, 5e-11, 1};
  profile.read = profile.write = {1e-5, 1e-9, 0};
  profile.completion_s = 2e-5;
  return profile;
}

// With room for everything, and experts that all are wanted in each step, the first step brings up
// weights and the second states; the third moves nothing and takes the sum of its tasks.
TEST(Simulator, WithRoomForEverythingAStepIsTheSumOfItsTasks) {
  std::mt19937 random(11);
  const Budgeted run(random, 1, 1);
  ASSERT_TRUE(run.memory.state_on_device);
  MachineProfile profile = some_profile();
  profile.issue = {};
  DryRun planned(run.shape, run.pages, run.memory.classes, true,
                 Ledger(false, 0, std::vector<int64_t>(run.shape.records.size(), 0)));
  Simulator simulator(&run.shape, &run.pages, profile,
                      all_on_disk(run.shape, run.pages, run.memory.classes));
  const Routing routing(run.shape.microbatches, std::vector(run.shape.num_layers,
                                       std::vector<int64_t>(run.shape.num_experts, 700)));
  double tasks_s = 0;
  PageTraffic before;
  for (int step = 0; step < 3; ++step) {
    tasks_s = 0;
    before = simulator.replay().traffic();
    planned.train(routing, [&](const StepPiece& piece) {
      for (const Task& task : piece.tasks) {
        tasks_s += profile.of(task.kind).seconds(task_units(task, run.shape));
      }
      simulator.run(piece);
    });
    simulator.end_step();
  }
  const Simulated result = simulator.finish();
  EXPECT_GT(before.upload.moves, 0);
  EXPECT_EQ(result.ranks.front().traffic, before) << "the third step moves something";
  EXPECT_NEAR(result.step_s[2], tasks_s, 1e-9 * tasks_s);
  EXPECT_NEAR(result.makespan_s, result.step_s[0] + result.step_s[1] + result.step_s[2], 1e-9);
}

TEST(Simulator, NothingDoesMoreThanItCan) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int devices = static_cast<int>(1 + random() % 3);
    const Budgeted run(random, devices, 0.1 * static_cast<double>(random() % 4));
    MachineProfile profile = some_profile();
    profile.half_duplex = random() % 2 == 0;
    const bool eager = random() % 2 == 0;
    const int skipped = eager ? -1 : 1;
    double core_s = 0;
    const Simulated result = run.simulate(profile, seed, 3, eager, skipped, &core_s);
    const double makespan = result.makespan_s * (1 + 1e-9);
    for (const SimulatedStream& s : result.streams) EXPECT_LE(s.busy_s, makespan) << s.name;
    const PageTraffic& traffic = result.ranks.front().traffic;
    const auto moved_s = [](const Cost& cost, const PageTraffic::Link& link) {
      return cost.cores * (cost.fixed_s * static_cast<double>(link.moves) +
                           cost.unit_s * static_cast<double>(link.bytes));
    };
    core_s += moved_s(profile.upload, traffic.upload) +
              moved_s(profile.download, traffic.download) +
              moved_s(profile.checksum, traffic.fetch) +
              moved_s(profile.checksum, traffic.write_back);
    EXPECT_LE(core_s, profile.cores * makespan);
    EXPECT_GE(core_s, 0.1 * profile.cores * makespan) << "nearly nothing was counted";
    const double read_s = profile.read.fixed_s * static_cast<double>(traffic.fetch.moves) +
                          profile.read.unit_s * static_cast<double>(traffic.fetch.bytes);
    const double write_s = profile.write.fixed_s * static_cast<double>(traffic.write_back.moves) +
                           profile.write.unit_s * static_cast<double>(traffic.write_back.bytes);
    const double drive_s = profile.half_duplex ? read_s + write_s : std::max(read_s, write_s);
    EXPECT_GT(traffic.fetch.moves, 0);
    EXPECT_LE(drive_s, makespan);
    EXPECT_EQ(run.simulate(profile, seed, 3, eager, skipped).makespan_s, result.makespan_s);
    if (testing::Test::HasFailure()) return;
  }
}

// What does not share cores is only ever delayed by what it waits for: a machine that is slower
// somewhere, or a plan that waits more, cannot be sooner.
TEST(Simulator, SlowerPartsNeverHelp) {
  int helped_less = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto makespan = [&](const MachineProfile& profile, PlanOptions options, bool eager) {
      std::mt19937 random(seed);
      return Budgeted(random, 1, 0.1, options).simulate(profile, seed, 2, eager).makespan_s;
    };
    MachineProfile base = some_profile();
    base.cores = 100;
    base.half_duplex = false;
    for (bool eager : {false, true}) {
      const double fast = makespan(base, {}, eager) * (1 - 1e-9);
      ASSERT_GT(fast, 0);
      MachineProfile slow_disk = base, slow_copies = base, slow_adam = base, half = base;
      slow_disk.read.unit_s *= 4;
      slow_copies.upload.unit_s *= 4;
      slow_adam.of(TaskKind::kAdam).unit_s *= 4;
      half.half_duplex = true;
      for (const MachineProfile& slow : {slow_disk, slow_copies, slow_adam}) {
        const double slower = makespan(slow, {}, eager);
        EXPECT_GE(slower, fast);
        helped_less += slower > fast * (1 + 1e-6);
      }
      EXPECT_GE(makespan(half, {}, eager), fast);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(helped_less, 30) << "slower parts made no step longer";
}

// The switches of [plan] cost time where they should: optimizer work and transfers that could hide
// behind computation do not.
TEST(Simulator, SwitchesCostTime) {
  MachineProfile profile = some_profile();
  profile.cores = 100;
  profile.of(TaskKind::kAdam) = {0, 1e-7, 1};
  const auto second_step = [&](PlanOptions options) {
    std::mt19937 same(4);
    return Budgeted(same, 1, 0.5, options).simulate(profile, 9, 2, false).step_s[1];
  };
  const double full = second_step({});
  EXPECT_GT(second_step({.prefetch = false}), full);
  EXPECT_GT(second_step({.optimizer_at_end = true}), full);
}

TEST(MachineProfile, CostsAreFittedToSamples) {
  const Cost line = fit_cost(std::vector<CostSample>{{10, 1.5}, {20, 2.0}, {40, 3.0}}, 2);
  EXPECT_NEAR(line.fixed_s, 1.0, kTolerance);
  EXPECT_NEAR(line.unit_s, 0.05, kTolerance);
  EXPECT_EQ(line.cores, 2);
  const Cost constant = fit_cost(std::vector<CostSample>{{64, 1}, {64, 3}}, 1);
  EXPECT_NEAR(constant.seconds(64), 2, kTolerance);
  const Cost below = fit_cost(std::vector<CostSample>{{1, 0.1}, {2, 2.0}}, 1);
  EXPECT_EQ(below.fixed_s, 0) << "no task takes less than nothing";
  EXPECT_GT(below.unit_s, 0);
  EXPECT_EQ(fit_cost({}, 1).seconds(100), 0);
}

// Counted by hand: 0.5 s to start, 0.25 s for each of the tasks, 0.01 s for a unit.
TEST(MachineProfile, TasksThatAreComputedTogetherStartOnce) {
  const auto sample = [](double tasks, double units) {
    return CostSample{.units = units, .seconds = 0.5 + 0.25 * tasks + 0.01 * units, .tasks = tasks};
  };
  const std::vector<CostSample> samples = {sample(1, 10), sample(1, 90), sample(12, 60),
                                           sample(6, 80)};
  const Cost cost = fit_cost(samples, 1);
  EXPECT_NEAR(cost.start_s, 0.5, kTolerance);
  EXPECT_NEAR(cost.fixed_s, 0.25, kTolerance);
  EXPECT_NEAR(cost.unit_s, 0.01, kTolerance);
  EXPECT_NEAR(cost.seconds(20), 0.95, kTolerance);
  EXPECT_NEAR(cost.joined_s(20), 0.45, kTolerance);
  EXPECT_NEAR(cost.slower(3).seconds(20), 3 * 0.95, kTolerance);
  // All are as many: what starts cannot be told from what each takes.
  const Cost alike = fit_cost(std::vector<CostSample>{sample(12, 60), sample(12, 240)}, 1);
  EXPECT_EQ(alike.start_s, 0);
  EXPECT_NEAR(12 * alike.fixed_s, 3.5, kTolerance);
  EXPECT_NEAR(alike.unit_s, 0.01, kTolerance);
}

}  // namespace
}  // namespace pagoda
