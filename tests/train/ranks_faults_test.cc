// Trainers on several ranks whose storage fails: they end together, or save a step less, and what
// they go on with ends in the bits of one process (tests/testing/ranks/ranked_trainers.h).
#include <gtest/gtest.h>

#include "parallel/host_name.h"
#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

// Each rank has a machine of its own, one of whose calls fails: one in nine, others of each rank.
// All end with the error, or save a step less; what they go on with ends in the same bits.
// (trainer_fault_test has every call of a trainer without ranks.)
TEST(RanksFaults, CallsOfEachRankFail) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(900));
  RankedTrainers run(ClipKind::kGlobal, 2);
  const int64_t stride = kUnderSanitizer ? 59 : 9;
  int64_t failed_runs = 0;
  for (int faulty = 0; faulty < 2; ++faulty) {
    for (int64_t call = 1 + 4 * faulty; call < 2000; call += stride) {
      SCOPED_TRACE(strf("call %lld of rank %d", (long long)call, faulty));
      run.begin();
      TwoMachines two;
      RunLeg leg = two.leg();
      leg.until = 1;
      expect_ok(run.run(leg));
      leg.resume = true;
      leg.until = 2;
      two.machines[faulty]->inject({.calls = kSimAll, .nth = call});
      LegOutcome outcome = run.run(leg);
      const bool done = two.machines[faulty]->faults() == 0;
      two.machines[faulty]->clear_faults();
      for (const Status& status : outcome.statuses) {
        EXPECT_EQ(status.code(), outcome.status().code()) << status.message();
        EXPECT_EQ(status.message(), outcome.status().message());
      }
      failed_runs += !outcome.ok();
      if (!outcome.ok()) {
        run.forget_last_leg();
        two.restart();
        outcome = run.run(leg);
        expect_ok(outcome);
        if (outcome.losses.empty()) continue;  // step 2 had been saved: its loss is not known
      }
      EXPECT_EQ(run.sha256(), run.expected());
      if (testing::Test::HasFailure()) return;
      if (done) break;
    }
  }
  EXPECT_GT(failed_runs, kUnderSanitizer ? 2 : 10);
}

// A layer with few experts, and one without, so that a run has few calls.
constexpr const char* kSmallModel = R"({"num_hidden_layers": 2, "num_experts": 6})";

// Ranks of one machine move a run that other ranks have left twice, once without a checkpoint.
class MovedRun {
 public:
  // The move is made by `ranks`, and `fault` happens in it. What the fault left is mended by the
  // next start. Returns whether there was no fault, since the run ends before it.
  bool expect_no_loss(int ranks, const SimFault& fault) {
    SimStorage machine(static_cast<uint64_t>(fault.nth));
    begin(machine);
    leg_.ranks = ranks;
    machine.inject(fault);
    LegOutcome outcome = run_.run(leg_);
    const bool none = machine.faults() == 0;
    machine.clear_faults();
    for (const Status& status : outcome.statuses) {
      EXPECT_EQ(status.code(), outcome.status().code()) << status.message();
      EXPECT_EQ(status.message(), outcome.status().message());
    }
    bool losses_are_known = outcome.ok();
    const std::string mark = run_.tiny().config().train.output_dir + "/MOVING";
    if (!outcome.ok() || machine.exists(mark)) {
      failed_ += !outcome.ok();
      if (!outcome.ok()) run_.forget_last_leg();
      machine.restart();
      outcome = run_.run(leg_);
      expect_ok(outcome);
      losses_are_known = losses_are_known || !outcome.losses.empty();  // else step 2 was saved
    }
    EXPECT_FALSE(machine.exists(mark));
    if (losses_are_known && !testing::Test::HasFailure()) {
      EXPECT_EQ(run_.sha256(), run_.expected());
    }
    return none;
  }
  int64_t failed() const { return failed_; }  // runs

 private:
  void begin(SimStorage& machine) {
    run_.begin();
    leg_ = {2, 1};
    leg_.storage = [&](int) { return &machine; };
    leg_.until = 1;
    expect_ok(run_.run(leg_));
    leg_.resume = true;
    leg_.ranks = 3;
    leg_.save = false;
    expect_ok(run_.run(leg_));
    machine.restart();  // they were killed
    leg_.save = true;
    leg_.until = 2;
  }

  RankedTrainers run_{ClipKind::kGlobal, 2, {}, kSmallModel};
  RunLeg leg_;
  int64_t failed_ = 0;
};

// Calls of some kinds fail, or the machine loses power at them.
TEST(RanksFaults, EachCallOfAMoveFailsOnce) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(900));
  struct Calls {
    SimFault::Kind kind;
    uint32_t calls;
    int64_t stride;
  };
  constexpr auto kError = SimFault::Kind::kError, kCrash = SimFault::Kind::kCrash;
  // All that make, move or remove files, and some of the others.
  const Calls ways[] = {{kError, kSimRemove, 1},   {kCrash, kSimRemove, 1},
                        {kError, kSimSync, 1},     {kError, kSimWriteFile, 1},
                        {kError, kSimReadFile, 1}, {kError, kSimOpen, 1},
                        {kError, kSimAll, 5},      {kCrash, kSimAll, 11}};
  MovedRun run;
  for (const Calls& way : fewer_when_sanitized(ways, 3)) {
    const int64_t stride = way.stride * (kUnderSanitizer ? 13 : 1);
    bool done = false;
    for (int64_t call = 1; !done; call += stride) {
      SCOPED_TRACE(strf("%s at call %lld of %x", way.kind == kCrash ? "power loss" : "error",
                        (long long)call, way.calls));
      SimFault fault;
      fault.kind = way.kind;
      fault.calls = way.calls;
      fault.nth = call;
      fault.crash_seed = static_cast<uint64_t>(call);
      done = run.expect_no_loss(call % 2 == 0 ? 1 : 3, fault);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(run.failed(), kUnderSanitizer ? 1 : 40);
}

// The disk of rank 0 has no room for a manifest: the save is none on all ranks, and what is written
// after it leaves the checkpoint before it alone on each of them.
TEST(RanksFaults, ASaveThatFailsOnOneRankIsNoneOnAll) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, 4);
  TwoMachines two;
  RunLeg leg = two.leg();
  leg.smallest = true;
  leg.until = 3;
  leg.save = false;
  leg.stepped = [&](Trainer& trainer, RankGroup& group) {
    if (trainer.steps_done() != 1) return Status();
    if (group.rank() == 0) two.first.inject({.calls = kSimWriteFile, .nth = 1, .error = ENOSPC});
    const Status saved = trainer.save();
    EXPECT_EQ(saved.code(), Exit::kIoError) << saved.message();
    EXPECT_EQ(trainer.saved_step(), 0);
    return Status();
  };
  const LegOutcome outcome = run.run(leg);
  expect_ok(outcome);
  for (const Paging& paging : outcome.paging) expect_paged(paging);
  EXPECT_EQ(two.first.faults(), 1);
  run.forget_last_leg();
  two.restart();  // the program was killed
  leg.stepped = {};
  leg.resume = leg.save = true;
  leg.until = 4;
  expect_ok(run.run(leg));
  EXPECT_EQ(run.sha256(), run.expected());
}

// Rank 1's store cannot be made durable: no rank saves that step.
TEST(RanksFaults, AStoreThatCannotBeWrittenEndsAll) {
  const Watchdog watchdog("trainers on ranks", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, 4);
  TwoMachines two;
  RunLeg leg = two.leg();
  leg.smallest = true;
  leg.until = 4;
  for (const uint32_t calls : {kSimSync, kSimWrite}) {
    run.begin();
    leg.resume = false;
    leg.stepped = [&](Trainer& trainer, RankGroup& group) {
      if (trainer.steps_done() != 1) return Status();
      if (group.rank() == 1) two.second.inject({.calls = calls, .nth = 1, .error = ENOSPC});
      const Status saved = trainer.save();
      EXPECT_FALSE(saved.ok());
      EXPECT_EQ(trainer.saved_step(), 0);
      return saved;
    };
    expect_all_ended(run.run(leg), Exit::kIoError, "rank 1: " + host_name() + ": ");
    two.second.clear_faults();
    run.forget_last_leg();
    two.restart();
    leg.stepped = {};
    leg.resume = true;
    expect_ok(run.run(leg));
    EXPECT_EQ(run.sha256(), run.expected());
  }
}

}  // namespace
}  // namespace pagoda
