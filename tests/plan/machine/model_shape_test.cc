// Parameters of models by their config.json values, against the numbers that their published
// weights have; of random shapes against lists of tensors; nonsense refused.
#include "plan/machine/model_shape.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "model/json.h"
#include "model/tensors.h"
#include "plan/machine/model_cost.h"
#include "plan/refusals.h"
#include "preview/model_sizes.h"
#include "tests/testing/plan/piper_model.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

std::vector<uint8_t> layers(int64_t dense, int64_t moe) {
  std::vector<uint8_t> is_moe(static_cast<size_t>(dense), 0);
  is_moe.insert(is_moe.end(), static_cast<size_t>(moe), 1);
  return is_moe;
}

// The values are those of the config.json beside the weights named.

// Qwen/Qwen3-30B-A3B
ModelShape qwen3_30b() {
  return {.vocab_size = 151936,
          .hidden_size = 2048,
          .is_moe = layers(0, 48),
          .attention = {.heads = 32,
                        .kv_heads = 4,
                        .head_dim = 128,
                        .value_head_dim = 128,
                        .query_norm = 128,
                        .key_norm = 128},
          .num_experts = 128,
          .experts_per_token = 8,
          .expert_ffn = 768};
}

// mistralai/Mixtral-8x7B-v0.1
ModelShape mixtral_8x7b() {
  return {.vocab_size = 32000,
          .hidden_size = 4096,
          .is_moe = layers(0, 32),
          .attention = {.heads = 32, .kv_heads = 8, .head_dim = 128, .value_head_dim = 128},
          .num_experts = 8,
          .experts_per_token = 2,
          .expert_ffn = 14336};
}

// allenai/OLMoE-1B-7B-0924
ModelShape olmoe_1b_7b() {
  return {.vocab_size = 50304,
          .hidden_size = 2048,
          .is_moe = layers(0, 16),
          .attention = {.heads = 16,
                        .kv_heads = 16,
                        .head_dim = 128,
                        .value_head_dim = 128,
                        .query_norm = 2048,
                        .key_norm = 2048},
          .num_experts = 64,
          .experts_per_token = 8,
          .expert_ffn = 1024};
}

AttentionSizes deepseek_attention(int64_t heads, int64_t query_rank) {
  return {.heads = heads,
          .kv_heads = heads,
          .head_dim = 128 + 64,
          .value_head_dim = 128,
          .kv_rank = 512,
          .query_rank = query_rank,
          .rope_head_dim = 64};
}

// deepseek-ai/DeepSeek-V2-Lite
ModelShape deepseek_v2_lite() {
  return {.vocab_size = 102400,
          .hidden_size = 2048,
          .is_moe = layers(1, 26),
          .attention = deepseek_attention(16, 0),
          .dense_ffn = 10944,
          .num_experts = 64,
          .experts_per_token = 6,
          .expert_ffn = 1408,
          .shared_ffn = 2 * 1408};
}

// deepseek-ai/DeepSeek-V2
ModelShape deepseek_v2() {
  return {.vocab_size = 102400,
          .hidden_size = 5120,
          .is_moe = layers(1, 59),
          .attention = deepseek_attention(128, 1536),
          .dense_ffn = 12288,
          .num_experts = 160,
          .experts_per_token = 6,
          .expert_ffn = 1536,
          .shared_ffn = 2 * 1536};
}

// deepseek-ai/DeepSeek-V3, without the layer that predicts a second token
ModelShape deepseek_v3() {
  return {.vocab_size = 129280,
          .hidden_size = 7168,
          .is_moe = layers(3, 58),
          .attention = deepseek_attention(128, 1536),
          .dense_ffn = 18432,
          .num_experts = 256,
          .experts_per_token = 8,
          .expert_ffn = 2048,
          .shared_ffn = 2048,
          .router_bias = true};
}

// openai/gpt-oss-20b and -120b
ModelShape gpt_oss(int64_t num_layers, int64_t num_experts) {
  return {.vocab_size = 201088,
          .hidden_size = 2880,
          .is_moe = layers(0, num_layers),
          .attention = {.heads = 64,
                        .kv_heads = 8,
                        .head_dim = 64,
                        .value_head_dim = 64,
                        .qkv_bias = true,
                        .output_bias = true,
                        .sinks = true},
          .num_experts = num_experts,
          .experts_per_token = 4,
          .expert_ffn = 2880,
          .router_bias = true,
          .expert_bias = true};
}

// zai-org/GLM-4.5-Air, without the layer that predicts a second token
ModelShape glm_45_air() {
  return {.vocab_size = 151552,
          .hidden_size = 4096,
          .is_moe = layers(1, 45),
          .attention = {.heads = 96,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .value_head_dim = 128,
                        .qkv_bias = true},
          .dense_ffn = 10944,
          .num_experts = 128,
          .experts_per_token = 8,
          .expert_ffn = 1408,
          .shared_ffn = 1408,
          .router_bias = true};
}

// zai-org/GLM-4.5, likewise
ModelShape glm_45() {
  ModelShape shape = glm_45_air();
  shape.hidden_size = 5120;
  shape.is_moe = layers(3, 89);
  shape.attention.query_norm = shape.attention.key_norm = 128;
  shape.dense_ffn = 12288;
  shape.num_experts = 160;
  shape.expert_ffn = shape.shared_ffn = 1536;
  return shape;
}

struct Published {
  const char* name;
  ModelShape shape;
  int64_t total;
  int64_t active;  // total - (number of MoE layers) (E - k) 3 d f, biases as well
};

TEST(ModelShape, CountsParametersOfPublishedModels) {
  const std::vector<Published> models = {
      {"Qwen3-30B-A3B", qwen3_30b(), 30532122624, 3353032704},
      {"Mixtral-8x7B", mixtral_8x7b(), 46702792704, 46702792704 - 32LL * 6 * 3 * 4096 * 14336},
      {"OLMoE-1B-7B", olmoe_1b_7b(), 6919161856, 6919161856 - 16LL * 56 * 3 * 2048 * 1024},
      {"DeepSeek-V2-Lite", deepseek_v2_lite(), 15706484224,
       15706484224 - 26LL * 58 * 3 * 2048 * 1408},
      {"DeepSeek-V2", deepseek_v2(), 235741434880, 235741434880 - 59LL * 154 * 3 * 5120 * 1536},
      {"DeepSeek-V3", deepseek_v3(), 671026419200, 37552297472},
      {"gpt-oss-20b", gpt_oss(24, 32), 20914757184,
       20914757184 - 24LL * 28 * (3 * 2880 * 2880 + 3 * 2880)},
      {"gpt-oss-120b", gpt_oss(36, 128), 116829156672,
       116829156672 - 36LL * 124 * (3 * 2880 * 2880 + 3 * 2880)},
      {"GLM-4.5-Air", glm_45_air(), 106852251264, 106852251264 - 45LL * 120 * 3 * 4096 * 1408},
      {"GLM-4.5", glm_45(), 352797829024, 352797829024 - 89LL * 152 * 3 * 5120 * 1536},
  };
  for (const Published& model : models) {
    SCOPED_TRACE(model.name);
    const Status status = check_model(model.shape);
    ASSERT_TRUE(status.ok()) << status.message();
    const ParameterCount count = count_parameters(model.shape);
    EXPECT_EQ(count.total, model.total);
    EXPECT_EQ(count.active, model.active);
    std::printf("%-17s %15lld parameters, %14lld active\n", model.name, (long long)count.total,
                (long long)count.active);
  }
}

ModelShape random_model(std::mt19937& random) {
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(1 + random() % static_cast<uint32_t>(most));
  };
  const auto coin = [&] { return random() % 2 == 0; };
  ModelShape shape;
  shape.vocab_size = up_to(50);
  shape.hidden_size = up_to(20);
  shape.is_moe = {1};
  for (int64_t l = up_to(5); l > 0; --l) shape.is_moe.push_back(coin());
  if (coin()) {
    shape.conv_width = 1 + up_to(4);
    for (size_t l = 0; l < shape.is_moe.size(); ++l) shape.is_conv.push_back(coin());
  }
  AttentionSizes& a = shape.attention;
  a.kv_heads = up_to(4);
  a.heads = a.kv_heads * up_to(3);
  a.head_dim = 2 * up_to(8);
  a.value_head_dim = up_to(8);
  a.sinks = coin();
  if (coin()) {
    a.kv_heads = a.heads;
    a.kv_rank = up_to(9);
    a.query_rank = coin() ? up_to(9) : 0;
    a.rope_head_dim = up_to(a.head_dim);
  } else {
    a.qkv_bias = coin();
    a.output_bias = coin();
    if (coin()) a.query_norm = a.key_norm = a.head_dim;
  }
  shape.dense_ffn = up_to(30);
  shape.num_experts = up_to(9);
  shape.experts_per_token = up_to(shape.num_experts);
  shape.expert_ffn = up_to(20);
  shape.shared_ffn = coin() ? up_to(20) : 0;
  shape.shared_gate = shape.shared_ffn > 0 && coin();
  shape.router_bias = coin();
  shape.router_correction = coin();
  shape.expert_bias = coin();
  shape.tied_embeddings = coin();
  return shape;
}

// The tensors of a layer's attention, as a checkpoint has them.
int64_t attention_tensors(const ModelShape& shape) {
  const AttentionSizes& a = shape.attention;
  const int64_t d = shape.hidden_size;
  std::vector<std::vector<int64_t>> tensors;
  if (!a.latent()) {
    tensors = {{a.heads * a.head_dim, d}, {a.kv_heads * a.head_dim, d},
               {a.kv_heads * a.value_head_dim, d}};
    if (a.qkv_bias) {
      const auto weights = tensors;
      for (const auto& weight : weights) tensors.push_back({weight[0]});
    }
    if (a.query_norm > 0) tensors.push_back({a.query_norm});
    if (a.key_norm > 0) tensors.push_back({a.key_norm});
  } else {
    if (a.query_rank > 0) {
      tensors = {{a.query_rank, d}, {a.query_rank}, {a.heads * a.head_dim, a.query_rank}};
    } else {
      tensors = {{a.heads * a.head_dim, d}};
    }
    tensors.push_back({a.kv_rank + a.rope_head_dim, d});
    tensors.push_back({a.kv_rank});
    for (int64_t h = 0; h < a.heads; ++h) {
      tensors.push_back({a.head_dim - a.rope_head_dim, a.kv_rank});
      tensors.push_back({a.value_head_dim, a.kv_rank});
    }
  }
  tensors.push_back({d, a.heads * a.value_head_dim});
  if (a.output_bias) tensors.push_back({d});
  if (a.sinks) tensors.push_back({a.heads});
  int64_t sum = 0;
  for (const auto& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t extent : tensor) elements *= extent;
    sum += elements;
  }
  return sum;
}

int64_t expert_tensors(const ModelShape& shape, int64_t ffn, bool bias) {
  const int64_t d = shape.hidden_size;
  return ffn * d + ffn * d + d * ffn + (bias ? ffn + ffn + d : 0);
}

// What a token visits, or all: of each MoE layer so many experts.
int64_t tensors_with(const ModelShape& shape, int64_t experts) {
  const int64_t d = shape.hidden_size;
  int64_t sum = shape.vocab_size * d + (shape.tied_embeddings ? 0 : shape.vocab_size * d) + d;
  for (size_t l = 0; l < shape.is_moe.size(); ++l) {
    const bool convolves = !shape.is_conv.empty() && shape.is_conv[l];
    sum += convolves ? 3 * d * d + d * shape.conv_width + d * d : attention_tensors(shape);
    sum += d + d;
    if (!shape.is_moe[l]) {
      sum += expert_tensors(shape, shape.dense_ffn, false);
      continue;
    }
    sum += shape.num_experts * d + (shape.router_bias ? shape.num_experts : 0);
    sum += shape.router_correction ? shape.num_experts : 0;
    for (int64_t e = 0; e < experts; ++e) {
      sum += expert_tensors(shape, shape.expert_ffn, shape.expert_bias);
    }
    if (shape.shared_ffn > 0) sum += expert_tensors(shape, shape.shared_ffn, false);
    if (shape.shared_gate) sum += d;
  }
  return sum;
}

TEST(ModelShape, CountsWhatAListOfTensorsHas) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const ModelShape shape = random_model(random);
    const Status status = check_model(shape);
    ASSERT_TRUE(status.ok()) << status.message();
    const ParameterCount count = count_parameters(shape);
    EXPECT_EQ(count.total, tensors_with(shape, shape.num_experts));
    EXPECT_EQ(count.active, tensors_with(shape, shape.experts_per_token));
    int64_t sum = shape.vocab_size * shape.hidden_size * (shape.tied_embeddings ? 1 : 2) +
                  shape.hidden_size;
    for (int64_t l = 0; l < shape.num_layers(); ++l) {
      const LayerParameters layer = layer_parameters(shape, l);
      sum += layer.replicated() + shape.num_experts * layer.expert;
    }
    const auto moe = std::count(shape.is_moe.begin(), shape.is_moe.end(), 1);
    const int64_t parts = shape.router_correction ? 2 * shape.num_experts * moe : 0;
    EXPECT_EQ(sum, count.total + parts) << "a record keeps a correction in three parts";
  }
}

// Families that are trained: against the tensors that training has.
TEST(ModelShape, OfAConfigHasTheParametersOfItsTensors) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(1 + random() % most); };
    const char* families[] = {"mixtral",     "olmoe",         "qwen2_moe",  "qwen3_moe",
                              "glm4_moe",    "lfm2_moe",      "gpt_oss",    "deepseek_v2",
                              "deepseek_v3", "glm4_moe_lite", "granitemoe", "dots1",
                              "minimax_m2"};
    const std::string family = families[random() % std::size(families)];
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << family);
    Json json = tiny_config();
    const int64_t kv_heads = up_to(3), heads = kv_heads * up_to(3), layers = up_to(5);
    json.merge_patch(
        {{"model_type", family},
         {"vocab_size", up_to(90)},
         {"head_dim", 8},
         {"hidden_size", family == "olmoe" ? 8 * heads : 8 * up_to(6)},
         {"num_hidden_layers", layers},
         {"num_attention_heads", heads},
         {"num_key_value_heads", kv_heads},
         {"intermediate_size", 1 + up_to(40)},
         {"shared_expert_intermediate_size", up_to(40)},
         {"num_experts_per_tok", up_to(3)},
         {"mlp_only_layers", Json::array({up_to(static_cast<uint32_t>(layers)) - 1})},
         {"decoder_sparse_step", up_to(2)},
         {"qkv_bias", random() % 2 == 0},
         {"attention_bias", (family == "glm4_moe" || family == "gpt_oss") && random() % 2 == 0},
         {"use_qk_norm", random() % 2 == 0},
         {"n_routed_experts", 3},
         {"num_local_experts", 3},
         {"n_shared_experts", up_to(2)},
         {"first_k_dense_replace", up_to(static_cast<uint32_t>(layers)) - 1},
         {"num_dense_layers", up_to(static_cast<uint32_t>(layers)) - 1},
         {"conv_L_cache", 1 + up_to(4)},
         {"use_expert_bias", random() % 2 == 0},
         {"tie_word_embeddings", random() % 2 == 0}});
    if (family == "lfm2_moe") {
      for (int64_t l = 0; l < layers; ++l) {
        json["layer_types"].push_back(random() % 2 == 0 ? "conv" : "full_attention");
      }
    }
    if (family.starts_with("deepseek") || family == "glm4_moe_lite") {
      json.merge_patch({{"num_key_value_heads", heads},
                        {"kv_lora_rank", up_to(20)},
                        {"qk_rope_head_dim", 2 * up_to(3)},
                        {"qk_nope_head_dim", 2 * up_to(5)},
                        {"v_head_dim", 2 * up_to(9)},
                        {"n_group", 1},
                        {"topk_group", 1}});
      if (random() % 2 == 0) json["q_lora_rank"] = up_to(20);
    }
    auto config = ModelConfig::parse(json.dump(), "config");
    ASSERT_TRUE(config.ok()) << config.status().message();
    const ModelShape shape = model_shape(*config);
    const Status status = check_model(shape);
    ASSERT_TRUE(status.ok()) << status.message();
    const TensorTable table = TensorTable::make(*config);
    EXPECT_EQ(count_parameters(shape).total, table.total_parameters());
    EXPECT_EQ(count_parameters(shape).active, table.active_parameters(*config));
  }
}

// Layers of the paper are layers of a shape with as many keys as queries, less what the paper
// leaves out: norms, the router and its probabilities.
TEST(ModelCost, OfALayerLikeThePapersIsThePapers) {
  ModelShape shape = mixtral_8x7b();
  shape.attention.kv_heads = shape.attention.heads;
  const ModelCost ours = model_cost(shape).take();
  const ModelCost paper = piper_cost({32, 4096, 32, 8, 2, 14336});
  ASSERT_EQ(ours.layers.size(), paper.layers.size());
  const LayerCost &a = ours.layers[0], &b = paper.layers[0];
  EXPECT_EQ(a.replicated_parameters, b.replicated_parameters + 2 * 4096 + 8 * 4096);
  EXPECT_EQ(a.token_bytes, b.token_bytes + 4 * 8);
  EXPECT_EQ(a.expert_parameters, b.expert_parameters);
  EXPECT_EQ(a.row_bytes, b.row_bytes);
  EXPECT_EQ(a.num_experts, b.num_experts);
  EXPECT_EQ(a.experts_per_token, b.experts_per_token);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.score_width, b.score_width);
}

// Latent attention keeps each head's keys and values, and the latents they came from.
TEST(ModelCost, OfLatentAttentionAndSharedExpertsByHand) {
  const ModelCost cost = model_cost(deepseek_v3()).take();
  const int64_t heads = 128 * (192 + 192 + 128 + 128), latents = 1536 + 512 + 64;
  const int64_t attention = 2 * (2 * 7168 + heads + latents);
  EXPECT_EQ(cost.layers[0].token_bytes, attention + 2 * (3 * 18432 + 7168));
  EXPECT_EQ(cost.layers[0].num_experts, 0);
  EXPECT_EQ(cost.layers[3].token_bytes, attention + 2 * (3 * 2048 + 7168) + 4 * 256);
  EXPECT_EQ(cost.layers[3].row_bytes, 2 * (3 * 2048 + 7168));
  EXPECT_EQ(cost.layers[3].score_width, 128 * (192 + 128));
  EXPECT_EQ(cost.head_parameters, 129280LL * 7168 + 7168);
}

// Against a loop over tokens and the keys each sees; sums of integers far below 2^53, so exact.
TEST(ModelCost, CountsFlopsLikeALoopOverTokens) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const ModelShape shape = random_model(random);
    const ModelCost cost = model_cost(shape).take();
    const auto s = static_cast<int64_t>(1 + random() % 30);
    const AttentionSizes& a = shape.attention;
    int64_t forward = 0, rows = 0, of_rows = 0;
    for (int64_t token = 0; token < s; ++token) {
      for (int64_t l = 0; l < shape.num_layers(); ++l) {
        const LayerParameters layer = layer_parameters(shape, l);
        forward += 2 * (layer.replicated() + shape.experts_per_token * layer.expert);
        of_rows += 2 * shape.experts_per_token * layer.expert;
        rows += layer.expert > 0 ? shape.experts_per_token : 0;
        if (!shape.is_conv.empty() && shape.is_conv[static_cast<size_t>(l)]) continue;
        for (int64_t key = 0; key <= token; ++key) {
          forward += a.heads * (2 * a.head_dim + 2 * a.value_head_dim);
        }
      }
      forward += 2 * (shape.vocab_size * shape.hidden_size + shape.hidden_size);
    }
    EXPECT_EQ(model_flops(cost, s, 7), 3.0 * 7.0 * static_cast<double>(forward));
    // Two ranks, one of which has all rows of experts but one.
    EXPECT_EQ(part_flops(cost, s, 3, 0), 3.0 * 3.0 * static_cast<double>(forward - of_rows));
    const auto all = static_cast<double>(7 * rows);
    EXPECT_EQ(part_flops(cost, s, 3, all - 1) + part_flops(cost, s, 4, 1), model_flops(cost, s, 7));
  }
}

void expect_refused(const ModelShape& shape, const char* word) {
  const Status status = check_model(shape);
  EXPECT_EQ(status.code(), Exit::kUsage) << word;
  EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_FALSE(model_cost(shape).ok());
}

TEST(ModelShape, RefusesNonsense) {
  const auto refuse = [](const char* word, auto change) {
    ModelShape shape = deepseek_v3();
    change(shape);
    expect_refused(shape, word);
  };
  refuse("vocab_size", [](ModelShape& m) { m.vocab_size = 0; });
  refuse("hidden_size", [](ModelShape& m) { m.hidden_size = -1; });
  refuse("hidden_size", [](ModelShape& m) { m.hidden_size = kMaxCount + 1; });
  refuse("number of layers", [](ModelShape& m) { m.is_moe.clear(); });
  refuse("heads", [](ModelShape& m) { m.attention.heads = 0; });
  refuse("multiple of kv_heads", [](ModelShape& m) { m.attention.kv_heads = 3; });
  refuse("as many kv_heads", [](ModelShape& m) { m.attention.kv_heads = 64; });
  refuse("kv_rank", [](ModelShape& m) { m.attention.kv_rank = -5; });
  refuse("kv_rank", [](ModelShape& m) { m.attention.kv_rank = 0; });
  refuse("rope_head_dim", [](ModelShape& m) { m.attention.rope_head_dim = 193; });
  refuse("biases", [](ModelShape& m) { m.attention.qkv_bias = true; });
  refuse("num_experts", [](ModelShape& m) { m.num_experts = 0; });
  refuse("experts_per_token", [](ModelShape& m) { m.experts_per_token = 257; });
  refuse("experts_per_token", [](ModelShape& m) { m.experts_per_token = 0; });
  refuse("expert_ffn", [](ModelShape& m) { m.expert_ffn = 0; });
  refuse("shared_gate", [](ModelShape& m) { m.shared_ffn = 0, m.shared_gate = true; });
  refuse("dense_ffn", [](ModelShape& m) { m.dense_ffn = 0; });
  refuse("no layer", [](ModelShape& m) { m.is_moe = layers(4, 0); });
  refuse("more parameters", [](ModelShape& m) { m.num_experts = m.expert_ffn = kMaxCount; });
}

}  // namespace
}  // namespace pagoda
