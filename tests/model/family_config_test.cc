// What each family has in its config.json beyond others.
#include <gtest/gtest.h>

#include <cmath>

#include "model/json.h"
#include "model/model_config.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

Json glm_with(const Json& patch) {
  Json config = tiny_config();
  config.merge_patch(
      {{"model_type", "glm4_moe"}, {"n_routed_experts", 8}, {"num_experts", nullptr}});
  config.merge_patch(patch);
  return config;
}

// Defaults and keys as Transformers 5.23 has them (models/glm4_moe/configuration_glm4_moe.py).
TEST(ModelConfig, Glm4Moe) {
  const auto parsed = ModelConfig::parse(glm_with({{"num_hidden_layers", 4}}).dump(), "config");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const ModelConfig& c = parsed.value();
  EXPECT_EQ(c.num_experts, 8);
  EXPECT_TRUE(c.norm_topk_prob && c.router_correction);
  EXPECT_EQ(c.expert_groups, 1);
  EXPECT_EQ(c.routed_scaling_factor, 1.0);
  EXPECT_EQ(c.router_aux_loss_coef, 0.0) << "tiny_config's coefficient is not GLM's key";
  EXPECT_EQ(c.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(c.qkv_bias || c.shared_gate);
  EXPECT_EQ(c.shared_intermediate_size, c.moe_intermediate_size);
  EXPECT_EQ(c.first_dense_layers, 1);
  EXPECT_EQ(c.num_moe_layers(), 3) << "mlp_only_layers is not its key";
  EXPECT_EQ(c.rotary_dim, 4) << "half of a head of 8";
  EXPECT_EQ(c.next_token_layers, 1);
  auto full = ModelConfig::parse(
      glm_with({{"n_group", 4},
                {"topk_group", 2},
                {"routed_scaling_factor", 2.5},
                {"n_shared_experts", 2},
                {"first_k_dense_replace", 0},
                {"attention_bias", true},
                {"use_qk_norm", true},
                {"norm_topk_prob", false},
                {"num_mtp_layers", 3},
                {"partial_rotary_factor", 0.25},
                {"rope_parameters", {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.75}}}})
          .dump(),
      "config");
  ASSERT_TRUE(full.ok()) << full.status().message();
  EXPECT_EQ(full->expert_groups, 4);
  EXPECT_EQ(full->expert_groups_chosen, 2);
  EXPECT_EQ(full->routed_scaling_factor, 2.5);
  EXPECT_EQ(full->shared_intermediate_size, 2 * full->moe_intermediate_size);
  EXPECT_EQ(full->num_moe_layers(), 2);
  EXPECT_TRUE(full->qkv_bias);
  EXPECT_EQ(full->qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(full->norm_topk_prob);
  EXPECT_EQ(full->next_token_layers, 3);
  EXPECT_EQ(full->rotary_dim, 6) << "the rotary parameters come first";
}

TEST(ModelConfig, Glm4MoeRefusesWhatDoesNotFit) {
  const auto refuse = [](const Json& patch, const std::string& part) {
    const auto parsed = ModelConfig::parse(glm_with(patch).dump(), "config");
    ASSERT_FALSE(parsed.ok()) << patch.dump();
    EXPECT_EQ(parsed.status().code(), Exit::kBadData);
    EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
  };
  refuse({{"n_routed_experts", nullptr}}, "\"n_routed_experts\" is missing");
  refuse({{"num_local_experts", 5}}, "\"n_routed_experts\" and \"num_local_experts\" differ");
  refuse({{"n_group", 3}}, "\"n_group\" 3 does not divide the 8 experts");
  refuse({{"n_group", 2}, {"topk_group", 3}}, "less than \"topk_group\" 3");
  refuse({{"n_group", 8}}, "leaves one expert in a group");
  refuse({{"n_group", 4}, {"num_experts_per_tok", 3}}, "more than the 2 experts");
  refuse({{"partial_rotary_factor", 0.4}}, "leaves 3 numbers of a head");
  refuse({{"partial_rotary_factor", 0.0}}, "leaves 0 numbers of a head");
  refuse({{"partial_rotary_factor", 1.5}}, "partial_rotary_factor");
  refuse({{"rope_parameters", {{"rope_theta", 1e6}, {"partial_rotary_factor", 2.0}}}},
         "config: \"rope_parameters\": \"partial_rotary_factor\" is 2.0");
  refuse({{"n_shared_experts", 0}}, "n_shared_experts");
  refuse({{"quantization_config", {{"quant_method", "fp8"}}}}, "quantization_config");
}

Json lfm2_with(const Json& patch) {
  Json config = tiny_config();
  config.merge_patch({{"model_type", "lfm2_moe"},
                      {"num_hidden_layers", 4},
                      {"layer_types", {"conv", "conv", "full_attention", "conv"}},
                      {"tie_word_embeddings", nullptr},
                      {"rms_norm_eps", nullptr}});
  config.merge_patch(patch);
  return config;
}

// Defaults and keys as Transformers 5.23 has them (models/lfm2_moe/configuration_lfm2_moe.py).
TEST(ModelConfig, Lfm2Moe) {
  auto c = ModelConfig::parse(lfm2_with(Json::object()).dump(), "config");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->conv_layers, (std::vector<uint8_t>{1, 1, 0, 1}));
  EXPECT_EQ(c->conv_width, 3);
  EXPECT_TRUE(c->is_conv_layer(3));
  EXPECT_FALSE(c->is_conv_layer(2));
  EXPECT_EQ(c->num_moe_layers(), 2) << "two dense layers first; mlp_only_layers is not its key";
  EXPECT_TRUE(c->norm_topk_prob && c->router_correction && c->tie_word_embeddings);
  EXPECT_EQ(c->router_aux_loss_coef, 0.0);
  EXPECT_EQ(c->qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(c->rms_norm_eps, 1e-5);
  EXPECT_EQ(c->pad_token_id, 0);
  EXPECT_EQ(c->shared_intermediate_size, 0);
  auto other = ModelConfig::parse(lfm2_with({{"conv_L_cache", 5},
                                             {"num_dense_layers", 0},
                                             {"use_expert_bias", false},
                                             {"norm_topk_prob", false},
                                             {"routed_scaling_factor", 2.5},
                                             {"norm_eps", 1e-6},
                                             {"tie_word_embeddings", true},
                                             {"tie_embedding", false}})
                                      .dump(),
                                  "config");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->conv_width, 5);
  EXPECT_EQ(other->num_moe_layers(), 4);
  EXPECT_FALSE(other->router_correction || other->norm_topk_prob || other->tie_word_embeddings);
  EXPECT_EQ(other->routed_scaling_factor, 2.5);
  EXPECT_EQ(other->rms_norm_eps, 1e-6);
}

TEST(ModelConfig, Lfm2MoeRefusesWhatDoesNotFit) {
  const auto refuse = [](const Json& patch, const std::string& part) {
    const auto parsed = ModelConfig::parse(lfm2_with(patch).dump(), "config");
    ASSERT_FALSE(parsed.ok()) << patch.dump();
    EXPECT_EQ(parsed.status().code(), Exit::kBadData);
    EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
  };
  refuse({{"conv_bias", true}}, "\"conv_bias\"");
  refuse({{"conv_L_cache", 1}}, "\"conv_L_cache\"");
  refuse({{"conv_L_cache", 65}}, "\"conv_L_cache\"");
  refuse({{"layer_types", {"conv", "conv"}}}, "one word for each layer");
  refuse({{"layer_types", nullptr}}, "one word for each layer");
  refuse({{"layer_types", {"conv", "conv", "sliding_attention", "conv"}}}, "sliding_attention");
  refuse({{"num_dense_layers", -1}}, "\"num_dense_layers\"");
}

Json gpt_oss_with(const Json& patch) {
  Json config = tiny_config();
  config.merge_patch({{"model_type", "gpt_oss"},
                      {"num_experts", nullptr},
                      {"num_local_experts", 8},
                      {"num_hidden_layers", 4},
                      {"attention_bias", nullptr},
                      {"rms_norm_eps", nullptr},
                      {"rope_theta", nullptr},
                      {"head_dim", nullptr}});
  config.merge_patch(patch);
  return config;
}

// Defaults and keys as Transformers 5.23 has them (models/gpt_oss/configuration_gpt_oss.py).
TEST(ModelConfig, GptOss) {
  auto c = ModelConfig::parse(gpt_oss_with(Json::object()).dump(), "config");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->num_experts, 8);
  EXPECT_EQ(c->moe_intermediate_size, 24) << "of intermediate_size";
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_TRUE(c->norm_topk_prob && c->qkv_bias && c->output_bias());
  EXPECT_EQ(c->swiglu_slope, 1.702);
  EXPECT_EQ(c->swiglu_limit, 7.0);
  EXPECT_EQ(c->swiglu_offset, 1.0);
  EXPECT_EQ(c->rms_norm_eps, 1e-5);
  EXPECT_EQ(c->router_aux_loss_coef, 0.0) << "output_router_logits is not set";
  EXPECT_FALSE(c->mxfp4);
  EXPECT_EQ(c->rotation.theta, 150000.0);
  EXPECT_EQ(c->rotation.factor, 32.0);
  EXPECT_FALSE(c->rotation.whole_pairs);
  const int64_t windows[] = {c->window_of(0), c->window_of(1), c->window_of(2), c->window_of(3)};
  EXPECT_EQ(std::vector<int64_t>(windows, windows + 4), (std::vector<int64_t>{128, 0, 128, 0}));
  EXPECT_EQ(c->num_moe_layers(), 4) << "mlp_only_layers is not its key";

  auto full = ModelConfig::parse(
      gpt_oss_with(
          {{"swiglu_alpha", 1.0},
           {"swiglu_limit", 2.5},
           {"attention_bias", false},
           {"output_router_logits", true},
           {"router_aux_loss_coef", 0.9},
           {"sliding_window", 7},
           {"head_dim", 8},
           {"hidden_size", 32},
           {"intermediate_size", 64},
           {"layer_types",
            {"full_attention", "sliding_attention", "sliding_attention", "full_attention"}},
           {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
           {"quantization_config", {{"quant_method", "mxfp4"}}}})
          .dump(),
      "config");
  ASSERT_TRUE(full.ok()) << full.status().message();
  EXPECT_EQ(full->swiglu_slope, 1.0);
  EXPECT_EQ(full->swiglu_limit, 2.5);
  EXPECT_FALSE(full->qkv_bias || full->output_bias());
  EXPECT_EQ(full->router_aux_loss_coef, 0.9);
  EXPECT_EQ(full->rotation.factor, 0.0);
  EXPECT_TRUE(full->mxfp4);
  EXPECT_EQ(full->window_of(0), 0);
  EXPECT_EQ(full->window_of(1), 7);
}

TEST(ModelConfig, GptOssRefusesWhatDoesNotFit) {
  const auto refuse = [](const Json& patch, const std::string& part) {
    const auto parsed = ModelConfig::parse(gpt_oss_with(patch).dump(), "config");
    ASSERT_FALSE(parsed.ok()) << patch.dump();
    EXPECT_EQ(parsed.status().code(), Exit::kBadData);
    EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
  };
  refuse({{"quantization_config", {{"quant_method", "fp8"}}}}, "\"mxfp4\"");
  refuse({{"quantization_config", "mxfp4"}}, "\"mxfp4\"");
  refuse({{"hidden_size", 32},
          {"intermediate_size", 40},
          {"quantization_config", {{"quant_method", "mxfp4"}}}},
         "no multiple of MXFP4's 32");
  refuse({{"intermediate_size", 1}}, "a width of at least 2");
  refuse({{"swiglu_limit", 0}}, "\"swiglu_limit\"");
  refuse({{"swiglu_alpha", "steep"}}, "\"swiglu_alpha\"");
  refuse({{"layer_types",
           {"chunked_attention", "full_attention", "full_attention", "full_attention"}}},
         "\"layer_types\" holds");
}

// A config of the family without keys that tiny_config has for Qwen3-MoE.
Result<ModelConfig> parse_family(const char* family, const Json& patch) {
  Json config = tiny_config();
  config.merge_patch({{"model_type", family},
                      {"rms_norm_eps", nullptr},
                      {"rope_theta", nullptr},
                      {"norm_topk_prob", nullptr},
                      {"router_aux_loss_coef", nullptr},
                      {"num_experts", nullptr},
                      {"num_local_experts", family == std::string("dots1") ? Json() : Json(3)},
                      {"num_hidden_layers", 4}});
  config.merge_patch(patch);
  return ModelConfig::parse(config.dump(), "config");
}

void refuse_family(const char* family, const Json& patch, const std::string& part) {
  auto parsed = parse_family(family, patch);
  ASSERT_FALSE(parsed.ok()) << patch.dump();
  EXPECT_EQ(parsed.status().code(), Exit::kBadData);
  EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
}

// Defaults and keys as Transformers 5.23 has them (models/granitemoe/configuration_granitemoe.py).
TEST(ModelConfig, GraniteMoe) {
  auto plain = parse_family("granitemoe", Json::object());
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->moe_intermediate_size, 24) << "of intermediate_size";
  EXPECT_TRUE(plain->norm_topk_prob);
  EXPECT_EQ(plain->num_moe_layers(), 4) << "mlp_only_layers is not its key";
  EXPECT_EQ(plain->embedding_scale, 1.0);
  EXPECT_EQ(plain->logits_scale, 1.0);
  EXPECT_EQ(plain->rms_norm_eps, 1e-6);
  EXPECT_EQ(plain->sliding_window, 0);
  EXPECT_NEAR(plain->rotation.size, std::pow(8.0, 0.25), 1e-15) << "scores are not divided at all";
  auto scaled = parse_family("granitemoe", {{"embedding_multiplier", 12},
                                            {"attention_multiplier", 0.125},
                                            {"residual_multiplier", 0.25},
                                            {"logits_scaling", 8.0}});
  ASSERT_TRUE(scaled.ok()) << scaled.status().message();
  EXPECT_EQ(scaled->embedding_scale, 48.0);
  EXPECT_EQ(scaled->logits_scale, 0.125);
  EXPECT_NEAR(scaled->rms_norm_eps, 16e-6, 1e-20);
  EXPECT_NEAR(scaled->rotation.size, std::sqrt(std::sqrt(8.0) / 8.0), 1e-15);
  EXPECT_EQ(parse_family("granitemoe", {{"num_experts", 7}})->num_experts, 3) << "not its key";
  refuse_family("granitemoe", {{"residual_multiplier", 0.0}}, "\"residual_multiplier\"");
  refuse_family("granitemoe", {{"logits_scaling", "six"}}, "\"logits_scaling\"");
  refuse_family("granitemoe", {{"attention_multiplier", -1}}, "\"attention_multiplier\"");
  refuse_family("granitemoe", {{"embedding_multiplier", 1e9}}, "\"embedding_multiplier\"");
  refuse_family("granitemoe", {{"attention_bias", true}}, "\"attention_bias\"");
}

// Defaults and keys as Transformers 5.23 has them (models/dots1/configuration_dots1.py).
TEST(ModelConfig, Dots1) {
  const Json least = {{"n_routed_experts", 8}, {"n_shared_experts", 2}};
  auto c = parse_family("dots1", least);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(c->num_experts, 8);
  EXPECT_EQ(c->shared_intermediate_size, 2 * 12);
  EXPECT_FALSE(c->norm_topk_prob || c->shared_gate);
  EXPECT_TRUE(c->router_correction);
  EXPECT_EQ(c->routed_scaling_factor, 1.0);
  EXPECT_EQ(c->router_aux_loss_coef, 0.0);
  EXPECT_EQ(c->num_moe_layers(), 4);
  EXPECT_EQ(c->window_of(3), 0) << "62 layers have no window";
  Json late = least;
  late.merge_patch({{"max_window_layers", 2}, {"sliding_window", 9}});
  auto windows = parse_family("dots1", late);
  ASSERT_TRUE(windows.ok()) << windows.status().message();
  EXPECT_EQ(windows->window_of(1), 0);
  EXPECT_EQ(windows->window_of(2), 9);
  late["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  auto named = parse_family("dots1", late);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named->window_of(0), 9);
  EXPECT_EQ(named->window_of(2), 0);
  refuse_family("dots1", {{"n_routed_experts", 8}}, "\"n_shared_experts\" is missing");
  refuse_family("dots1", {{"attention_bias", true}}, "\"attention_bias\"");
}

// Defaults and keys as Transformers 5.23 has them (models/minimax_m2/modular_minimax_m2.py).
TEST(ModelConfig, MiniMaxM2) {
  auto c = parse_family("minimax_m2", {{"head_dim", nullptr}});
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->rotary_dim, 128);
  EXPECT_EQ(c->rotation.theta, 5e6);
  EXPECT_EQ(c->qk_norm, QkNorm::kFullWidth);
  EXPECT_EQ(c->moe_intermediate_size, 24) << "of intermediate_size";
  EXPECT_TRUE(c->norm_topk_prob && c->router_correction);
  EXPECT_EQ(c->router_aux_loss_coef, 0.0);
  EXPECT_EQ(c->num_moe_layers(), 4);
  const auto rotated = [](const Json& patch) {
    auto parsed = parse_family("minimax_m2", patch);
    CHECK(parsed.ok(), "%s", parsed.status().message().c_str());
    return parsed->rotary_dim;
  };
  EXPECT_EQ(rotated({{"rotary_dim", 4}}), 4);
  EXPECT_EQ(rotated({{"rotary_dim", 4}, {"partial_rotary_factor", 0.25}}), 2);
  EXPECT_EQ(rotated({{"rotary_dim", 4},
                     {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.75}}}}),
            6);
  EXPECT_EQ(parse_family("minimax_m2", {{"routed_scaling_factor", 2.0}})->routed_scaling_factor,
            1.0)
      << "not its key";
  refuse_family("minimax_m2", {{"rotary_dim", 3}}, "leaves 3 numbers");
  refuse_family("minimax_m2", {{"rotary_dim", 10}}, "\"rotary_dim\"");
  refuse_family("minimax_m2", {{"output_router_logits", true}}, "\"output_router_logits\"");
  refuse_family("minimax_m2", {{"router_jitter_noise", 0.1}}, "\"router_jitter_noise\"");
}

}  // namespace
}  // namespace pagoda
