// Steps of several ranks in which experts are guests of other ranks' devices: all tasks keep every
// rule of the validator.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/plan/checked_ranks.h"

namespace pagoda {
namespace {

// Weights of experts that come while another layer's experts have yet to compute.
int64_t count_ahead(const TaskList& tasks) {
  int64_t ahead = 0;
  for (auto task = tasks.begin(); task != tasks.end(); ++task) {
    if (!comes_to_guest(*task)) continue;
    const auto next = std::find_if(task, tasks.end(), computes_experts);
    ahead += next != tasks.end() && next->layer != task->layer;
  }
  return ahead;
}

// Weights that travel, when they are due or a layer ahead, also where all else is on the devices.
TEST(Ranks, GuestsKeepEveryRule) {
  int64_t runs = 0, ahead = 0, in_time = 0, on_devices = 0;
  for (uint32_t seed = 1; runs < kAssignments / 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int devices = static_cast<int>(2 + seed % 3), ranks = 2 + devices / 4;
    RunShape shape = random_shape(random, devices);
    if (shape.sums.shards == 1 || shape.moe_layers() == 0) continue;
    shape.sums.expert_shards = shape.sums.shards;
    divide_into_ranks(random, ranks, shape);
    StepKind kind;
    kind.sharing = seed % 3 == 0 ? Sharing::kAuto : Sharing::kData;
    kind.guest_layers = random() % 5;
    kind.eager = random() % 2 == 0;
    kind.skip_untouched = random() % 4 == 0;
    kind.options.prefetch = random() % 4 != 0;
    kind.options.send_ahead = seed % 5 != 0;
    kind.options.optimizer_at_end = random() % 4 == 0;
    kind.group_blocks = 1 + seed % 4;
    kind.seats_by_step = random() % 2 == 0;
    const double rooms[] = {0, 0.05, 0.3, 0.7, 1};
    CheckedRanks run(shape, kind, rooms[random() % 5]);
    for (int step = 0; step < 3; ++step) {
      run.train(random_routing(random, shape), !kind.eager && random() % 4 == 0);
      const TaskList& tasks = run.ranks()[0]->certain;
      const int64_t came = count_ahead(tasks);
      EXPECT_TRUE(came == 0 || (kind.options.prefetch && kind.options.send_ahead));
      ahead += came;
      in_time += std::count_if(tasks.begin(), tasks.end(), comes_to_guest) - came;
      if (random() % 3 == 0) run.evaluate(random_routing(random, shape));
    }
    run.expect_valid();
    if (testing::Test::HasFailure()) return;
    const CheckedRank& first = *run.ranks()[0];
    on_devices += first.memory.state_on_device && first.shape.weights_travel();
    ++runs;
  }
  EXPECT_GT(ahead, kAssignments);
  EXPECT_GT(in_time, 2 * kAssignments);
  EXPECT_GT(on_devices, kAssignments / 40);
}

}  // namespace
}  // namespace pagoda
