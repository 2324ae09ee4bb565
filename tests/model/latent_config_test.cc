// config.json of families with latent attention.
#include <gtest/gtest.h>

#include "model/json.h"
#include "model/model_config.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

Json latent_with(const char* family, const Json& patch) {
  Json config = tiny_config();
  config.merge_patch({{"model_type", family},
                      {"num_experts", nullptr},
                      {"n_routed_experts", 16},
                      {"num_key_value_heads", nullptr},
                      {"norm_topk_prob", nullptr},
                      {"num_hidden_layers", 4},
                      {"kv_lora_rank", 10},
                      {"qk_nope_head_dim", 6},
                      {"qk_rope_head_dim", 2},
                      {"v_head_dim", 4}});
  config.merge_patch(patch);
  return config;
}

// Defaults and keys as Transformers 5.23 has them (models/deepseek_v2, deepseek_v3, glm4_moe_lite).
TEST(ModelConfig, LatentAttention) {
  const auto of = [](const char* family, const Json& patch) {
    auto c = ModelConfig::parse(latent_with(family, patch).dump(), "config");
    CHECK(c.ok(), "%s", c.status().message().c_str());
    return c.take();
  };
  const ModelConfig v2 =
      of("deepseek_v2", {{"norm_topk_prob", true}, {"n_group", 4}, {"topk_group", 2}});
  EXPECT_EQ(v2.head_dim, 8) << "head_dim is not its key";
  EXPECT_EQ(v2.num_kv_heads, 4);
  EXPECT_EQ(v2.query_rank, 0);
  EXPECT_EQ(v2.rotary_dim, 2);
  EXPECT_EQ(v2.query_scale, 1.0);
  EXPECT_FALSE(v2.norm_topk_prob) << "not V2's";
  EXPECT_EQ(v2.routed_scaling_factor, 1.0);
  EXPECT_EQ(v2.expert_groups, 1) << "topk_method is greedy";
  EXPECT_EQ(v2.shared_intermediate_size, 2 * 12);
  EXPECT_EQ(v2.num_moe_layers(), 4);
  EXPECT_EQ(v2.next_token_layers, 0);
  EXPECT_FALSE(v2.router_correction);
  const ModelConfig grouped = of(
      "deepseek_v2", {{"topk_method", "group_limited_greedy"}, {"n_group", 16}, {"topk_group", 3}});
  EXPECT_EQ(grouped.expert_groups, 16);
  EXPECT_EQ(grouped.expert_groups_chosen, 3);
  const ModelConfig v3 = of("deepseek_v3", {{"q_lora_rank", 6}});
  EXPECT_EQ(v3.query_rank, 6);
  EXPECT_TRUE(v3.norm_topk_prob && v3.router_correction && v3.rope_neighbours);
  EXPECT_EQ(v3.routed_scaling_factor, 2.5);
  EXPECT_EQ(v3.expert_groups, 8);
  EXPECT_EQ(v3.expert_groups_chosen, 4);
  EXPECT_EQ(v3.num_moe_layers(), 1) << "three dense layers first";
  EXPECT_EQ(v3.next_token_layers, 1);
  const ModelConfig glm = of("glm4_moe_lite", {{"v_head_dim", 18}, {"rope_interleave", false}});
  EXPECT_EQ(glm.head_dim, 18) << "of values";
  EXPECT_FALSE(glm.rope_neighbours);
  EXPECT_DOUBLE_EQ(glm.query_scale, 1.5) << "sqrt(18 / 8)";
  EXPECT_EQ(glm.routed_scaling_factor, 1.8);
  EXPECT_EQ(glm.num_moe_layers(), 3);
  EXPECT_EQ(of("glm4_moe_lite", {{"mlp_layer_types", {"sparse", "dense", "sparse", "dense"}}})
                .mlp_only_layers,
            (std::vector<int64_t>{1, 3}));
  // 0.1 * 0.5 * ln 8 + 1, squared, and its quotient with that of mscale 1.
  const ModelConfig yarn = of(
      "deepseek_v3", {{"rope_theta", nullptr},
                      {"rope_scaling",
                       {{"type", "yarn"}, {"factor", 8}, {"mscale", 1}, {"mscale_all_dim", 0.5}}}});
  EXPECT_NEAR(yarn.query_scale, 1.1039720770839918 * 1.1039720770839918, 1e-12);
  EXPECT_NEAR(yarn.rotation.size, 1.2079441541679836 / 1.1039720770839918, 1e-12);
}

TEST(ModelConfig, LatentAttentionRefusesWhatDoesNotFit) {
  const auto refuse = [](const char* family, const Json& patch, const std::string& part) {
    const auto parsed = ModelConfig::parse(latent_with(family, patch).dump(), "config");
    ASSERT_FALSE(parsed.ok()) << patch.dump();
    EXPECT_EQ(parsed.status().code(), Exit::kBadData);
    EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
  };
  refuse("deepseek_v2", {{"kv_lora_rank", nullptr}}, "\"kv_lora_rank\" is missing");
  refuse("deepseek_v2", {{"q_lora_rank", 0}}, "\"q_lora_rank\"");
  refuse("deepseek_v2", {{"qk_rope_head_dim", 3}}, "\"qk_rope_head_dim\" is odd");
  refuse("deepseek_v2", {{"qk_nope_head_dim", 5}}, "odd length");
  refuse("deepseek_v2", {{"num_key_value_heads", 2}}, "as latent attention has it");
  refuse("deepseek_v2", {{"topk_method", "noaux_tc"}}, "\"topk_method\"");
  refuse("deepseek_v2", {{"mlp_bias", true}}, "\"mlp_bias\"");
  refuse("deepseek_v3", {{"attention_bias", true}}, "\"attention_bias\"");
  refuse("deepseek_v3", {{"quantization_config", {{"quant_method", "fp8"}}}},
         "\"quantization_config\"");
  refuse("deepseek_v3",
         {{"rope_theta", nullptr},
          {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}},
         "partial_rotary_factor");
  refuse("glm4_moe_lite", {{"mlp_layer_types", {"sparse", "dense"}}}, "\"mlp_layer_types\"");
  refuse("glm4_moe_lite", {{"mlp_layer_types", {"sparse", "thick", "sparse", "sparse"}}}, "holds");
}

}  // namespace
}  // namespace pagoda
