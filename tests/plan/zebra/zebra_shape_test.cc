// The shape of HeterMoE's Figures 7, 10 and 12, simulated: who is ahead of whom as sequences grow
// and as the ratio of the two kinds of devices changes. tools/bench/figures/planner_figures prints
// the tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/testing/hetermoe/heterogeneous_sweep.h"

namespace pagoda {
namespace {

// Figures 7 and 12 on six devices of each kind: the shortest sequences and the longest.
struct Ends {
  SweepPoint shortest, longest;
};

Ends sweep_sequences(const SweepModel& model) {
  Ends ends;
  double ahead_of_ideal = 0;
  for (int k = 4; k <= 32; k += 4) {
    const SweepPoint point = sweep_point(sweep_step(model, 6, 6, k * 1024.0), model.experts);
    EXPECT_LT(point.expert_parallel, 1) << k;
    EXPECT_LT(point.disaggregated, 1) << k;
    EXPECT_LT(point.pipeline, 1) << k;
    ahead_of_ideal = std::max(ahead_of_ideal, 1 / point.ideal);
    if (k == 4) ends.shortest = point;
    ends.longest = point;
  }
  // EP falls behind as sequences grow.
  EXPECT_LT(ends.longest.expert_parallel, ends.shortest.expert_parallel);
  EXPECT_GT(ahead_of_ideal, 1);
  // Figure 12: Asym-EA is needed as long as experts take longer than attention.
  EXPECT_LT(ends.shortest.plain, 1);
  EXPECT_EQ(ends.longest.plain, 1);
  return ends;
}

TEST(ZebraShapeTest, EpWinsShortSequencesAndDistEpLongOnesAsFigures7And12) {
  const Ends deep = sweep_sequences(kMixtralD1), wide = sweep_sequences(kMixtralW1);
  // On average over models DistEP is worse than EP with short sequences, and better with long ones.
  EXPECT_LT(deep.shortest.disaggregated + wide.shortest.disaggregated,
            deep.shortest.expert_parallel + wide.shortest.expert_parallel);
  EXPECT_GT(deep.longest.disaggregated + wide.longest.disaggregated,
            deep.longest.expert_parallel + wide.longest.expert_parallel);
}

// Figure 10: four faster devices, experts in proportion to the slower ones.
TEST(ZebraShapeTest, LongerSequencesWantFewerSlowerDevicesAsFigure10) {
  int32_t peak_before = 8;
  for (const int k : {4, 12, 20, 32}) {
    std::vector<double> ahead, plain;  // of EP (Ideal), with Asym-EA and without
    for (int32_t slower = 2; slower <= 8; ++slower) {
      const SweepPoint point =
          sweep_point(sweep_step(kMixtralD1, 4, slower, k * 1024.0), 4 * slower);
      ahead.push_back(1 / point.ideal);
      plain.push_back(point.plain / point.ideal);
    }
    // Longer sequences want fewer slower devices.
    const auto peak =
        2 + static_cast<int32_t>(std::max_element(plain.begin(), plain.end()) - plain.begin());
    EXPECT_LE(peak, peak_before);
    peak_before = peak;
    if (k > 4) continue;
    // Three do not divide, so no expert can move: worse than two and than four.
    EXPECT_LT(ahead[1], ahead[0]);
    EXPECT_LT(ahead[1], ahead[2]);
  }
  EXPECT_LT(peak_before, 8);
}

}  // namespace
}  // namespace pagoda
