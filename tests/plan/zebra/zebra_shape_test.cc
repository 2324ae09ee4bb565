// The shape of HeterMoE's Figures 7 and 12 as runs on its machines' sheets are forecast: who is
// ahead of whom as sequences grow. tools/bench/figures/planner_figures prints the tables.
#include <gtest/gtest.h>

#include "tests/preview/published_configs.h"
#include "tests/testing/hetermoe/paper_runs.h"

namespace pagoda {
namespace {

const PaperSetup& deep_on_o1() {
  static const PaperSetup setup = paper_setup(
      kMixtralD1, read_cluster_sheet(configs("clusters/hetermoe-o1.toml")).take(), 6, 6);
  return setup;
}

TEST(ZebraShapeTest, AStepIsAsLargeAsMemoryAllowsForAllBaselines) {
  PaperSetup setup = deep_on_o1();
  ASSERT_GT(setup.tokens, 0);
  EXPECT_TRUE(expert_parallel_step(setup, kLongest)->on_devices());
  EXPECT_TRUE(disaggregated_step(setup, kLongest)->on_devices());
  // EP of the slower ones alone needs most, as each has 1/6 of the model and of the tokens there.
  setup.faster = 0;
  setup.cluster.nodes.erase(setup.cluster.nodes.begin(), setup.cluster.nodes.begin() + 6);
  EXPECT_TRUE(expert_parallel_step(setup, kLongest)->on_devices());
  setup.tokens += 6 * kLongest;
  const MaybeStep more = expert_parallel_step(setup, kLongest);
  EXPECT_TRUE(!more || !more->on_devices());
}

TEST(ZebraShapeTest, EpWinsShortSequencesAndDistEpLongOnesAsFigures7And12) {
  const PaperSetup& setup = deep_on_o1();
  struct Rates {
    double zebra, plain, equal, apart;
  };
  const auto at = [&](int64_t sequence_len) {
    const ZebraSteps zebra = zebra_steps(setup, sequence_len);
    return Rates{zebra.planned->tokens_per_s(), zebra.plain->tokens_per_s(),
                 expert_parallel_step(setup, sequence_len)->tokens_per_s(),
                 disaggregated_step(setup, sequence_len)->tokens_per_s()};
  };
  const Rates shortest = at(4096), longest = at(kLongest);
  EXPECT_GT(longest.zebra, longest.equal);
  EXPECT_GT(longest.zebra, longest.apart);
  EXPECT_GT(shortest.zebra, shortest.apart);
  // EP falls behind as sequences grow, and DistEP passes it.
  EXPECT_LT(longest.equal / longest.zebra, shortest.equal / shortest.zebra);
  EXPECT_LT(shortest.apart, shortest.equal);
  EXPECT_GT(longest.apart, longest.equal);
  // Asym-EA is needed as long as experts take longer than attention.
  EXPECT_GE(shortest.zebra, shortest.plain);
  EXPECT_NEAR(longest.zebra / longest.plain, 1, 0.01);
}

}  // namespace
}  // namespace pagoda
