// Equal copies of a run on parts of a cluster: what each keeps, what they exchange, and steps of
// them beside one that is simulated with all copies.
#include "preview/equal_copies.h"

#include <gtest/gtest.h>

#include "preview/few_layers.h"
#include "tests/preview/one_layer.h"
#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// Elements: embedding 8 x 1,024 = 8,192; the layer's dense part 2 x 1,024 x 1,024 + 2 x 1,024 x 256
// of attention, 2 x 64 + 2 x 1,024 of norms and 16 x 1,024 of the router = 2,640,000; each expert
// 3 x 1,024 x 512 = 1,572,864; head 1,024 + 8,192 = 9,216.
ModelSizes one_layer() {
  ModelSizes model = parse_model_sizes(kOneLayer, "test").take();
  model.shape.vocab_size = model.config.vocab_size = 8;
  return model;
}

ClusterSheet nodes_of(int64_t count, int64_t gpus) {
  ClusterSheet cluster;
  cluster.network.gb_s = 10;
  cluster.network.latency_us = 20;
  MachineSheet node = machine("gpu-8x80gb");
  node.device.count = gpus;
  node.device.memory_gb_s = 1000;
  node.device.launch_us = 5;
  cluster.nodes.assign(static_cast<size_t>(count), node);
  return cluster;
}

RunConfig rows_of(int64_t rows, const ClusterSheet& cluster) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = 4096;
  config.train.tokens_per_step = rows * 4096;
  config.train.save_steps = 0;
  config.total_devices = devices_of_nodes(config, cluster);
  return config;
}

PlannedRun one_of(int64_t copies, const ClusterSheet& part) {
  RunConfig config = rows_of(2, part);
  config.equal_copies = copies;
  const ModelSizes model = one_layer();
  return planned_ranks(model, std::vector(part.nodes.size(), config), part).take().front();
}

// An expert's state has a remainder of 2 bytes for each of its elements that are at home, and two
// moments of 4.
TEST(EqualCopies, EachIsHomeToAPartOfEveryRecord) {
  const ClusterSheet part = nodes_of(1, 1);
  const int64_t elements[] = {8192, 2640000, 1572864, 9216};
  for (const int64_t copies : {1, 4}) {
    const RunShape shape = one_of(copies, part).shape;
    const int64_t records[] = {shape.embedding(), shape.layer_record[0], shape.expert(0, 15),
                               shape.head()};
    for (size_t i = 0; i < std::size(records); ++i) {
      const RecordShape& record = shape.records[static_cast<size_t>(records[i])];
      EXPECT_EQ(record.num_elements, elements[i]);
      EXPECT_EQ(record.trained_elements(), elements[i] / copies);
    }
    const RecordShape& expert = shape.records[static_cast<size_t>(shape.expert(0, 15))];
    EXPECT_EQ(expert.state_bytes, 10 * 1572864 / copies);
  }
}

// All records have 8,192 + 2,640,000 + 16 x 1,572,864 + 9,216 = 27,823,232 elements. Each of two
// copies is home to 13,911,616, of which the other's sums come with 4 bytes and go back as weights
// with 2, at 10 GB/s and behind 20 us each time; adding them moves 12 bytes of memory for each, at
// 1,000 GB/s, behind a launch of 5 us. Of four copies each is home to half as many, for which three
// others send. Two GPUs have two links.
TEST(EqualCopies, SumsAndWeightsTravel) {
  const ClusterSheet alone = nodes_of(1, 1);
  const auto seconds = [](double elements) {
    return 4 * elements / 10e9 + 2 * elements / 10e9 + 2 * 20e-6 + 12 * elements / 1000e9 + 5e-6;
  };
  EXPECT_EQ(seconds_between_copies(one_of(1, alone), alone, 1), 0);
  EXPECT_NEAR(seconds(13911616), 8.558909e-3, 1e-9);
  EXPECT_NEAR(seconds_between_copies(one_of(2, alone), alone, 2), 8.558909e-3, 1e-8);
  EXPECT_NEAR(seconds_between_copies(one_of(4, alone), alone, 4), seconds(3 * 6955808), 1e-8);
  const ClusterSheet pair = nodes_of(1, 2);
  EXPECT_NEAR(seconds_between_copies(one_of(2, pair), pair, 2), seconds(13911616 / 2), 1e-8);
  // One of two nodes is home to more than half, but not to all.
  const ClusterSheet two = nodes_of(2, 1);
  const double longest_s = seconds_between_copies(one_of(2, two), two, 2);
  EXPECT_GE(longest_s, seconds(13911616 / 2));
  EXPECT_LT(longest_s, seconds(13911616));
}

// Two nodes that each have a copy of all experts take no less time than one with half of the rows,
// but for small things in which the tasks of both differ. They take no more than that and an
// exchange beside which nothing else goes on, in which both send at once.
TEST(EqualCopies, TheStepOfAllCopiesIsBetweenTheBounds) {
  ModelSizes model = with_layers(published("qwen3-30b-a3b"), 4);
  model.shape.vocab_size = model.config.vocab_size = 8;
  model.shape.num_experts = model.config.num_experts = 32;
  const ClusterSheet whole = nodes_of(2, 2), part = nodes_of(1, 2);
  RunConfig copies = rows_of(16, whole), one = rows_of(8, part);
  copies.parallel.copies = 2;
  copies.train.shards = copies.train.expert_shards = 4;
  one.train.shards = 2;
  one.equal_copies = 2;
  auto both = forecast_ranks(model, std::vector(2, copies), whole, kCoarsePlan);
  ASSERT_TRUE(both.ok()) << both.status().message();
  auto alone = forecast_ranks(model, std::vector(1, one), part, kCoarsePlan);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  const PlannedRun planned = planned_ranks(model, std::vector(1, one), part).take().front();
  const double sums_s = seconds_between_copies(planned, part, 2);
  EXPECT_GT(both->step.step_s(), 0.9 * alone->step.step_s());
  EXPECT_LT(both->step.step_s(), alone->step.step_s() + sums_s);
}

// A run has 64 devices at most, so that three nodes of 40 are three copies. Each has three of the
// nine rows, which no chunks divide.
TEST(EqualCopies, ManyDevicesAreDivided) {
  const ModelSizes model = one_layer();
  const ClusterSheet cluster = nodes_of(3, 40);
  const std::vector<DividedCluster> divided =
      divide_cluster(model, rows_of(9, cluster), cluster, kSearchPlan);
  ASSERT_EQ(divided.size(), 1u);
  const EqualCopies& copies = divided.front().copies;
  EXPECT_EQ(copies.count, 3);
  EXPECT_EQ(copies.devices, 40);
  ASSERT_FALSE(divided.front().found.runs.empty());
  const RanksForecast& one = divided.front().found.runs.front().forecast;
  EXPECT_EQ(one.tokens, 3 * 4096);
  EXPECT_GT(copies.sums_s, 0);
  EXPECT_DOUBLE_EQ(copies.step_s, one.step.step_s() + copies.sums_s);
  EXPECT_DOUBLE_EQ(copies.tokens_per_s, 9 * 4096 / copies.step_s);
  EXPECT_DOUBLE_EQ(copies.mfu, one.mfu() * one.step.step_s() / copies.step_s);
  EXPECT_EQ(copies.text().find("3 equal copies of 40 devices, one simulated; sums between copies "
                               "added, "),
            0u)
      << copies.text();
  // Eight rows are no three copies'.
  EXPECT_TRUE(divide_cluster(model, rows_of(8, cluster), cluster, kSearchPlan).empty());
}

// One copy that is all of the cluster exchanges nothing, and comes with what is faster.
TEST(EqualCopies, TheFastestDivisionComesFirst) {
  const ModelSizes model = one_layer();
  const ClusterSheet cluster = nodes_of(2, 1);
  const std::vector<DividedCluster> divided =
      divide_cluster(model, rows_of(4, cluster), cluster, kCoarsePlan);
  ASSERT_EQ(divided.size(), 2u);
  for (const DividedCluster& division : divided) {
    const EqualCopies& copies = division.copies;
    EXPECT_EQ(copies.count * copies.devices, 2);
    EXPECT_EQ(copies.count * division.found.runs.front().forecast.tokens, 4 * 4096);
    EXPECT_EQ(copies.sums_s > 0, copies.count == 2);
    EXPECT_GE(copies.step_s, divided.front().copies.step_s);
  }
}

}  // namespace
}  // namespace pagoda
