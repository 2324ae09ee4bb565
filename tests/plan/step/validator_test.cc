// The validator over plans of random runs, which keep every rule. Those of validator_faults_test.cc
// break them.
#include "tests/testing/plan/validator.h"

#include <gtest/gtest.h>

#include "tests/testing/plan/planned_case.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr uint32_t kSeeds = kUnderSanitizer ? 30 : 100;
constexpr int kZebraRuns = 50, kGuestRuns = 100, kPipelineRuns = 50;

// Steps, a skipped one, an evaluation: every rule holds all the way.
void expect_valid(std::mt19937& random, PlannedCase& c) {
  Replay replay(&c.pages, c.start());
  PlanValidator validator = c.validator();
  const auto visit = [&](const StepPiece& piece) {
    foresee(piece, replay);
    for (const Task& task : piece.tasks) {
      const PlacedTask placed = place(replay, task);
      validator.check(task, placed.moves, placed.slots);
    }
  };
  for (int step = 0; step < 4; ++step) {
    const bool skip = !c.kind.eager && random() % 4 == 0;
    validator.begin_step();
    c.run->train(random_routing(random, c.shape), visit, skip);
    validator.end_step(true);
    for (int64_t record : skip ? c.run->touched() : std::vector<int64_t>{}) {
      replay.discard(c.pages.gradient(record));
      validator.discard(c.pages.gradient(record));
    }
    if (random() % 3 != 0) continue;
    validator.begin_step();
    c.run->drain(visit);
    validator.end_step(false);
    validator.begin_step();
    c.run->evaluate(random_routing(random, c.shape), visit);
    validator.end_step(false);
  }
  EXPECT_EQ(first_fault(validator.faults()), "");
  for (int d = 0; d < c.shape.devices; ++d) {
    EXPECT_LE(replay.peak_bytes(Place::on_device(d)), c.memory.device_slot_bytes[d]);
  }
  EXPECT_LE(replay.peak_bytes(Place::host()), c.memory.host_slot_bytes);
  replay.residency().check_invariants();
}

TEST(Validator, RandomRunsKeepEveryRule) {
  uint32_t in_place = 0, added = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.whole_layers = random() % 4 == 0;
    kind.options.microbatch_major = random() % 4 == 0;
    kind.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    kind.options.padded_experts = random() % 4 == 0;
    kind.options.in_place = seed % 4 != 0;
    kind.experts_in_order = seed % 3 != 0;
    kind.keep_in_host = random() % 2 == 0;
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(1 + random() % 3);
    kind.group_blocks = seed % 2 == 0 ? 1 : 1 + seed % 7;
    kind.waves_in_flight = kLeastWaves + seed % 5;
    if (seed % 3 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    const bool away =
        kind.options.same_blocks() && !kind.options.whole_layers && kind.pinned_share == 0;
    kind.seats_by_step = seed % 3 != 0 && away;
    if (away) kind.sharing = static_cast<Sharing>(seed % 5 % 3);
    PlannedCase c(random, devices, kind, rooms[random() % 5]);
    in_place += c.shape.in_place;
    added += c.shape.adds_in_place();
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(in_place, kSeeds / 10);
  EXPECT_GT(added, kSeeds / 20);
  EXPECT_LT(added, in_place);
}

// Experts that are guests of devices that attend, all of them or as their rows say.
TEST(Validator, RandomGuestsKeepEveryRule) {
  int guests = 0;
  for (uint32_t seed = 1; guests < kGuestRuns; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.sharing = seed % 2 == 0 ? Sharing::kAuto : Sharing::kData;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.in_place = seed % 3 != 0;
    kind.seats_by_step = random() % 2 == 0;
    kind.keep_in_host = random() % 2 == 0;
    kind.group_blocks = 1 + seed % 7;
    if (seed % 3 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    const double rooms[] = {0, 0.05, 0.3, 0.7};
    PlannedCase c(random, static_cast<int>(2 + random() % 3), kind, rooms[random() % 4]);
    guests += c.shape.has_guests();
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
}

// Chunks that follow each other through the layers, on one device or more, whoever attends.
TEST(Validator, RandomZebraRunsKeepEveryRule) {
  int by_chunks = 0;
  for (uint32_t seed = 1; by_chunks < kZebraRuns; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.zebra = true;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.whole_layers = random() % 4 == 0;
    kind.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    kind.keep_in_host = random() % 2 == 0;
    kind.group_blocks = seed % 2 == 0 ? 1 : 1 + seed % 7;
    if (seed % 3 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    kind.lags.head = static_cast<int32_t>(random() % 4);
    kind.lags.attention = static_cast<int32_t>(random() % 4);
    kind.lags.expert =
        static_cast<int32_t>(random() % (1u + kind.lags.head + kind.lags.attention));
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(1 + random() % 4);
    PlannedCase c(random, devices, kind, rooms[random() % 5]);
    by_chunks += c.shape.rounds() > 1;
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
}

// Stages of one device or more, in each of the three orders, with all devices alike or zebra.
TEST(Validator, RandomPipelinesKeepEveryRule) {
  int runs = 0, by_chunks = 0, zebras = 0;
  for (uint32_t seed = 1; runs < kPipelineRuns; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.stages = static_cast<int>(2 + random() % 3);
    kind.order = static_cast<PipelineOrder>(seed % 3);
    kind.zebra = seed % 2 == 0;
    kind.lags = {static_cast<int32_t>(seed / 2 % 3), static_cast<int32_t>(seed / 6 % 3), 0};
    kind.lags.expert = kind.lags.head + kind.lags.attention;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.whole_layers = random() % 4 == 0;
    kind.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    kind.keep_in_host = random() % 2 == 0;
    kind.group_blocks = seed % 2 == 0 ? 1 : 1 + seed % 7;
    if (seed % 3 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(2 + random() % 4);
    PlannedCase c(random, devices, kind, rooms[random() % 5]);
    runs += c.shape.stages.several();
    by_chunks += c.shape.stages.several() && c.shape.rounds() > 1;
    zebras += c.shape.stages.several() && c.shape.rounds() > 1 && kind.zebra;
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(by_chunks, kPipelineRuns / 4);
  EXPECT_GT(zebras, kPipelineRuns / 8);
}

// Copies of all experts, in zebra's order or not, in stages or not.
TEST(Validator, RandomCopiesKeepEveryRule) {
  int copies = 0, by_chunks = 0;
  for (uint32_t seed = 1; copies < kGuestRuns; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.copies = static_cast<int>(2 + seed / 4 % 2);
    kind.zebra = seed % 2 == 0;
    kind.lags = {1, static_cast<int32_t>(seed / 2 % 3), 1};
    kind.stages = static_cast<int>(1 + seed / 2 % 2);
    kind.order = static_cast<PipelineOrder>(seed % 3);
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.whole_layers = random() % 4 == 0;
    kind.options.in_place = seed % 5 != 0;
    kind.keep_in_host = random() % 2 == 0;
    kind.group_blocks = 1 + seed % 7;
    if (seed % 3 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(2 + random() % 5);
    PlannedCase c(random, devices, kind, rooms[random() % 5]);
    copies += c.shape.copies.several();
    by_chunks += c.shape.copies.several() && c.shape.rounds() > 1;
    expect_valid(random, c);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(by_chunks, kGuestRuns / 40);
}

// A pass of generation: one microbatch, attention over a cache, logits.
TEST(Validator, GenerationKeepsEveryRule) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    PlannedCase c(random, static_cast<int>(1 + random() % 2), {}, 0);
    RunShape one = c.shape;
    one.set_microbatches(1);
    const StepPlan plan(one, c.pages, {.training = false, .generating = true});
    ExpertForecast forecast(one, c.pages, c.memory.classes);
    Replay replay(&c.pages, c.start());
    PlanValidator validator(&one, &c.pages, c.memory, c.budget, PlannedCase::kHeaderBytes,
                            c.start());
    for (int pass = 0; pass < 5; ++pass) {
      validator.begin_step();
      StepSchedule schedule(&plan, nullptr, &forecast, PassExtent::kForward);
      const Routing routing = random_routing(random, one);
      const auto routing_of = [&](int64_t layer, Microbatches microbatches) {
        return layer_routing(routing, layer, microbatches);
      };
      walk(schedule, routing_of, [&](const StepPiece& piece) {
        foresee(piece, replay);
        for (const Task& task : piece.tasks) {
          const PlacedTask placed = place(replay, task);
          validator.check(task, placed.moves, placed.slots);
        }
      });
      validator.end_step(false);
    }
    EXPECT_EQ(first_fault(validator.faults()), "");
  }
}

}  // namespace
}  // namespace pagoda
