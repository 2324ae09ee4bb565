// Where the embedding and the head are at home: a rank without room for one of them gives it to
// another that has, so that a layout fits which did not; with the bytes of either counted by hand.
#include "plan/memory/table_homes.h"

#include <gtest/gtest.h>

#include "preview/run_forecast.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// A token's row of the table has 2048 numbers, and the final norm one row more.
constexpr int64_t kTable = int64_t{151'936} * 2048, kHead = kTable + 2048;
// Bytes in the host: of an element the gradient has 2 and the state 10, and each page a header.
constexpr int64_t kHeader = 4096, kState = 12 * kHead + 2 * kHeader;
constexpr int64_t kWeights = 2 * kHead + kHeader;

class TableHomes : public testing::Test {
 protected:
  TableHomes() {
    config_.data.sequence_len = config_.train.micro_batch_tokens = 2048;
    config_.train.tokens_per_step = 8 * 2048;
    config_.train.save_steps = 0;
  }
  // On so many nodes, of which the second has most memory.
  void begin(size_t count, LayoutKind layout) {
    cluster_.network = {10, 20};
    cluster_.nodes.assign(count, machine("gpu-24gb"));
    config_.parallel.layout = layout;
    config_.parallel.stages = static_cast<int64_t>(count);
    config_.train.chunks = layout == LayoutKind::kPipeline ? 4 : 1;
    config_.total_devices = static_cast<int64_t>(count);
    ranks_.assign(count, config_);
    for (size_t r = 0; r < count; ++r) set_host(r, (r == 1 ? 60 : 40) * kGiB);
  }
  void set_host(size_t rank, int64_t bytes) {
    ranks_[rank].memory.host = MemorySize::of_bytes(bytes);
  }
  Result<RanksForecast> forecast() { return forecast_ranks(model_, ranks_, cluster_, kSearchPlan); }
  // The ranks of embedding and head.
  std::vector<int> homes() {
    const std::vector<PlannedRun> runs = planned_ranks(model_, ranks_, cluster_).take();
    for (const PlannedRun& run : runs) {
      EXPECT_EQ(run.shape.home_rank(run.shape.head()),
                runs.front().shape.home_rank(run.shape.head()));
    }
    const RunShape& shape = runs.front().shape;
    return {shape.home_rank(shape.embedding()), shape.home_rank(shape.head())};
  }
  // How much more a rank needs in its host, and sends, than in another forecast.
  static int64_t more_host(const RanksForecast& now, const RanksForecast& before, size_t rank) {
    return now.step.ranks[rank].least.host_bytes - before.step.ranks[rank].least.host_bytes;
  }
  static int64_t more_sent(const RanksForecast& now, const RanksForecast& before, size_t rank) {
    return now.step.ranks[rank].sent_bytes - before.step.ranks[rank].sent_bytes;
  }

  const ModelSizes model_ = published("qwen3-30b-a3b");
  RunConfig config_;
  std::vector<RunConfig> ranks_;
  ClusterSheet cluster_;
};

// The head goes from the last of three stages to the second, whose device does not compute with it.
TEST_F(TableHomes, ALayoutFitsWithTheHeadInAnotherStage) {
  begin(3, LayoutKind::kPipeline);
  const RanksForecast ends = forecast().take();
  EXPECT_EQ(homes(), (std::vector<int>{0, 2}));
  const int64_t least = ends.step.ranks[2].least.host_bytes;
  set_host(2, least);
  EXPECT_EQ(homes(), (std::vector<int>{0, 2})) << "it has room";
  set_host(2, least - 1);
  EXPECT_EQ(homes(), (std::vector<int>{0, 1}));
  const RanksForecast away = forecast().take();
  EXPECT_EQ(more_host(away, ends, 0), 0);
  EXPECT_EQ(more_host(away, ends, 1), kState + kWeights);
  EXPECT_EQ(more_host(away, ends, 2), -kState);
  // Weights go to the last stage, and the sum of the gradient comes back.
  EXPECT_EQ(more_sent(away, ends, 0), 0);
  EXPECT_EQ(more_sent(away, ends, 1), 2 * kHead);
  EXPECT_EQ(more_sent(away, ends, 2), 4 * kHead);
  set_host(2, least - kState);
  EXPECT_TRUE(forecast().ok());
  // What would not help is left as it is, and so is what nobody else has room for.
  set_host(2, least - kState - 1);
  EXPECT_EQ(homes(), (std::vector<int>{0, 2}));
  set_host(2, least - 1);
  for (const size_t rank : {0, 1}) set_host(rank, ends.step.ranks[rank].least.host_bytes);
  EXPECT_EQ(homes(), (std::vector<int>{0, 2}));
  const Status refused = forecast().status();
  EXPECT_EQ(refused.code(), Exit::kHostMemory);
  EXPECT_NE(refused.message().find("host of rank 2"), std::string::npos) << refused.message();
}

// Two ranks compute with both tables. The first has both homes, until it lacks a byte; the second
// has the weights already, and sends these then, and no longer the sum.
TEST_F(TableHomes, TheHeadGoesToTheOtherRankThatComputesWithIt) {
  begin(2, LayoutKind::kExperts);
  const RanksForecast both = forecast().take();
  EXPECT_EQ(homes(), (std::vector<int>{0, 0}));
  set_host(0, both.step.ranks[0].least.host_bytes - 1);
  EXPECT_EQ(homes(), (std::vector<int>{0, 1}));
  const RanksForecast one = forecast().take();
  EXPECT_EQ(more_host(one, both, 0), -kState);
  EXPECT_EQ(more_host(one, both, 1), kState);
  EXPECT_EQ(more_sent(one, both, 0), 4 * kHead - 2 * kHead);
  EXPECT_EQ(more_sent(one, both, 1), 2 * kHead - 4 * kHead);
}

}  // namespace
}  // namespace pagoda
