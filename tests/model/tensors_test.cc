#include "model/tensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <set>

#include "model/json.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

ModelConfig config_of(const Json& json) {
  auto result = ModelConfig::parse(json.dump(), "config");
  CHECK(result.ok(), "%s", result.status().message().c_str());
  return result.take();
}

// The published sizes of Qwen3-30B-A3B.
ModelConfig qwen3_30b_a3b() {
  Json json = tiny_config();
  json.merge_patch({{"vocab_size", 151936},
                    {"hidden_size", 2048},
                    {"num_hidden_layers", 48},
                    {"num_attention_heads", 32},
                    {"num_key_value_heads", 4},
                    {"head_dim", 128},
                    {"intermediate_size", 6144},
                    {"moe_intermediate_size", 768},
                    {"num_experts", 128},
                    {"num_experts_per_tok", 8},
                    {"mlp_only_layers", Json::array()}});
  return config_of(json);
}

TEST(TensorTable, CountsTheParametersOfQwen3_30B_A3B) {
  const ModelConfig config = qwen3_30b_a3b();
  const TensorTable table = TensorTable::make(config);
  // Both figures are those of the model with Transformers (num_parameters, and less idle experts).
  EXPECT_EQ(table.total_parameters(), 30532122624);
  EXPECT_EQ(table.active_parameters(config), 3353032704);
  EXPECT_EQ(table.tensors.size(), 18867u);
  EXPECT_EQ(table.records.size(), 2u + 48u + 48u * 128u);
  const RecordSpec& expert = table.records[table.expert(47, 127)];
  EXPECT_EQ(expert.name(), "layer 47, expert 127");
  EXPECT_EQ(expert.num_elements, 3 * 2048 * 768);
}

// Published sizes; the counts are Transformers' of the same configuration.
TEST(TensorTable, CountsTheParametersOfOtherFamilies) {
  const auto total = [](Json patch) {
    Json json = tiny_config();
    patch["head_dim"] = nullptr;
    patch["mlp_only_layers"] = nullptr;
    json.merge_patch(patch);
    return TensorTable::make(config_of(json)).total_parameters();
  };
  const Json mixtral_8x7b = {
      {"model_type", "mixtral"}, {"vocab_size", 32000}, {"hidden_size", 4096},
      {"num_hidden_layers", 32}, {"num_attention_heads", 32}, {"num_key_value_heads", 8},
      {"intermediate_size", 14336}, {"num_experts", nullptr}, {"num_local_experts", 8},
      {"num_experts_per_tok", 2}};
  EXPECT_EQ(total(mixtral_8x7b), 46702792704);
  const Json olmoe_1b_7b = {
      {"model_type", "olmoe"}, {"vocab_size", 50304}, {"hidden_size", 2048},
      {"num_hidden_layers", 16}, {"num_attention_heads", 16}, {"num_key_value_heads", 16},
      {"intermediate_size", 1024}, {"num_experts", 64}, {"num_experts_per_tok", 8}};
  EXPECT_EQ(total(olmoe_1b_7b), 6919161856);
  const Json qwen15_moe_a27b = {
      {"model_type", "qwen2_moe"}, {"vocab_size", 151936}, {"hidden_size", 2048},
      {"num_hidden_layers", 24}, {"num_attention_heads", 16}, {"num_key_value_heads", 16},
      {"intermediate_size", 5632}, {"moe_intermediate_size", 1408},
      {"shared_expert_intermediate_size", 5632}, {"num_experts", 60}, {"num_experts_per_tok", 4}};
  EXPECT_EQ(total(qwen15_moe_a27b), 14315784192);
}

// Whatever a file holds of the table, it holds once.
TEST(TensorTable, StoredTensorsCoverTheTable) {
  for (const char* family : {"mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "lfm2_moe", "dots1",
                             "minimax_m2", "granitemoe"}) {
    Json json = tiny_config();
    json.merge_patch({{"model_type", family},
                      {"shared_expert_intermediate_size", 28},
                      {"n_routed_experts", 3},
                      {"n_shared_experts", 1},
                      {"num_local_experts", 3},
                      {"num_dense_layers", 1}});
    const bool lfm2 = std::string(family) == "lfm2_moe";
    const bool granite = std::string(family) == "granitemoe";
    const bool short_names =
        family == std::string("mixtral") || family == std::string("minimax_m2");
    if (lfm2) json["layer_types"] = {"conv", "full_attention"};
    const TensorTable table = TensorTable::make(config_of(json));
    const std::string mlp = lfm2 ? "feed_forward" : granite ? "block_sparse_moe" : "mlp";
    for (const ExpertLayout layout : {usual_layout(*table.family), ExpertLayout::kFused}) {
      std::vector<int> times(table.tensors.size(), 0);
      std::set<std::string> names;
      for (const StoredTensor& stored : stored_tensors(table, layout)) {
        EXPECT_TRUE(names.insert(stored.name).second) << stored.name;
        int64_t elements = 1, of_parts = 0;
        for (const int64_t dim : stored.shape) elements *= dim;
        for (const int64_t part : stored.parts) {
          of_parts += table.tensors[part].stored_elements();
          ++times[part];
        }
        EXPECT_EQ(elements, of_parts) << stored.name;
      }
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << family;
      const bool fused = layout == ExpertLayout::kFused;
      EXPECT_EQ(names.count("model.layers.1." + mlp + ".experts.gate_up_proj"), fused);
      EXPECT_EQ(names.count("model.layers.1.block_sparse_moe.experts.2.w3.weight"),
                !fused && short_names);
      for (const char* name :
           {"input_linear.weight", "output_linear.weight", "router.layer.weight"}) {
        EXPECT_EQ(names.count(strf("model.layers.1.block_sparse_moe.%s", name)), !fused && granite);
      }
      if (std::string(family) != "minimax_m2") continue;
      const char* correction = fused ? "model.layers.1.mlp.e_score_correction_bias"
                                     : "model.layers.1.block_sparse_moe.e_score_correction_bias";
      EXPECT_EQ(names.count(correction), 1u);
    }
  }
}

// Names and shapes are those of Transformers 5.23 (models/gpt_oss) and of the published files.
TEST(TensorTable, GptOsssFilesHaveTheirNames) {
  Json json = tiny_config();
  json.merge_patch({{"model_type", "gpt_oss"}, {"hidden_size", 64}, {"intermediate_size", 96},
                    {"attention_bias", true}});
  const TensorTable table = TensorTable::make(config_of(json));
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  const Shapes dense = {{"self_attn.sinks", {4}},         {"self_attn.q_proj.bias", {32}},
                        {"self_attn.o_proj.bias", {64}},  {"self_attn.v_proj.bias", {16}},
                        {"mlp.router.weight", {3, 64}},   {"mlp.router.bias", {3}},
                        {"input_layernorm.weight", {64}},
                        {"post_attention_layernorm.weight", {64}}};
  const Shapes biases = {{"mlp.experts.gate_up_proj_bias", {3, 192}},
                         {"mlp.experts.down_proj_bias", {3, 64}}};
  const Shapes plain = {{"mlp.experts.gate_up_proj", {3, 64, 192}},
                        {"mlp.experts.down_proj", {3, 96, 64}}};
  const Shapes packed = {{"mlp.experts.gate_up_proj_blocks", {3, 192, 2, 16}},
                         {"mlp.experts.down_proj_blocks", {3, 64, 3, 16}}};
  for (const ExpertLayout layout : {ExpertLayout::kFused, ExpertLayout::kMxfp4}) {
    const bool mxfp4 = layout == ExpertLayout::kMxfp4;
    std::vector<int> times(table.tensors.size(), 0);
    Shapes shapes, scales;
    for (const StoredTensor& stored : stored_tensors(table, layout)) {
      EXPECT_TRUE(shapes.emplace(stored.name, stored.shape).second) << stored.name;
      if (!stored.scales.empty()) scales[stored.scales] = stored.shape;
      for (const int64_t part : stored.parts) ++times[part];
    }
    EXPECT_EQ(times, std::vector<int>(times.size(), 1));
    for (const Shapes* want : {&dense, &biases, mxfp4 ? &packed : &plain}) {
      for (const auto& [name, shape] : *want) {
        ASSERT_TRUE(shapes.contains("model.layers.1." + name)) << name;
        EXPECT_EQ(shapes["model.layers.1." + name], shape) << name;
      }
    }
    // The embedding, the last norm and the head; norms, sinks, four projections, the router, biases
    // of five, and the experts' four.
    EXPECT_EQ(shapes.size(), 3u + 2 * (2 + 1 + 4 + 1 + 5 + 4));
    EXPECT_EQ(scales.size(), mxfp4 ? 4u : 0u);
    EXPECT_EQ(scales.contains("model.layers.0.mlp.experts.down_proj_scales"), mxfp4);
  }
}

// Names and shapes are those of Transformers 5.23 (models/deepseek_v3).
TEST(TensorTable, LatentAttentionHasItsNames) {
  Json json = tiny_config();
  json.merge_patch({{"model_type", "deepseek_v3"}, {"n_routed_experts", 16}, {"kv_lora_rank", 10},
                    {"num_key_value_heads", 4},
                    {"q_lora_rank", 6}, {"qk_nope_head_dim", 5}, {"qk_rope_head_dim", 2},
                    {"v_head_dim", 8}, {"first_k_dense_replace", 1}});
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  const auto shapes_of = [&] {
    const TensorTable table = TensorTable::make(config_of(json));
    Shapes shapes;
    for (const TensorSpec& tensor : table.tensors) shapes[tensor.name] = tensor.stored_shape();
    const int64_t layer = table.layer(1), q = table.find(layer, TensorRole::kQuery);
    EXPECT_EQ(table.offset(layer, TensorRole::kLatent) - table.offset(layer, TensorRole::kQuery),
              table.tensors[q].num_elements())
        << "both are one matrix to multiply";
    return shapes;
  };
  Shapes want = {{"self_attn.q_a_proj.weight", {6, 16}},
                 {"self_attn.q_a_layernorm.weight", {6}},
                 {"self_attn.q_b_proj.weight", {28, 6}},
                 {"self_attn.kv_a_proj_with_mqa.weight", {12, 16}},
                 {"self_attn.kv_a_layernorm.weight", {10}},
                 {"self_attn.kv_b_proj.weight", {52, 10}},
                 {"self_attn.o_proj.weight", {16, 32}},
                 {"mlp.gate.e_score_correction_bias", {16}},
                 {"mlp.shared_experts.up_proj.weight", {12, 16}}};
  for (const auto& [name, shape] : want) {
    EXPECT_EQ(shapes_of()["model.layers.1." + name], shape) << name;
  }
  json["q_lora_rank"] = nullptr;
  const Shapes straight = shapes_of();
  EXPECT_EQ(straight.at("model.layers.1.self_attn.q_proj.weight"), (std::vector<int64_t>{28, 16}));
  EXPECT_FALSE(straight.contains("model.layers.1.self_attn.q_a_layernorm.weight"));
}

// Element (2, 1) of the second part of a block of two matrices (3, 4), counted by hand.
TEST(TensorTable, OrderInABlock) {
  BlockOrder turned{.rows = 3, .columns = 4, .turns = 2, .turn = 1, .transposed = false};
  EXPECT_EQ(turned.at(2, 1), 5 * 4 + 1);
  EXPECT_EQ(turned.lines() * turned.line(), 24);
  turned.transposed = true;
  EXPECT_EQ(turned.at(2, 1), 1 * 6 + 5);
  EXPECT_EQ(turned.lines(), 4);
}

// fp32 numbers of all sizes come back to the last bit, and each part is one that bf16 holds.
TEST(TensorTable, CorrectionsAreSplitExactly) {
  std::vector<float> whole = {0.0f, -0.0f, 1.0f, -1.0f, 12.3456789f, 0x1.fffffep127f, -0x1p-100f};
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    const float magnitude = std::ldexp(1.0f + static_cast<float>(random() & 0x7fffff) / 0x1p23f,
                                       static_cast<int>(random() % 227) - 100);
    whole.push_back(random() % 2 == 0 ? magnitude : -magnitude);
  }
  const auto n = static_cast<int64_t>(whole.size());
  std::vector<float> parts(whole.size() * 3), back(whole.size());
  split_correction(whole.data(), n, parts.data());
  for (const float part : parts) ASSERT_EQ(std::bit_cast<uint32_t>(part) & 0xffffu, 0u) << part;
  join_correction(parts.data(), n, back.data());
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(whole[i])) << whole[i];
  }
}

TEST(TensorTable, GlmsLayersHaveTheirNames) {
  Json json = tiny_config();
  json.merge_patch({{"model_type", "glm4_moe"}, {"n_routed_experts", 3}, {"use_qk_norm", true},
                    {"attention_bias", true}});
  const TensorTable table = TensorTable::make(config_of(json));
  std::set<std::string> names;
  for (const TensorSpec& tensor : table.tensors) names.insert(tensor.name);
  EXPECT_EQ(names.count("model.layers.0.mlp.gate_proj.weight"), 1u) << "the first is dense";
  EXPECT_EQ(names.count("model.layers.0.mlp.gate.weight"), 0u);
  for (const char* name :
       {"self_attn.q_norm.weight", "self_attn.v_proj.bias", "mlp.gate.weight",
        "mlp.gate.e_score_correction_bias", "mlp.shared_experts.up_proj.weight",
        "mlp.experts.2.down_proj.weight"}) {
    EXPECT_EQ(names.count(std::string("model.layers.1.") + name), 1u) << name;
  }
  EXPECT_EQ(names.count("model.layers.1.mlp.shared_expert_gate.weight"), 0u);
  EXPECT_EQ(names.count("model.layers.1.self_attn.o_proj.bias"), 0u);
  const int64_t at = table.find(table.layer(1), TensorRole::kCorrection);
  EXPECT_EQ(table.tensors[at].num_elements(), 9);
  EXPECT_EQ(table.tensors[at].stored_shape(), std::vector<int64_t>{3});
  EXPECT_FALSE(table.tensors[at].decay);
}

// Names are those of Transformers 5.23 (models/lfm2_moe/modeling_lfm2_moe.py).
TEST(TensorTable, Lfm2sLayersHaveTheirNames) {
  Json json = tiny_config();
  json.merge_patch({{"model_type", "lfm2_moe"}, {"num_dense_layers", 1}, {"conv_L_cache", 4},
                    {"layer_types", {"conv", "full_attention"}}});
  const TensorTable table = TensorTable::make(config_of(json));
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& tensor : table.tensors) shapes[tensor.name] = tensor.stored_shape();
  const std::map<std::string, std::vector<int64_t>> want = {
      {"model.layers.0.operator_norm.weight", {16}},
      {"model.layers.0.conv.in_proj.weight", {48, 16}},
      {"model.layers.0.conv.conv.weight", {16, 1, 4}},
      {"model.layers.0.conv.out_proj.weight", {16, 16}},
      {"model.layers.0.ffn_norm.weight", {16}},
      {"model.layers.0.feed_forward.w1.weight", {24, 16}},
      {"model.layers.0.feed_forward.w2.weight", {16, 24}},
      {"model.layers.1.self_attn.q_layernorm.weight", {8}},
      {"model.layers.1.self_attn.k_layernorm.weight", {8}},
      {"model.layers.1.self_attn.out_proj.weight", {16, 32}},
      {"model.layers.1.feed_forward.gate.weight", {3, 16}},
      {"model.layers.1.feed_forward.expert_bias", {3}},
      {"model.layers.1.feed_forward.experts.2.w3.weight", {12, 16}},
      {"model.embedding_norm.weight", {16}}};
  for (const auto& [name, shape] : want) {
    ASSERT_TRUE(shapes.contains(name)) << name;
    EXPECT_EQ(shapes[name], shape) << name;
  }
  EXPECT_FALSE(shapes.contains("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(shapes.contains("model.layers.1.conv.conv.weight"));
}

TEST(TensorTable, RecordsHoldTheirTensorsWithoutGaps) {
  Json json = tiny_config();
  json.merge_patch({{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", 28}});
  const ModelConfig config = config_of(json);
  const TensorTable table = TensorTable::make(config);
  std::set<std::string> names;
  size_t next_tensor = 0;
  for (size_t r = 0; r < table.records.size(); ++r) {
    const RecordSpec& record = table.records[r];
    ASSERT_EQ(record.first_tensor, static_cast<int64_t>(next_tensor)) << record.name();
    int64_t offset = 0;
    for (int64_t i = 0; i < record.num_tensors; ++i, ++next_tensor) {
      const TensorSpec& tensor = table.tensors[next_tensor];
      EXPECT_EQ(tensor.record, static_cast<int64_t>(r)) << tensor.name;
      EXPECT_EQ(tensor.offset, offset) << tensor.name;
      EXPECT_EQ(tensor.decay, tensor.shape.size() == 2) << tensor.name;
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      offset += tensor.num_elements();
    }
    EXPECT_EQ(record.num_elements, offset) << record.name();
  }
  EXPECT_EQ(next_tensor, table.tensors.size());
}

TEST(TensorTable, DenseAndMoeLayersHaveTheirNames) {
  const ModelConfig config = config_of(tiny_config());
  const TensorTable table = TensorTable::make(config);
  std::set<std::string> names;
  for (const TensorSpec& tensor : table.tensors) names.insert(tensor.name);
  EXPECT_TRUE(names.count("model.layers.0.mlp.down_proj.weight"));
  EXPECT_FALSE(names.count("model.layers.0.mlp.gate.weight"));
  EXPECT_TRUE(names.count("model.layers.1.mlp.gate.weight"));
  EXPECT_TRUE(names.count("model.layers.1.mlp.experts.2.up_proj.weight"));
  EXPECT_FALSE(names.count("model.layers.1.mlp.experts.3.up_proj.weight"));
  EXPECT_TRUE(names.count("lm_head.weight"));
  // q, k, v are one matrix to multiply, and so are gate and up.
  const int64_t layer = table.layer(1), expert = table.expert(1, 0);
  EXPECT_EQ(table.offset(layer, TensorRole::kKey) - table.offset(layer, TensorRole::kQuery),
            4 * 8 * 16);
  EXPECT_EQ(table.offset(layer, TensorRole::kValue) - table.offset(layer, TensorRole::kKey),
            2 * 8 * 16);
  EXPECT_EQ(table.offset(expert, TensorRole::kUp) - table.offset(expert, TensorRole::kGate),
            12 * 16);
}

TEST(TensorTable, TiedEmbeddingsHaveNoHeadMatrix) {
  Json json = tiny_config();
  const int64_t untied = TensorTable::make(config_of(json)).total_parameters();
  json["tie_word_embeddings"] = true;
  const TensorTable table = TensorTable::make(config_of(json));
  EXPECT_EQ(untied - table.total_parameters(), 257 * 16);
  EXPECT_EQ(table.records[table.head()].num_tensors, 1);
}

}  // namespace
}  // namespace pagoda
