// Shares of work that follow the devices' measured speed: a device that becomes three times as slow
// in the middle of a run has about half its share a few steps later, and the run's bits are those
// of one device. And what of the measured times counts, for moves of homes too.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "plan/machine/device_speeds.h"
#include "tests/testing/plan/two_ranks.h"
#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/small_file_system.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/watchdog.h"
#include "train/run_setup.h"
#include "train/work_balance.h"

namespace pagoda {
namespace {

// Takes the devices' speeds behind a step, and deals again if that pays.
Result<bool> follow(Trainer& trainer) {
  ASSIGN_OR_RETURN(const bool pays, trainer.measure_shares());
  if (!pays) return false;
  if (trainer.makes_checkpoints()) RETURN_IF_ERROR(trainer.save());
  RETURN_IF_ERROR(trainer.deal_again());
  return true;
}

// The part of a step's tokens that a device attends to.
double share_of(const RunShape& shape, size_t device) {
  const std::vector<int64_t> tokens = attended_tokens(shape, shape.shard_device);
  int64_t all = 0;
  for (const int64_t of_device : tokens) all += of_device;
  return static_cast<double>(tokens[device]) / static_cast<double>(all);
}

constexpr int64_t kSlowedAt = 20, kWithin = 5;
constexpr double kSlow = 4, kSlower = 12;

// Devices that are equal until one is throttled.
RunLeg measured_leg(int ranks, int devices_of_rank, int64_t until) {
  RunLeg leg{ranks, devices_of_rank};
  leg.until = until;
  leg.configure = [devices_of_rank](RunConfig& config, int) {
    config.train.devices.assign(static_cast<size_t>(devices_of_rank), strf("cpu/%g", kSlow));
    config.train.steps = 1000;  // a deal in the last one pays
    config.parallel.shares = ShareKind::kMeasured;
  };
  return leg;
}

// A share of a quarter is ten of forty shards.
TEST(MeasuredShares, FollowADeviceThatBecomesSlower) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(300));
  const int64_t until = kSlowedAt + kWithin;
  RankedTrainers run(ClipKind::kGlobal, until, [](RunConfig& config) {
    config.train.shards = 40;
    config.train.tokens_per_step = 40 * 32;  // a microbatch for each
    config.optim.schedule = ScheduleKind::kConstant;
  });
  RunLeg leg = measured_leg(1, 2, until);
  leg.configure = [measured = leg.configure](RunConfig& config, int rank) {
    measured(config, rank);
    config.memory.device = MemorySize::of_bytes(1400 * 1024);  // not for all experts: seats vary
  };
  double before = 0, after = 0;
  std::vector<double> seats;
  leg.stepped = [&](Trainer& trainer, RankGroup&) {
    RETURN_IF_ERROR(follow(trainer).status());
    Session& session = trainer.session();
    if (trainer.steps_done() >= kSlowedAt) session.executor().throttle(1, {kSlower, kSlower});
    if (trainer.steps_done() == kSlowedAt) before = share_of(session.shape(), 1);
    after = share_of(session.shape(), 1);
    seats = session.shape().seat_speeds;
    return Status();
  };
  const LegOutcome outcome = run.run(leg);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(run.sha256(), run.expected());
  ASSERT_EQ(seats.size(), 2u);
  const double of_seats = seats[1] / (seats[0] + seats[1]);
  // Exactly: 0.5, and then 0.25 of both. How near a machine's clock comes to it depends on what
  // else runs there, so that only the direction is asserted.
  std::printf("device 1 attended to %.3f of the tokens, three times as slow to %.3f; seats %.3f\n",
              before, after, of_seats);
  EXPECT_LT(after, 0.75 * before);
  EXPECT_LT(of_seats, 0.4);
}

RankedTrainers run_of_looks(const char* model, int64_t looks) {
  return RankedTrainers(
      ClipKind::kGlobal, looks * kMeasureSteps,
      [](RunConfig& config) {
        config.train.micro_batch_tokens = 512;  // work that takes its time
        config.train.tokens_per_step = 4 * 512;
        config.train.shards = 4;
        config.optim.schedule = ScheduleKind::kConstant;
      },
      model);
}

constexpr int64_t kLooks = 2;

// With a second device that is slow: at how many looks a deal pays, which is not made.
int64_t times_asked(RankedTrainers& run) {
  RunLeg leg = measured_leg(1, 2, kLooks * kMeasureSteps);
  leg.started = [](Trainer& trainer, RankGroup&) {
    trainer.session().executor().throttle(1, {kSlower, kSlower});
    return Status();
  };
  int64_t asked = 0;
  leg.stepped = [&](Trainer& trainer, RankGroup&) {
    ASSIGN_OR_RETURN(const bool pays, trainer.measure_shares());
    asked += pays;
    return Status();
  };
  const LegOutcome outcome = run.run(leg);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return asked;
}

// The step could not be saved, say: a deal that pays is asked for at each look, though speeds are
// those of the look before.
TEST(MeasuredShares, ADealThatIsNotMadeIsAskedForAgain) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(300));
  RankedTrainers run = run_of_looks("{}", kLooks);
  EXPECT_EQ(times_asked(run), kLooks);
  EXPECT_EQ(run.sha256(), run.expected());
}

// No device has rows of experts, and attention is dealt by its own times.
TEST(MeasuredShares, AreFollowedWithoutExpertsToo) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(300));
  RankedTrainers run = run_of_looks(R"({"mlp_only_layers": [0, 1, 2]})", kLooks);
  EXPECT_EQ(times_asked(run), kLooks);
  EXPECT_EQ(run.sha256(), run.expected());
}

// A device that is fifteen times as slow gets none of four shards, and then has no work by which to
// measure it. It keeps its speed, or shards would come back at the next look, and go again.
TEST(MeasuredShares, ADeviceWithoutWorkKeepsItsSpeed) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(300));
  constexpr int64_t kThreeLooks = 3;
  RankedTrainers run = run_of_looks(R"({"mlp_only_layers": [0, 1, 2]})", kThreeLooks);
  RunLeg leg = measured_leg(1, 2, kThreeLooks * kMeasureSteps);
  const auto slow_down = [](Trainer& trainer) {
    trainer.session().executor().throttle(1, {15 * kSlow, 15 * kSlow});
  };
  leg.started = [&](Trainer& trainer, RankGroup&) {
    slow_down(trainer);
    return Status();
  };
  int64_t deals = 0;
  double left = 1;
  leg.stepped = [&](Trainer& trainer, RankGroup&) {
    ASSIGN_OR_RETURN(const bool again, follow(trainer));
    deals += again;
    slow_down(trainer);
    left = share_of(trainer.session().shape(), 1);
    return Status();
  };
  const LegOutcome outcome = run.run(leg);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_GE(deals, 1);
  EXPECT_LE(deals, 2) << "of three looks";  // a machine with other work may take two
  EXPECT_EQ(left, 0);
  EXPECT_EQ(run.sha256(), run.expected());
}

// Experts that exchanged homes, within a rank and between ranks, have them behind a deal.
TEST(MeasuredShares, ADealLeavesHomes) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, kMeasureSteps + 1, [](RunConfig& config) {
    config.train.tokens_per_step = 256;
    config.optim.schedule = ScheduleKind::kConstant;
  });
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    run.begin();
    RunLeg leg = measured_leg(ranks, 2, kMeasureSteps + 1);
    leg.configure = [measured = leg.configure](RunConfig& config, int rank) {
      measured(config, rank);
      config.parallel.place = PlaceKind::kHome;
    };
    leg.started = [](Trainer& trainer, RankGroup& group) {
      if (group.rank() == 0) trainer.session().executor().throttle(1, {10 * kSlow, 10 * kSlow});
      return Status();
    };
    int64_t moved = 0, deals = 0;
    leg.stepped = [&](Trainer& trainer, RankGroup& group) {
      const auto homes = [&] {
        std::vector<int> of_experts;
        for (const RecordShape& record : trainer.session().shape().records) {
          if (record.expert >= 0) of_experts.push_back(record.device);
        }
        return of_experts;
      };
      const std::vector<int> before = homes();
      if (trainer.steps_done() == 1) {  // 0 and 1 are neighbours, 2 goes one device further
        const int64_t first = trainer.session().shape().expert(0, 0);
        const HomeSwap swaps[] = {{first, first + 1}, {first + 1, first + 2}};
        RETURN_IF_ERROR(trainer.exchange_homes(swaps));
        if (group.rank() == 0) moved += before != homes();
        return Status();
      }
      ASSIGN_OR_RETURN(const bool again, follow(trainer));
      if (group.rank() == 0) deals += again;
      EXPECT_EQ(homes(), before);
      return Status();
    };
    const LegOutcome outcome = run.run(leg);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_EQ(moved, 1);
    EXPECT_EQ(deals, 1);
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path().filename().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// A rank that does not attend any more has no dense layers at home, so that a deal makes new stores
// beside the old ones. On a full disk it waits, and the run goes on as it is.
TEST(MeasuredShares, ADealWaitsForRoomOnDisks) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, 2 * kMeasureSteps + 1, [](RunConfig& config) {
    config.train.tokens_per_step = 128;  // four microbatches, in four shards
    config.optim.schedule = ScheduleKind::kConstant;
  });
  for (const bool full : {false, true}) {
    SCOPED_TRACE(full);
    run.begin();
    const TempDir dir;
    const SmallFileSystem disk(dir.path(), 64 * kMiB);
    if (!disk.ok()) GTEST_SKIP() << "mounting a small file system needs root";
    RunLeg leg = measured_leg(2, 1, 2 * kMeasureSteps + 1);
    leg.disk = {dir.path()};
    leg.started = [&](Trainer& trainer, RankGroup& group) {
      if (group.rank() == 0) {
        trainer.session().executor().throttle(0, {15 * kSlow, 15 * kSlow});
        if (full) disk.fill();
      }
      return group.agree(Status());
    };
    std::vector<std::string> before, after;
    std::atomic<int64_t> deals = 0;
    leg.stepped = [&](Trainer& trainer, RankGroup& group) {
      if (group.rank() == 0 && before.empty()) before = files_in(dir.path());
      RETURN_IF_ERROR(group.agree(Status()));
      const bool first_look = trainer.steps_done() == kMeasureSteps;
      bool again = false;
      if (full || first_look) {
        ASSIGN_OR_RETURN(again, follow(trainer));
      }
      if (again) RETURN_IF_ERROR(trainer.save());
      deals += again;
      RETURN_IF_ERROR(group.agree(Status()));
      if (group.rank() == 0 && again) after = files_in(dir.path());
      if (group.rank() == 0 && full && first_look) {
        EXPECT_EQ(deals, 0);
        EXPECT_EQ(files_in(dir.path()), before);
        disk.make_room();
      }
      return group.agree(Status());
    };
    const LegOutcome outcome = run.run(leg);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_EQ(deals, 2);
    EXPECT_NE(before, after) << "a deal without new stores says nothing";
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

// Seconds by hand: a step takes 2, a save 3, and the faster of two flushes 2 for 100 bytes.
TEST(ShareBalance, ADealTakesWhatItWrites) {
  ShareBalance shares(true);
  const RunShape shape = two_ranks({1}, Sharing::kRows);
  shares.end_step(shape, 2, nullptr);
  EXPECT_FALSE(shares.has_written());
  EXPECT_DOUBLE_EQ(shares.cost_s(0), 2);
  EXPECT_DOUBLE_EQ(shares.cost_s(1000), 2);
  shares.saved(3);
  shares.wrote(0, 1);
  EXPECT_TRUE(shares.has_written());
  EXPECT_DOUBLE_EQ(shares.cost_s(1000), 3) << "nothing says how fast it writes";
  shares.wrote(100, 4);
  shares.wrote(100, 2);
  shares.wrote(100, 5);
  EXPECT_DOUBLE_EQ(shares.cost_s(0), 3);
  EXPECT_DOUBLE_EQ(shares.cost_s(1000), 3 + 20);
  shares.dealt(5, false);
  EXPECT_DOUBLE_EQ(shares.cost_s(0), 3 + 5);
  EXPECT_DOUBLE_EQ(shares.cost_s(1000), 3 + 20) << "it says nothing of new stores";
  shares.dealt(7, true);
  EXPECT_DOUBLE_EQ(shares.cost_s(0), 3 + 5);
  EXPECT_DOUBLE_EQ(shares.cost_s(1000), 3 + 7);
}

// Attention takes a second on both. Three rows of experts take another one on the first and three
// on the second, which is then half as fast.
TEST(MeasuredShares, DealByTheTimeOfExpertsThatFollow) {
  RunSetup setup;
  setup.devices.resize(2);
  setup.size.sums.shards = 6;
  const double experts[] = {3, 1};
  for (size_t d = 0; d < 2; ++d) {
    setup.devices[d].measured_attention = 1;
    setup.devices[d].measured_experts = experts[d];
  }
  setup.deal_attention(2);
  EXPECT_EQ(setup.size.shard_device, (std::vector<int>{0, 0, 0, 1, 1, 1}));
  setup.token_rows = 3;
  setup.deal_attention(2);
  EXPECT_EQ(setup.size.shard_device, (std::vector<int>{0, 0, 0, 0, 1, 1}));
}

struct Mesh {
  int ranks, devices_each;
  int64_t stages = 1;
  bool saves = true;  // checkpoints
};
struct Deals {
  int64_t all = 0, in_stages = 0, unsaved = 0;
};

constexpr int64_t kSteps = 14, kResumedAt = 9;

// Each device in turn is the slow one.
void slow_one(Trainer& trainer) {
  const DeviceRange own = trainer.session().shape().own_devices();
  for (int d = 0; d < own.count; ++d) {
    const bool slow = trainer.steps_done() / 4 % 3 == (own.first + d) % 3;
    const double factor = slow ? 20 : 2;
    trainer.session().executor().throttle(d, {factor, factor});
  }
}

// Behind a step: all ranks have the same deal, and stages their `layers`.
Status expect_alike(Trainer& trainer, RankGroup& group, const Mesh& mesh, std::vector<int>& layers,
                    Deals& deals) {
  if (mesh.saves && trainer.steps_done() == 3) RETURN_IF_ERROR(trainer.save());
  RETURN_IF_ERROR(trainer.balance_homes().status());
  ASSIGN_OR_RETURN(const bool again, follow(trainer));
  EXPECT_EQ(trainer.saved_step() >= 0, mesh.saves);
  std::string deal = again ? "dealt:" : "as it was:";
  for (const int d : trainer.session().shape().shard_device) deal += strf(" %d", d);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.agree(Status(), deal));
  for (const std::string& of_rank : all) EXPECT_EQ(of_rank, all[0]);
  if (group.rank() == 0) {
    deals.all += again;
    deals.in_stages += again && mesh.stages > 1;
    deals.unsaved += again && !mesh.saves;
    const std::vector<int>& now = trainer.session().shape().stages.layers;
    if (layers.empty()) layers = now;
    EXPECT_EQ(layers, now);
  }
  slow_one(trainer);
  return Status();
}

void expect_same_bits(RankedTrainers& run, const Mesh& mesh, Deals& deals) {
  SCOPED_TRACE(strf("%d x %d, %lld stages, saves %d", mesh.ranks, mesh.devices_each,
                    (long long)mesh.stages, mesh.saves));
  run.begin();
  RunLeg leg{mesh.ranks, mesh.devices_each};
  leg.smallest = mesh.ranks == 3;
  leg.until = mesh.saves ? kResumedAt : kSteps;
  std::vector<int> layers;  // [layer] its stage, in the leg
  leg.configure = [&](RunConfig& config, int) {
    if (mesh.stages > 1) config.parallel.layout = LayoutKind::kPipeline;
    config.parallel.stages = mesh.stages;
    config.train.devices = {strf("cpu/2*%d", leg.devices_each)};
    config.train.steps = 1000;
    if (!mesh.saves) config.train.save_steps = 0;
    config.parallel.shares = ShareKind::kMeasured;
    config.parallel.migrate_steps = 3;
  };
  leg.stepped = [&](Trainer& trainer, RankGroup& group) {
    return expect_alike(trainer, group, mesh, layers, deals);
  };
  LegOutcome outcome = run.run(leg);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  if (mesh.saves) {
    leg.resume = true;
    leg.until = kSteps;
    layers.clear();
    outcome = run.run(leg);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  }
  EXPECT_EQ(run.sha256(), run.expected());
}

// Each device in turn is the slow one, in the smallest budgets, in several ranks or one, with saves
// and a resume in between or with neither. Whatever is dealt, all ranks have the same, the run its
// bits, and stages their layers, also where one of a stage's devices attends no more.
TEST(MeasuredShares, ChangeNoBit) {
  const Watchdog watchdog("measured shares", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, kSteps, [](RunConfig& config) {
    config.train.tokens_per_step = 128;  // four microbatches, in four shards
    config.optim.schedule = ScheduleKind::kConstant;
  });
  Deals deals;
  for (const Mesh& mesh : {Mesh{1, 3}, Mesh{3, 1}, Mesh{2, 2}, Mesh{2, 2, 2}, Mesh{1, 3, 1, false},
                           Mesh{2, 2, 1, false}}) {
    expect_same_bits(run, mesh, deals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(deals.all, 2) << "nothing was tried";
  EXPECT_GT(deals.in_stages, 0) << "nothing was tried in stages";
  EXPECT_GT(deals.unsaved, 0) << "nothing was tried without checkpoints";
}

TEST(UnitTimes, TheFastestStepCounts) {
  UnitTimes times;
  EXPECT_EQ(times.of(0), 0);
  times.add(0, 3, 100);
  times.add(1, 2, 0);
  times.add(0, 8, 400);  // 0.02 s each
  times.add(0, 5, 100);
  EXPECT_DOUBLE_EQ(times.of(0), 0.02);
  EXPECT_EQ(times.of(1), 0) << "it had none";
  times.add(1, 2, 8);
  EXPECT_DOUBLE_EQ(times.of(1), 0.25);
  times.add(1, 0, 8);
  EXPECT_DOUBLE_EQ(times.of(1), 0.25) << "it was not timed";
}

TEST(HomeBalance, TheLastTwoStepsBeforeADecisionAreTimed) {
  const RunShape shape = two_ranks({1}, Sharing::kRows);
  StepResult result;
  result.routing = {{{100, 100}}, {{100, 100}}};
  const auto timed = [&](int64_t every) {
    HomeBalance homes(every);
    std::string text;
    for (int step = 0; step < 10; ++step) {
      text += homes.wants_times() ? "t" : ".";
      homes.end_step(shape, result, 1, nullptr);
      if (homes.due()) text += "|";
    }
    return text;
  };
  EXPECT_EQ(timed(0), "..........");
  EXPECT_EQ(timed(1), "t|t|t|t|t|t|t|t|t|t|");
  EXPECT_EQ(timed(2), "tt|tt|tt|tt|tt|");
  EXPECT_EQ(timed(3), ".tt|.tt|.tt|.");
  EXPECT_EQ(timed(5), "...tt|...tt|");
}

}  // namespace
}  // namespace pagoda
