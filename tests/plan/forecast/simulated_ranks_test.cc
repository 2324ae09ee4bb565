// Several ranks under the simulator's clock: they send what their tasks say, wait for it, and
// without a network that takes time they are as fast as one process with all their devices.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "plan/forecast/simulator.h"
#include "plan/memory/memory_plan.h"
#include "plan/step/rank_part.h"
#include "tests/testing/plan/random_plan.h"

namespace pagoda {
namespace {

constexpr int kSteps = 3;

// The cost of what computes; transfers and the threads that issue take no time.
MachineProfile computing() {
  MachineProfile profile;
  profile.cores = 1000;  // nothing waits for cores
  for (Cost& cost : profile.tasks) cost = {1e-4, 1e-6, 1};
  for (const TaskKind kind : {TaskKind::kPrefetch, TaskKind::kSend, TaskKind::kReceive,
                              TaskKind::kSendPage, TaskKind::kReceivePage}) {
    profile.of(kind) = {};
  }
  return profile;
}

MachineProfile with_network(double latency_s, double byte_s) {
  MachineProfile profile = computing();
  profile.network = {latency_s, byte_s, 0};
  return profile;
}

// A rank, whose machine has room for everything, or for little more than a step needs.
struct Rank {
  Rank(const RunShape& of_all, int number, bool roomy)
      : shape(of_rank(of_all, number)), pages(shape) {
    const auto devices = static_cast<size_t>(shape.own_devices().count);
    MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(devices, 0)};
    memory = plan_memory(shape, pages, budget, 0).take();
    if (roomy) return;
    budget.device_bytes = memory.min_device_bytes + 64 * kKiB;
    budget.host_bytes = memory.min_host_bytes + 64 * kKiB;
    budget.device_updates = false;
    memory = plan_memory(shape, pages, budget, 0).take();
  }

  static RunShape of_rank(RunShape shape, int number) {
    shape.rank = number;
    return shape;
  }

  RunShape shape;
  PageTable pages;
  MemoryPlan memory;
  int64_t sent_bytes = 0, received_bytes = 0;
};

// Steps of all ranks of the shape, simulated together.
struct RankedSteps {
  RankedSteps(const RunShape& shape, bool roomy) {
    for (int r = 0; r < shape.ranks(); ++r) {
      ranks.push_back(std::make_unique<Rank>(shape, r, roomy));
    }
  }

  Simulated simulate(const MachineProfile& profile, uint32_t seed) {
    std::vector<Simulator::Machine> machines;
    std::vector<std::unique_ptr<DryRun>> runs;
    for (const auto& rank : ranks) {
      machines.push_back({profile, all_on_disk(rank->shape, rank->pages, rank->memory.classes)});
      rank->sent_bytes = rank->received_bytes = 0;
      const size_t records = rank->shape.records.size();
      runs.push_back(std::make_unique<DryRun>(rank->shape, rank->pages, rank->memory.classes,
                                              rank->memory.state_on_device,
                                              Ledger(false, 0, std::vector<int64_t>(records, 0))));
    }
    Simulator simulator(&ranks[0]->shape, &ranks[0]->pages, std::move(machines));
    std::mt19937 random(seed);
    for (int step = 0; step < kSteps; ++step) {
      const Routing routing = random_routing(random, ranks[0]->shape);
      std::vector<std::vector<StepPiece>> pieces(ranks.size());
      for (size_t r = 0; r < ranks.size(); ++r) {
        runs[r]->train(routing, [&](const StepPiece& piece) { pieces[r].push_back(piece); });
      }
      for (size_t i = 0; i < pieces[0].size(); ++i) {
        std::vector<const StepPiece*> together;
        for (const auto& of_rank : pieces) together.push_back(&of_rank[i]);
        count(pieces[0][i].all_tasks());
        simulator.run(together);
      }
      simulator.end_step();
    }
    return simulator.finish();
  }

  void count(const TaskList& all) {
    const RunShape& shape = ranks[0]->shape;
    for (const Task& task : all) {
      const int from = shape.rank_of(task.device), to = shape.rank_of(task.peer);
      if (!sends(task.kind) || from == to) continue;
      ranks[static_cast<size_t>(from)]->sent_bytes += task.bytes;
      ranks[static_cast<size_t>(to)]->received_bytes += task.bytes;
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks;
};

RunShape shape_on(int ranks, int devices, uint32_t seed) {
  std::mt19937 random(seed);
  RunShape shape = random_shape(random, devices);
  divide_into_ranks(random, ranks, shape);
  shape.shares_cards = true;
  return shape;
}

TEST(SimulatedRanks, WithoutANetworkAreAsOneProcess) {
  int equal = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int devices = static_cast<int>(2 + seed % 3);
    RunShape shape = shape_on(2, devices, seed);
    // HALO passes rows on within a node, and two ranks are two of them.
    if (shape.exchange == ExchangeOrder::kHalo) shape.exchange = ExchangeOrder::kFlat;
    const Simulated ranked = RankedSteps(shape, true).simulate(computing(), seed);
    shape.device_rank.clear();
    const Simulated one = RankedSteps(shape, true).simulate(computing(), seed);
    ASSERT_EQ(ranked.step_s.size(), static_cast<size_t>(kSteps));
    // Within a process the receiver's lane copies, and until then the sender's page is taken;
    // between ranks it is free once the message has left. And a rank waits for the forward of its
    // own devices alone.
    const double error = std::abs(ranked.makespan_s / one.makespan_s - 1);
    EXPECT_LE(error, 0.05);
    equal += error <= 1e-9;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(equal, 15);
}

// A network so slow that it is nearly all of the step: what leaves a rank shares its card, and so
// does what comes to it.
TEST(SimulatedRanks, SendWhatTheirTasksSayByOneCard) {
  constexpr double kByte = 1e-4;  // seconds
  int sent = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int ranks = static_cast<int>(2 + seed % 2);
    RankedSteps steps(shape_on(ranks, 4, seed), seed % 4 != 0);
    const Simulated slow = steps.simulate(with_network(0, kByte), seed);
    double most = 0, all = 0;
    for (size_t r = 0; r < steps.ranks.size(); ++r) {
      const Rank& rank = *steps.ranks[r];
      EXPECT_EQ(slow.ranks[r].sent_bytes, rank.sent_bytes) << "rank " << r;
      const auto bytes = static_cast<double>(std::max(rank.sent_bytes, rank.received_bytes));
      most = std::max(most, kByte * bytes);
      all += kByte * static_cast<double>(rank.sent_bytes);
    }
    sent += all > 0;
    const double computed = steps.simulate(computing(), seed).makespan_s;
    EXPECT_GE(slow.makespan_s, most * (1 - 1e-9));
    EXPECT_LE(slow.makespan_s, 1.001 * all + computed * (1 + 1e-9));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(sent, 20);
}

// What three ranks of a device each send each other, made by hand. Ranks 0 and 1 have a card of a
// byte a microsecond, rank 2 one of two.
class HandMade {
 public:
  explicit HandMade(std::vector<double> network_rates,
                    ExchangeOrder order = ExchangeOrder::kRounds) {
    std::mt19937 random(3);
    RunShape shape;
    do {
      shape = random_shape(random, 3);
    } while (std::ssize(shape.attending_devices()) < 3);
    shape.device_rank = {0, 1, 2};
    shape.exchange = order;
    shape.network_rates = std::move(network_rates);
    for (int r = 0; r < 3; ++r) ranks_.push_back(std::make_unique<Rank>(shape, r, true));
    pieces_.resize(3);
  }

  void carry(int from, int to, int64_t bytes, int lane = 0) {
    const PageTable& pages = ranks_[0]->pages;
    Task task;
    task.kind = TaskKind::kDispatch;
    task.lane = Lane::kOut;
    task.device = static_cast<uint8_t>(from);
    task.peer = static_cast<uint8_t>(to);
    task.use(pages.leaving(from, to, 0), Place::on_device(from), Access::kCreate);
    add(task);
    task.kind = TaskKind::kSend;
    task.bytes = bytes;
    task.uses[0].access = Access::kRead;
    add(task);
    task.kind = TaskKind::kReceive;
    task.lane = in_lane(lane);
    std::swap(task.device, task.peer);
    task.num_uses = 0;
    task.use(pages.landing(from, to, 0), Place::on_device(to), Access::kCreate);
    add(task);
  }
  double makespan_s() const {
    std::vector<Simulator::Machine> machines;
    std::vector<const StepPiece*> together;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      MachineProfile profile;
      profile.cores = 1000;
      for (Cost& cost : profile.tasks) cost = {};
      profile.network = {0, r == 2 ? 0.5e-6 : 1e-6, 0};
      const Rank& rank = *ranks_[r];
      machines.push_back({profile, all_on_disk(rank.shape, rank.pages, rank.memory.classes)});
      together.push_back(&pieces_[r]);
    }
    Simulator simulator(&ranks_[0]->shape, &ranks_[0]->pages, std::move(machines));
    simulator.run(together);
    return simulator.finish().makespan_s;
  }

 private:
  void add(const Task& task) {
    const auto rank = static_cast<size_t>(task.device);
    pieces_[rank].tasks.push_back(with_own_places(ranks_[rank]->shape, task));
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<StepPiece> pieces_;  // [rank]
};

// Within a rank the lane copies what arrives; what comes from another is where it belongs.
TEST(SimulatedRanks, WhatAnotherRankSentIsThere) {
  Task task;
  task.kind = TaskKind::kReceive;
  task.device = 1;
  task.peer = 0;
  task.bytes = 1000;
  RunShape shape;
  shape.devices = 2;
  EXPECT_EQ(task_units(task, shape), 1000);
  shape.device_rank = {0, 1};
  EXPECT_EQ(task_units(task, shape), 0);
}

TEST(SimulatedRanks, AFastCardTakesFromSeveralByLanes) {
  HandMade by_lanes({10, 10, 20}), by_one({10, 10, 20});
  for (HandMade* run : {&by_lanes, &by_one}) {
    run->carry(0, 2, 1'000'000);
    run->carry(1, 2, 1'000'000, run == &by_lanes ? 1 : 0);
  }
  EXPECT_NEAR(by_lanes.makespan_s(), 1, 1e-9);
  EXPECT_NEAR(by_one.makespan_s(), 2, 1e-9) << "a slow card leaves half of the fast one idle";
}

// Also where cards are not known to differ.
TEST(SimulatedRanks, ALaneTakesOneBehindTheOther) {
  HandMade run({});
  run.carry(0, 2, 1'000'000);
  run.carry(1, 2, 1'000'000);
  EXPECT_NEAR(run.makespan_s(), 2, 1e-9);
}

// In rounds, and in an order in which each lane takes from one at a time.
TEST(SimulatedRanks, AFastCardSendsToSeveral) {
  for (const ExchangeOrder order : {ExchangeOrder::kRounds, ExchangeOrder::kFlat}) {
    HandMade run({10, 10, 20}, order);
    run.carry(2, 0, 1'000'000);
    run.carry(2, 1, 1'000'000);
    EXPECT_NEAR(run.makespan_s(), 1, 1e-9);
  }
}

// A slow one is as slow in either direction, and sends one behind the other.
TEST(SimulatedRanks, ASlowCardSetsThePace) {
  HandMade there({10, 10, 20}), back({10, 10, 20}), two({10, 10, 20});
  there.carry(0, 2, 1'000'000);
  EXPECT_NEAR(there.makespan_s(), 1, 1e-9);
  back.carry(2, 0, 1'000'000);
  EXPECT_NEAR(back.makespan_s(), 1, 1e-9);
  two.carry(0, 1, 1'000'000);
  two.carry(0, 2, 1'000'000);
  EXPECT_NEAR(two.makespan_s(), 2, 1e-9);
}

// One message between two ranks at a time: a slower network cannot help.
TEST(SimulatedRanks, ASlowerNetworkNeverHelps) {
  int helped_less = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto makespan = [&](double latency_s, double byte_s) {
      RankedSteps steps(shape_on(2, static_cast<int>(2 + seed % 3), seed), seed % 2 == 0);
      return steps.simulate(with_network(latency_s, byte_s), seed).makespan_s;
    };
    const double fast = makespan(1e-5, 1e-9);
    EXPECT_EQ(makespan(1e-5, 1e-9), fast);
    for (const double slow : {makespan(1e-3, 1e-9), makespan(1e-5, 1e-7)}) {
      EXPECT_GE(slow, fast * (1 - 1e-9));
      helped_less += slow > fast * (1 + 1e-3);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(helped_less, 30);
}

}  // namespace
}  // namespace pagoda
