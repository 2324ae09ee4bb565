// When a plan recommends a part of every expert on each device, by counting whose rows wait for
// whom, or weights that travel, by counting bytes; and that it changes nothing by itself.
#include "preview/sharing_choice.h"

#include <gtest/gtest.h>

#include "cli/sheet_file.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

// Experts take nearly all of a step.
constexpr const char* kModel = R"({"num_experts": %d, "num_experts_per_tok": 1, "hidden_size": 64,
  "moe_intermediate_size": 512, "mlp_only_layers": []})";

using Settings = std::vector<std::pair<std::string, std::string>>;

class SharingChoiceTest : public testing::Test {
 protected:
  explicit SharingChoiceTest(const std::string& model = strf(kModel, 1))
      : run_(DType::kBF16, tiny_with(model.c_str()).c_str()) {}
  void SetUp() override {
    RunConfig& config = run_.config();
    config.train.devices = {"cpu/8*2"};
    config.train.threads = config.train.optimizer_threads = 1;
    config.memory.device = config.memory.host = MemorySize::of_bytes(kGiB);
    node_ = read_machine_sheet(std::string(PAGODA_GOLDEN_DIR) +
                               "/../../configs/machines/cpu-2-cores.toml")
                .take();
    // Only rows and their products take time.
    node_.device.launch_us = 0;
    node_.device.weight_gb_s = 1e6;
  }
  ModelSizes model() { return read_model_sizes(run_.config().model.path).take(); }
  // On so many machines of one process each.
  ClusterSheet cluster_of(size_t machines) const {
    ClusterSheet cluster;
    cluster.network = network_;
    cluster.nodes.assign(machines, node_);
    return cluster;
  }
  std::vector<RunConfig> configs_on(const ClusterSheet& cluster) const {
    RunConfig config = run_.config();
    config.total_devices = devices_of_nodes(config, cluster);
    return std::vector<RunConfig>(cluster.nodes.size(), config);
  }
  std::vector<SharingChoice> recommend(size_t machines = 1) {
    const ClusterSheet cluster = cluster_of(machines);
    return recommend_sharing(model(), configs_on(cluster), cluster, kSearchPlan);
  }
  double step_s() {
    return forecast_run(model(), run_.config(), node_, kSearchPlan)->step->step_s();
  }

  TinyRun run_;
  MachineSheet node_;
  ClusterSheet::Network network_ = {100, 1};
};

// An expert that is alone is on one device, and the other waits: nearly half of a step.
TEST_F(SharingChoiceTest, WhereOneExpertLeavesADeviceWithoutWork) {
  const std::vector<SharingChoice> choices = recommend();
  ASSERT_EQ(choices.size(), 1u);
  const SharingChoice& choice = choices.front();
  EXPECT_EQ(choice.settings, (Settings{{"parallel.sharing", "\"model\""},
                                       {"parallel.hidden_shares", "[\"1\", \"1\"]"}}));
  EXPECT_GT(choice.gain, 0.5);
  EXPECT_LT(choice.gain, 1.0);
  EXPECT_NEAR(step_s() / choice.step_s, 1 + choice.gain, 1e-9);
  EXPECT_NE(choice.text().find("other bits: parallel.sharing = \"model\", parallel.hidden_shares "
                               "= [\"1\", \"1\"]"),
            std::string::npos)
      << choice.text();
  // The run that has these settings is planned so.
  RunConfig& config = run_.config();
  config.parallel.sharing = Sharing::kModel;
  config.parallel.hidden_shares = {"1", "1"};
  ModelSizes cut = model();
  ASSERT_TRUE(cut.cut_experts(config.hidden_shares()).ok());
  EXPECT_DOUBLE_EQ(forecast_run(cut, config, node_, kSearchPlan)->step->step_s(), choice.step_s);
  EXPECT_TRUE(recommend().empty()) << "it has them already";
}

TEST_F(SharingChoiceTest, BySpeedAlsoOnRanks) {
  run_.config().train.devices = {"cpu/12,cpu/8"};
  ASSERT_FALSE(recommend().empty());
  EXPECT_EQ(recommend().front().settings.back().second, "[\"2\", \"3\"]");
  run_.config().train.devices = {"cpu/8"};
  ASSERT_FALSE(recommend(3).empty());
  EXPECT_EQ(recommend(3).front().settings.back().second, "[\"1\", \"1\", \"1\"]");
}

std::string hidden_shares(const std::vector<SharingChoice>& choices) {
  for (const SharingChoice& choice : choices) {
    const auto& [key, value] = choice.settings.back();
    if (key == "parallel.hidden_shares") return value;
  }
  return "none";
}

// What a row takes is by the machine's sheet, whatever the run file says of its devices.
TEST_F(SharingChoiceTest, ByTheRatesOfMachines) {
  RunConfig& config = run_.config();
  config.train.devices = {"cpu/8"};
  ClusterSheet cluster = cluster_of(2);
  cluster.nodes[1].device.gemm_tflops /= 2;
  cluster.nodes[1].device.memory_gb_s /= 2;
  const auto shares_on_cluster = [&] {
    return hidden_shares(recommend_sharing(model(), configs_on(cluster), cluster, kSearchPlan));
  };
  EXPECT_EQ(shares_on_cluster(), "[\"2\", \"1\"]");
  // Two A40 and two V100, with 112 and 90 TFLOP/s, at a thousandth of their rates.
  cluster =
      read_cluster_sheet(std::string(PAGODA_GOLDEN_DIR) + "/../../configs/clusters/a40-v100.toml")
          .take();
  for (MachineSheet& node : cluster.nodes) {
    node.device.gemm_tflops /= 1000;
    node.device.weight_gb_s = 1e6;
    node.device.launch_us = 0;
  }
  config.train.devices = {"auto"};
  for (const ShareKind shares : {ShareKind::kSpeed, ShareKind::kMeasured}) {
    config.parallel.shares = shares;
    EXPECT_EQ(shares_on_cluster(), "[\"5\", \"5\", \"4\", \"4\"]");
  }
}

TEST_F(SharingChoiceTest, NotWhereARunCannotHaveThem) {
  RunConfig& config = run_.config();
  config.optim.clip = ClipKind::kPerExpert;
  EXPECT_TRUE(recommend().empty());
  config.optim.clip = ClipKind::kGlobal;
  config.parallel.migrate_steps = 4;
  EXPECT_TRUE(recommend().empty());
  config.parallel.migrate_steps = 0;
  config.train.devices = {"cpu/8"};
  EXPECT_TRUE(recommend().empty()) << "one device";
}

// Sixteen experts load two devices evenly.
class SixteenExpertsTest : public SharingChoiceTest {
 protected:
  SixteenExpertsTest() : SharingChoiceTest(strf(kModel, 16)) {}
};

TEST_F(SixteenExpertsTest, NotWhereItGainsLessThanTheForecastsError) {
  EXPECT_TRUE(recommend().empty());
  EXPECT_TRUE(recommend(2).empty());
}

// Each of two machines has 2048 tokens, and so 1024 rows for each of four experts. Rows of 64 bf16
// have 5 x 64 x 2 + 8 bytes, weights of 3 x 16 x 64 with their gradient at most 8 each: as many as
// 38 rows. The network is so slow that a step takes as long as what is sent.
class ManyRowsTest : public SharingChoiceTest {
 protected:
  ManyRowsTest()
      : SharingChoiceTest(R"({"num_experts": 4, "num_experts_per_tok": 2,
      "hidden_size": 64, "moe_intermediate_size": 16, "mlp_only_layers": []})") {}
  void SetUp() override {
    SharingChoiceTest::SetUp();
    RunConfig& config = run_.config();
    config.train.devices = {"cpu"};
    config.data.sequence_len = config.train.micro_batch_tokens = 512;
    config.train.tokens_per_step = 8 * 512;
    network_ = {0.001, 1};
  }
};

TEST_F(ManyRowsTest, WeightsTravelWhereRowsHaveMoreBytes) {
  const std::vector<SharingChoice> choices = recommend(2);
  ASSERT_FALSE(choices.empty());
  EXPECT_EQ(choices.front().settings,
            (Settings{{"train.shards", "8"}, {"train.expert_shards", "8"}}));
  EXPECT_GT(choices.front().gain, 1);
  // The run that has these settings is planned so.
  RunConfig& config = run_.config();
  config.train.shards = config.train.expert_shards = 8;
  const ClusterSheet cluster = cluster_of(2);
  const RanksForecast now =
      forecast_ranks(model(), configs_on(cluster), cluster, kSearchPlan).take();
  EXPECT_DOUBLE_EQ(now.step.step_s(), choices.front().step_s);
  EXPECT_TRUE(recommend(2).empty()) << "it has them already";
}

TEST_F(ManyRowsTest, NotWhereTheyMayNotTravel) {
  const auto recommends_shards = [&] {
    return std::ranges::any_of(recommend(2), [](const SharingChoice& choice) {
      return choice.settings.front().first == "train.shards";
    });
  };
  EXPECT_TRUE(recommends_shards());
  RunConfig& config = run_.config();
  config.parallel.sharing = Sharing::kRows;
  EXPECT_FALSE(recommends_shards());
  config.parallel.sharing = Sharing::kAuto;
  config.train.shards = 1;
  EXPECT_FALSE(recommends_shards()) << "one device attends";
  config.train.shards = 0;
  config.parallel.layout = LayoutKind::kPipeline;
  config.train.chunks = 2;
  EXPECT_FALSE(recommends_shards());
  config.parallel.layout = LayoutKind::kAuto;
  network_ = {100, 1};
  EXPECT_FALSE(recommends_shards()) << "rows take no time";
}

}  // namespace
}  // namespace pagoda
