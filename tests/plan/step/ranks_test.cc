// Steps of several ranks: every rank makes the same tasks, and those of all of them keep every rule
// of the validator, at random assignments of devices and records.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/plan/checked_ranks.h"

namespace pagoda {
namespace {

int64_t count(const TaskList& tasks, TaskKind kind) {
  return std::count_if(tasks.begin(), tasks.end(),
                       [kind](const Task& task) { return task.kind == kind; });
}

TEST(Ranks, MakeTheSameTasksAndKeepEveryRule) {
  int64_t page_transfers = 0, resent = 0, in_stages = 0, in_copies = 0;
  for (uint32_t seed = 1; seed <= kAssignments; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.options.whole_layers = random() % 6 == 0;
    kind.options.microbatch_major = random() % 6 == 0;
    kind.options.padded_experts = random() % 6 == 0;
    kind.pinned_share = random() % 4 == 0 ? 0.5 : 0;
    kind.group_blocks = 1 + seed % 4;
    kind.waves_in_flight = kLeastWaves + seed % 3;
    if (seed % 2 == 0) kind.kept_rows = int64_t{1} << seed % 12;
    const bool away =
        kind.options.same_blocks() && !kind.options.whole_layers && kind.pinned_share == 0;
    kind.seats_by_step = random() % 2 == 0 && away;
    if (away) kind.sharing = static_cast<Sharing>(seed % 5 % 3);
    // Stages may begin anywhere among the ranks' devices.
    if (seed % 3 == 0 && !kind.options.microbatch_major && !kind.options.padded_experts) {
      kind.stages = static_cast<int>(2 + seed / 3 % 3);
      kind.order = static_cast<PipelineOrder>(seed / 9 % 3);
      kind.zebra = seed / 27 % 2 == 0;
      kind.lags = {1, static_cast<int32_t>(seed % 2), 1};
      kind.seats_by_step = false;
      kind.sharing = Sharing::kRows;
    }
    if (seed % 4 < 2 && kind.options.same_blocks() && kind.pinned_share == 0) {
      kind.copies = static_cast<int>(2 + seed / 4 % 2);
      kind.zebra = kind.zebra || seed / 8 % 2 == 0;
      kind.seats_by_step = false;
      kind.sharing = Sharing::kRows;
    }
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    const int devices = static_cast<int>(2 + random() % 4);
    const int ranks = static_cast<int>(2 + random() % static_cast<uint32_t>(devices - 1));
    CheckedRanks run(random, ranks, devices, kind, rooms[random() % 5]);
    for (int step = 0; step < 3; ++step) {
      const bool skip = !kind.eager && random() % 4 == 0;
      run.train(random_routing(random, run.shape()), skip);
      if (random() % 3 == 0) run.evaluate(random_routing(random, run.shape()));
      in_stages += run.shape().stages.several();
      in_copies += run.shape().copies.several();
      page_transfers += count(run.ranks()[0]->certain, TaskKind::kReceivePage);
    }
    if (!kind.options.microbatch_major) {
      RunShape one = run.shape();
      one.set_microbatches(1);
      run.evaluate(random_routing(random, run.shape()));
      run.generate(random_routing(random, one));
      resent += count(run.ranks()[0]->certain, TaskKind::kSendPage);
    }
    run.expect_valid();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(in_stages, kAssignments / 4);
  EXPECT_GT(in_copies, kAssignments / 40);
  EXPECT_GT(page_transfers, kAssignments);
  EXPECT_GT(resent, kAssignments / 20);
}

// The embedding and the head are at home on any devices, which need not compute with them; the head
// often where the embedding is computed with. 1F1B begins to sum the gradient of that one before
// the head's is complete.
TEST(Ranks, TablesAtHomeAnywhereKeepEveryRule) {
  int64_t runs = 0, away = 0, in_zebra = 0, on_devices = 0, beside = 0;
  for (uint32_t seed = 1; runs < kAssignments / 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StepKind kind;
    kind.stages = static_cast<int>(1 + seed % 4);
    kind.order = static_cast<PipelineOrder>(seed / 4 % 3);
    kind.zebra = seed / 12 % 2 == 0;
    kind.lags = {1, static_cast<int32_t>(seed % 2), 1};
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.group_blocks = 1 + seed % 3;
    const int devices = static_cast<int>(2 + random() % 4);
    const int ranks = static_cast<int>(2 + random() % static_cast<uint32_t>(devices - 1));
    RunShape shape = random_shape(random, devices, {kind.stages, kind.order});
    if (kind.stages > 1 && shape.sums.chunks == 1) continue;
    divide_into_ranks(random, ranks, shape);
    const auto any = [&] { return static_cast<int>(random() % static_cast<uint32_t>(devices)); };
    int& embedding = shape.records[static_cast<size_t>(shape.embedding())].device;
    int& head = shape.records[static_cast<size_t>(shape.head())].device;
    if (!shape.tied_embeddings) head = random() % 2 == 0 ? embedding : any();
    embedding = any();
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    CheckedRanks run(shape, kind, rooms[random() % 5]);
    for (int step = 0; step < 3; ++step) {
      run.train(random_routing(random, shape), !kind.eager && random() % 4 == 0);
      if (random() % 3 == 0) run.evaluate(random_routing(random, shape));
    }
    run.expect_valid();
    if (testing::Test::HasFailure()) return;
    const bool is_away = shape.is_away(shape.embedding()) || shape.is_away(shape.head());
    away += is_away;
    in_zebra += is_away && kind.zebra;
    on_devices += is_away && run.ranks()[0]->memory.state_on_device;
    beside += shape.is_away(shape.head()) && shape.computes_with(head, shape.embedding()) &&
              kind.order == PipelineOrder::kOneForwardOneBackward;
    ++runs;
  }
  EXPECT_GT(away, kAssignments / 4);
  EXPECT_GT(in_zebra, kAssignments / 8);
  EXPECT_GT(on_devices, kAssignments / 40);
  EXPECT_GT(beside, kAssignments / 100);
}

}  // namespace
}  // namespace pagoda
