// How many experts of a zebra run fit, against the memory plan on both sides of each number.
#include "preview/kept_experts.h"

#include <gtest/gtest.h>

#include "plan/zebra/run_zebra.h"
#include "preview/model_sizes.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 320,
  "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 96, "num_experts": 12,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.02, "max_position_embeddings": 2048, "mlp_only_layers": [],
  "decoder_sparse_step": 1, "attention_bias": false})";

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

// What each device needs so that all it has stays there, by the memory plan.
std::vector<int64_t> whole(const ModelConfig& model, const RunConfig& config, int64_t kept) {
  SessionOptions options = session_options(config);
  options.offloaded = spread_experts(kept, {1, 1, 1});
  options.device_bytes = options.host_bytes = int64_t{1} << 40;
  return Session::plan(model, options).take().whole_on_device;
}

TEST(RunProfile, ExpertsFitAsTheMemoryPlanSays) {
  const ModelConfig model = ModelConfig::parse(kConfig, "test").take();
  RunConfig config = zebra_run();
  // The run has 36 experts: 5 may stay where attention is, and the other device holds 33.
  const int64_t attends = whole(model, config, 5)[0], others = whole(model, config, 3)[1];
  config.memory.device =
      MemorySizes::parse({std::to_string(attends) + "B", std::to_string(others) + "B"}).take();
  const KeptExperts kept = kept_experts(model, config).take();
  EXPECT_EQ(kept.most, 5);
  EXPECT_EQ(kept.least, 3);
  EXPECT_GT(whole(model, config, 6)[0], attends);
  EXPECT_GT(whole(model, config, 2)[1], others);
}

TEST(RunProfile, NothingIsKeptWithoutZebra) {
  const ModelConfig model = ModelConfig::parse(kConfig, "test").take();
  RunConfig config = zebra_run();
  config.parallel.layout = LayoutKind::kExperts;
  const KeptExperts kept = kept_experts(model, config).take();
  EXPECT_EQ(kept.least, 0);
  EXPECT_EQ(kept.most, 0);
}

}  // namespace
}  // namespace pagoda
