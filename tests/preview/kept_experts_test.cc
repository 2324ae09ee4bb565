// How many experts of a zebra run fit, against the memory plan on both sides of each number.
#include "preview/kept_experts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/zebra/zebra_search.h"
#include "preview/model_sizes.h"
#include "tests/preview/twelve_experts.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

RunConfig zebra_run() {
  RunConfig config;
  config.train.devices = {"cpu/4", "cpu/4:8"};
  config.train.tokens_per_step = 256;
  config.train.micro_batch_tokens = 64;
  config.data.sequence_len = 64;
  config.train.chunks = 2;
  config.parallel.layout = LayoutKind::kZebra;
  config.parallel.attention_devices = 1;
  return config;
}

// What each device needs so that all it has stays there, by the memory plan, if groups of experts
// are as small as can be.
std::vector<int64_t> whole(const ModelConfig& model, const RunConfig& config, int64_t kept) {
  SessionOptions options = session_options(config);
  options.offloaded = spread_experts(kept, {1, 1, 1});
  options.device_bytes = options.host_bytes = int64_t{1} << 40;
  options.plan.group_blocks = 1;
  return Session::plan(model, options).take().whole_on_device;
}

TEST(RunProfile, ExpertsFitAsTheMemoryPlanSays) {
  const ModelConfig model = ModelConfig::parse(kTwelveExperts, "test").take();
  RunConfig config = zebra_run();
  // The run has 36 experts: 5 may stay where attention is, and the other device holds 33.
  const int64_t attends = whole(model, config, 5)[0], others = whole(model, config, 3)[1];
  config.memory.device =
      MemorySizes::parse({std::to_string(attends) + "B", std::to_string(others) + "B"}).take();
  const KeptExperts kept = kept_experts(model, config, config.device_budget()).take();
  EXPECT_EQ(kept.most, 5);
  EXPECT_EQ(kept.least, 3);
  EXPECT_GT(whole(model, config, 6)[0], attends);
  EXPECT_GT(whole(model, config, 2)[1], others);
}

TEST(RunProfile, NothingIsKeptWithoutZebra) {
  const ModelConfig model = ModelConfig::parse(kTwelveExperts, "test").take();
  RunConfig config = zebra_run();
  config.parallel.layout = LayoutKind::kExperts;
  const KeptExperts kept = kept_experts(model, config, config.device_budget()).take();
  EXPECT_EQ(kept.least, 0);
  EXPECT_EQ(kept.most, 0);
  EXPECT_EQ(kept.run, "");
}

std::string key_of(const RunConfig& config, const std::string& json = kTwelveExperts) {
  const ModelConfig model = ModelConfig::parse(json, "test").take();
  RunSetup setup = run_setup(config);
  EXPECT_TRUE(set_frozen(config, model, setup).ok());
  return kept_experts_key(model_shape(model), setup, config.device_budget());
}

TEST(RunProfile, CountsHoldForLayersExpertsDevicesAndBudgets) {
  RunConfig config = zebra_run();
  config.memory.device = MemorySizes::parse({"64MiB"}).take();
  const std::string key = key_of(config);
  const ModelConfig model = ModelConfig::parse(kTwelveExperts, "test").take();
  EXPECT_EQ(kept_experts(model, config, config.device_budget()).take().run, key);
  const auto with = [&](const auto& change) {
    RunConfig other = config;
    change(other);
    return key_of(other);
  };
  EXPECT_EQ(with([](RunConfig& c) { c.optim.learning_rate = 1; }), key);
  EXPECT_EQ(with([](RunConfig& c) { c.train.output_dir = "elsewhere"; }), key);
  const auto set_device = [](RunConfig& c, std::vector<std::string> bytes) {
    c.memory.device = MemorySizes::parse(bytes).take();
  };
  EXPECT_NE(with([&](RunConfig& c) { set_device(c, {"8GiB"}); }), key);
  EXPECT_NE(with([&](RunConfig& c) { set_device(c, {"64MiB", "8GiB"}); }), key);
  EXPECT_NE(with([](RunConfig& c) { c.train.devices = {"cpu/4", "cpu/4:9"}; }), key);
  EXPECT_NE(with([](RunConfig& c) { c.train.devices = {"cpu/4", "cpu/4:8", "cpu/4:8"}; }), key);
  EXPECT_NE(with([](RunConfig& c) { c.train.tokens_per_step = 512; }), key);
  EXPECT_NE(with([](RunConfig& c) { c.train.chunks = 4; }), key);
  EXPECT_NE(with([](RunConfig& c) { c.train.dtype = DType::kF32; }), key);
  EXPECT_NE(with([](RunConfig& c) { c.train.freeze = {"router"}; }), key);
  EXPECT_NE(with([](RunConfig& c) { c.optim.state = StateFormat::kBf16; }), key);
  const auto of_model = [&](const std::string& from, const std::string& to) {
    std::string json = kTwelveExperts;
    json.replace(json.find(from), from.size(), to);
    return key_of(config, json);
  };
  EXPECT_NE(of_model("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"), key);
  EXPECT_NE(of_model("\"num_experts\": 12", "\"num_experts\": 16"), key);
}

}  // namespace
}  // namespace pagoda
