// When a plan recommends a part of every expert on each device, by counting whose rows wait for
// whom; and that it changes nothing by itself.
#include "preview/model_centric_choice.h"

#include <gtest/gtest.h>

#include "cli/sheet_file.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

// Experts take nearly all of a step.
constexpr const char* kModel = R"({"num_experts": %d, "num_experts_per_tok": 1, "hidden_size": 64,
  "moe_intermediate_size": 512, "mlp_only_layers": []})";

class ModelCentricChoiceTest : public testing::Test {
 protected:
  explicit ModelCentricChoiceTest(int experts = 1)
      : run_(DType::kBF16, tiny_with(strf(kModel, experts).c_str()).c_str()) {}
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
  std::optional<ModelCentricChoice> recommend(size_t machines = 1) {
    ClusterSheet cluster;
    cluster.network = {100, 1};
    cluster.nodes.assign(machines, node_);
    RunConfig config = run_.config();
    config.total_devices = devices_of_nodes(config, cluster);
    return recommend_model_centric(model(), std::vector<RunConfig>(machines, config), cluster,
                                   kSearchPlan);
  }
  double step_s() {
    return forecast_run(model(), run_.config(), node_, kSearchPlan)->step->step_s();
  }

  TinyRun run_;
  MachineSheet node_;
};

// An expert that is alone is on one device, and the other waits: nearly half of a step.
TEST_F(ModelCentricChoiceTest, WhereOneExpertLeavesADeviceWithoutWork) {
  const auto choice = recommend();
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->hidden_shares, (std::vector<std::string>{"1", "1"}));
  EXPECT_GT(choice->gain, 0.5);
  EXPECT_LT(choice->gain, 1.0);
  EXPECT_NEAR(step_s() / choice->step_s, 1 + choice->gain, 1e-9);
  EXPECT_NE(choice->text().find("other bits: parallel.sharing = \"model\", parallel.hidden_shares "
                                "= [\"1\", \"1\"]"),
            std::string::npos)
      << choice->text();
  // The run that has these settings is planned so.
  RunConfig& config = run_.config();
  config.parallel.sharing = Sharing::kModel;
  config.parallel.hidden_shares = choice->hidden_shares;
  ModelSizes cut = model();
  ASSERT_TRUE(cut.cut_experts(config.hidden_shares()).ok());
  EXPECT_DOUBLE_EQ(forecast_run(cut, config, node_, kSearchPlan)->step->step_s(), choice->step_s);
  EXPECT_FALSE(recommend()) << "it has them already";
}

TEST_F(ModelCentricChoiceTest, BySpeedAlsoOnRanks) {
  run_.config().train.devices = {"cpu/12,cpu/8"};
  ASSERT_TRUE(recommend());
  EXPECT_EQ(recommend()->hidden_shares, (std::vector<std::string>{"2", "3"}));
  run_.config().train.devices = {"cpu/8"};
  ASSERT_TRUE(recommend(3));
  EXPECT_EQ(recommend(3)->hidden_shares.size(), 3u);
}

TEST_F(ModelCentricChoiceTest, NotWhereARunCannotHaveThem) {
  RunConfig& config = run_.config();
  config.optim.clip = ClipKind::kPerExpert;
  EXPECT_FALSE(recommend());
  config.optim.clip = ClipKind::kGlobal;
  config.parallel.migrate_steps = 4;
  EXPECT_FALSE(recommend());
  config.parallel.migrate_steps = 0;
  config.train.devices = {"cpu/8"};
  EXPECT_FALSE(recommend()) << "one device";
}

// Sixteen experts load two devices evenly.
class SixteenExpertsTest : public ModelCentricChoiceTest {
 protected:
  SixteenExpertsTest() : ModelCentricChoiceTest(16) {}
};

TEST_F(SixteenExpertsTest, NotWhereItGainsLessThanTheForecastsError) {
  EXPECT_FALSE(recommend());
  EXPECT_FALSE(recommend(2));
}

}  // namespace
}  // namespace pagoda
