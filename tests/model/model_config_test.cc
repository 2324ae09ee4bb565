#include "model/model_config.h"

#include <gtest/gtest.h>

#include <tuple>

#include "model/json.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

// The tiny config with some keys replaced; a null patch removes the key.
Result<ModelConfig> parse_with(const Json& patch) {
  Json config = tiny_config();
  config.merge_patch(patch);
  return ModelConfig::parse(config.dump(), "DIR/config.json");
}

// Everything but the text it came from.
auto fields(const ModelConfig& c) {
  return std::tie(c.family, c.vocab_size, c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads,
                  c.head_dim, c.intermediate_size, c.moe_intermediate_size,
                  c.shared_intermediate_size, c.shared_gate, c.num_experts, c.experts_per_token,
                  c.norm_topk_prob, c.router_correction, c.expert_groups, c.expert_groups_chosen,
                  c.routed_scaling_factor, c.qk_norm, c.first_dense_layers, c.conv_layers,
                  c.conv_width, c.rotary_dim,
                  c.next_token_layers, c.qkv_bias, c.decoder_sparse_step, c.mlp_only_layers,
                  c.rms_norm_eps, c.rotation.theta, c.rotation.factor, c.rotation.size,
                  c.tie_word_embeddings, c.router_aux_loss_coef, c.initializer_range,
                  c.max_position_embeddings, c.sliding_window, c.sliding_layers, c.pad_token_id);
}

void expect_refused(const Json& patch, const std::string& part) {
  const auto result = parse_with(patch);
  ASSERT_FALSE(result.ok()) << patch.dump();
  EXPECT_EQ(result.status().code(), Exit::kBadData);
  const std::string message = result.status().message();
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find("DIR/config.json: "), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(ModelConfig, ReadsEveryField) {
  auto result = parse_with(Json::object());
  ASSERT_TRUE(result.ok()) << result.status().message();
  const ModelConfig& c = result.value();
  EXPECT_EQ(c.vocab_size, 257);
  EXPECT_EQ(c.hidden_size, 16);
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.num_heads, 4);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.intermediate_size, 24);
  EXPECT_EQ(c.moe_intermediate_size, 12);
  EXPECT_EQ(c.num_experts, 3);
  EXPECT_EQ(c.experts_per_token, 2);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.mlp_only_layers, std::vector<int64_t>{0});
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rotation.theta, 1e6);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.router_aux_loss_coef, 0.01);
  EXPECT_EQ(c.initializer_range, 0.02);
  EXPECT_EQ(c.max_position_embeddings, 128);
  EXPECT_EQ(c.json, tiny_config().dump());
}

TEST(ModelConfig, ReadsTheSpellingOfTransformers5) {
  auto result = parse_with({{"rope_theta", nullptr},
                            {"torch_dtype", nullptr},
                            {"num_experts", nullptr},
                            {"num_local_experts", 3},
                            {"dtype", "bfloat16"},
                            {"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->rotation.theta, 5e5);
  EXPECT_EQ(result->num_experts, 3);
}

TEST(ModelConfig, DefaultsAreThoseOfTransformers) {
  auto result = parse_with({{"rope_theta", nullptr},
                            {"mlp_only_layers", nullptr},
                            {"head_dim", nullptr},
                            {"norm_topk_prob", nullptr},
                            {"router_aux_loss_coef", nullptr}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->rotation.theta, 10000.0);
  EXPECT_EQ(result->head_dim, 4);
  EXPECT_EQ(result->router_aux_loss_coef, 0.001);
  EXPECT_FALSE(result->norm_topk_prob);
  EXPECT_EQ(result->num_moe_layers(), 2);
}

TEST(ModelConfig, MoeLayersAreChosenAsInTransformers) {
  auto result = parse_with(
      {{"num_hidden_layers", 8}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 4}}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  std::vector<int64_t> moe;
  for (int64_t l = 0; l < 8; ++l) {
    if (result->is_moe_layer(l)) moe.push_back(l);
  }
  EXPECT_EQ(moe, (std::vector<int64_t>{1, 5, 7}));
  EXPECT_EQ(result->num_moe_layers(), 3);
}

TEST(ModelConfig, RefusesWhatItDoesNotImplementByName) {
  expect_refused({{"model_type", "deepseek_v4"}}, "mixtral, olmoe, qwen2_moe, qwen3_moe");
  expect_refused({{"model_type", 3}}, "\"model_type\" is 3");
  expect_refused({{"model_type", "llama"}}, "pagoda upcycle");
  expect_refused({{"model_type", nullptr}}, "\"model_type\" is missing");
  expect_refused({{"hidden_act", "gelu"}}, "\"hidden_act\"");
  expect_refused({{"attention_bias", true}}, "\"attention_bias\"");
  const auto llama = ModelConfig::parse(R"({"model_type": "llama", "mlp_bias": true})",
                                        "DIR/config.json", ModelKind::kDense);
  EXPECT_NE(llama.status().message().find("\"mlp_bias\" is true"), std::string::npos);
  expect_refused({{"is_causal", false}}, "\"is_causal\"");
  expect_refused({{"per_layer_config", {{"0", {{"num_experts_per_tok", 1}}}}}},
                 "\"per_layer_config\"");
  expect_refused({{"hidden_act", "SiLU"}}, "\"hidden_act\"");
  expect_refused({{"model_type", "olmoe"}, {"clip_qkv", 8.0}}, "\"clip_qkv\"");
  expect_refused({{"model_type", "olmoe"}}, "\"head_dim\"");
  expect_refused({{"model_type", "mixtral"}, {"router_jitter_noise", 0.01}}, "noise\"");
  expect_refused({{"model_type", "qwen2_moe"}}, "\"shared_expert_intermediate_size\"");
  expect_refused({{"attention_dropout", 0.1}}, "\"attention_dropout\"");
  expect_refused({{"quantization_config", {{"bits", 4}}}}, "\"quantization_config\"");
  expect_refused({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}},
                 "\"rope_scaling\"");
  expect_refused({{"rope_parameters", {{"rope_type", "linear"}}}}, "\"rope_parameters\"");
  expect_refused({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}, "linear");
  expect_refused({{"rope_scaling", {{"type", "default"}, {"rope_type", "llama3"}}}}, "llama3");
  expect_refused({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
                 "\"full_attention\"");
  expect_refused({{"rope_parameters", {{"rope_theta", 7.0}}}}, "differ");
  expect_refused({{"num_local_experts", 4}}, "differ");
}

// Transformers 5.23 computes the same, to the bit, with and without each of these (compared with
// models of random weights in training mode).
TEST(ModelConfig, AcceptsWhatTransformersLeavesWithoutEffect) {
  const Json of_mixtral = {{"model_type", "mixtral"}}, of_qwen3 = {{"model_type", "qwen3_moe"}};
  const Json of_qwen2 = {{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", 28}};
  const Json of_olmoe = {{"model_type", "olmoe"}, {"head_dim", nullptr}};
  const auto expect_same = [](const Json& family, const Json& patch) {
    Json both = family;
    both.update(patch);
    auto with = parse_with(both), without = parse_with(family);
    ASSERT_TRUE(without.ok()) << without.status().message();
    ASSERT_TRUE(with.ok()) << family.dump() << ": " << with.status().message();
    EXPECT_TRUE(fields(with.value()) == fields(without.value())) << family.dump() << patch.dump();
  };
  for (const Json& family : {of_mixtral, of_olmoe, of_qwen2, of_qwen3}) {
    for (const Json& patch : std::vector<Json>{
             {{"hidden_act", "swish"}},
             {{"mlp_bias", true}},
             {{"attention_dropout", 0}},
             {{"partial_rotary_factor", 1.0}},
             {{"rope_scaling", Json::object()}},
             {{"rope_scaling", {{"type", "default"}, {"factor", 4.0}}}},
             {{"rope_scaling", {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}}}},
             {{"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {2, 1, 1}}}}},
             {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 1.0}}}},
             {{"rope_scaling", {{"type", "linear"}, {"factor", 1}}}},
             {{"rope_parameters", {{"rope_theta", 1000000}}}},
             {{"layer_types", {"full_attention", "full_attention"}}},
             {{"layer_types", {"attention", "attention"}}},
             {{"is_causal", true}},
             {{"per_layer_config", Json::object()}},
             {{"mlp_only_layers", {0, -1, 2, 18446744073709551615u}}}}) {
      expect_same(family, patch);
    }
  }
  for (const Json& family : {of_mixtral, of_olmoe, of_qwen3}) {
    for (const char* other : {"sliding_attention", "linear_attention"}) {
      expect_same(family, {{"layer_types", {"full_attention", other}}});
    }
  }
  for (const Json& family : {of_mixtral, of_qwen2}) expect_same(family, {{"attention_bias", true}});
  for (const Json& family : {of_mixtral, of_qwen2, of_qwen3}) {
    expect_same(family, {{"clip_qkv", 8.0}});
  }
  for (const Json& family : {of_olmoe, of_qwen2, of_qwen3}) {
    expect_same(family, {{"router_jitter_noise", 0.01}});
  }
  expect_same(of_qwen2, {{"num_local_experts", 8}});
  auto sparse = parse_with({{"decoder_sparse_step", 5000}});
  ASSERT_TRUE(sparse.ok()) << sparse.status().message();
  EXPECT_EQ(sparse->num_moe_layers(), 0);
}

// Negative numbers count from the end, as torch.nn.Embedding has it; one beyond is an error there.
TEST(ModelConfig, PadTokens) {
  const auto pad = [](const Json& patch) {
    Json config = tiny_config();
    config.update(patch);
    auto result = ModelConfig::parse(config.dump(), "config");
    CHECK(result.ok(), "%s", result.status().message().c_str());
    return result->pad_token_id;
  };
  EXPECT_EQ(pad(Json::object()), -1);
  EXPECT_EQ(pad({{"pad_token_id", nullptr}}), -1);
  EXPECT_EQ(pad({{"pad_token_id", 0}}), 0);
  EXPECT_EQ(pad({{"pad_token_id", 256}}), 256);
  EXPECT_EQ(pad({{"pad_token_id", -1}}), 256);
  EXPECT_EQ(pad({{"pad_token_id", -257}}), 0);
  EXPECT_EQ(pad({{"model_type", "mixtral"}}), -1);
  EXPECT_EQ(pad({{"model_type", "olmoe"}, {"head_dim", 4}}), 1);
  EXPECT_EQ(pad({{"model_type", "olmoe"}, {"head_dim", 4}, {"pad_token_id", nullptr}}), -1);
  for (const Json& bad : {Json(257), Json(-258), Json(7.0), Json("7"), Json({7}), Json(true)}) {
    expect_refused({{"pad_token_id", bad}}, "\"pad_token_id\"");
  }
}

TEST(ModelConfig, DefaultsAreThoseOfTheFamily) {
  const Json silent = {{"rope_theta", nullptr},   {"rms_norm_eps", nullptr},
                       {"head_dim", nullptr},     {"router_aux_loss_coef", nullptr},
                       {"norm_topk_prob", nullptr}, {"intermediate_size", 20},
                       {"shared_expert_intermediate_size", 28}};
  const auto of = [&](const char* family) {
    Json patch = silent;
    patch["model_type"] = family;
    auto result = parse_with(patch);
    CHECK(result.ok(), "%s", result.status().message().c_str());
    return result.take();
  };
  const ModelConfig mixtral = of("mixtral"), olmoe = of("olmoe"), qwen2 = of("qwen2_moe");
  EXPECT_EQ(mixtral.rotation.theta, 1e6);
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5);
  EXPECT_TRUE(mixtral.norm_topk_prob);
  EXPECT_EQ(mixtral.moe_intermediate_size, 20);
  EXPECT_EQ(mixtral.num_moe_layers(), 2) << "mlp_only_layers is not Mixtral's";
  EXPECT_EQ(olmoe.rotation.theta, 1e4);
  EXPECT_EQ(olmoe.rms_norm_eps, 1e-5);
  EXPECT_EQ(olmoe.router_aux_loss_coef, 0.01);
  EXPECT_FALSE(olmoe.norm_topk_prob);
  EXPECT_EQ(olmoe.moe_intermediate_size, 20);
  EXPECT_EQ(qwen2.rms_norm_eps, 1e-6);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_EQ(qwen2.moe_intermediate_size, 12);
  EXPECT_EQ(qwen2.shared_intermediate_size, 28);
  EXPECT_EQ(qwen2.num_moe_layers(), 1);
  EXPECT_EQ(mixtral.shared_intermediate_size + olmoe.shared_intermediate_size, 0);
}

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
      glm_with({{"n_group", 4}, {"topk_group", 2}, {"routed_scaling_factor", 2.5},
                {"n_shared_experts", 2}, {"first_k_dense_replace", 0}, {"attention_bias", true},
                {"use_qk_norm", true}, {"norm_topk_prob", false}, {"num_mtp_layers", 3},
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
  auto other = ModelConfig::parse(
      lfm2_with({{"conv_L_cache", 5}, {"num_dense_layers", 0}, {"use_expert_bias", false},
                 {"norm_topk_prob", false}, {"routed_scaling_factor", 2.5}, {"norm_eps", 1e-6},
                 {"tie_word_embeddings", true}, {"tie_embedding", false}})
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

// The numbers are those of Transformers 5.23, for a config.json without the keys; null is another
// matter there.
TEST(ModelConfig, KeysThatAreMissing) {
  struct Expected {
    const char* family;
    int64_t num_kv_heads, window, positions;
  };
  for (const Expected& want : {Expected{"mixtral", 8, 0, 131072}, {"olmoe", 32, 0, 4096},
                               {"qwen2_moe", 16, 4096, 32768}, {"qwen3_moe", 4, 4096, 32768},
                               {"llama", 32, 0, 2048}, {"mistral", 8, 4096, 131072}}) {
    Json config = tiny_config();
    config.update({{"model_type", want.family}, {"num_attention_heads", 32}, {"hidden_size", 256},
                   {"use_sliding_window", true}, {"shared_expert_intermediate_size", 28}});
    for (const char* key : {"num_key_value_heads", "sliding_window", "max_position_embeddings"}) {
      config.erase(key);
    }
    const ModelKind kind = find_family(want.family)->dense ? ModelKind::kDense : ModelKind::kMoe;
    const auto missing = ModelConfig::parse(config.dump(), "config", kind);
    ASSERT_TRUE(missing.ok()) << missing.status().message();
    EXPECT_EQ(missing.value().num_kv_heads, want.num_kv_heads) << want.family;
    EXPECT_EQ(missing.value().sliding_window, want.window) << want.family;
    EXPECT_EQ(missing.value().max_position_embeddings, want.positions) << want.family;
    config["num_key_value_heads"] = config["sliding_window"] = nullptr;
    const auto null = ModelConfig::parse(config.dump(), "config", kind);
    ASSERT_TRUE(null.ok()) << null.status().message();
    EXPECT_EQ(null.value().num_kv_heads, 32) << want.family;
    EXPECT_EQ(null.value().sliding_window, 0) << want.family;
  }
}

// A family's own rule decides whether a window is in force, and in which layers.
TEST(ModelConfig, WindowsOfFamilies) {
  const auto window = [](const Json& patch) {
    auto result = parse_with(patch);
    CHECK(result.ok(), "%s", result.status().message().c_str());
    return result->sliding_window;
  };
  EXPECT_EQ(window({{"model_type", "mixtral"}, {"sliding_window", 64}}), 64);
  EXPECT_EQ(window({{"model_type", "mixtral"}}), 0);
  EXPECT_EQ(window({{"sliding_window", 64}}), 0);
  EXPECT_EQ(window({{"sliding_window", 64}, {"use_sliding_window", true}}), 64);
  EXPECT_EQ(window({{"use_sliding_window", true}}), 4096);
  const auto of_qwen2 = [&](Json patch) {
    patch.update({{"model_type", "qwen2_moe"},
                  {"shared_expert_intermediate_size", 28},
                  {"use_sliding_window", true}});
    return window(patch);
  };
  EXPECT_EQ(of_qwen2({}), 4096);
  EXPECT_EQ(of_qwen2({{"max_window_layers", 1}}), 4096);
  EXPECT_EQ(of_qwen2({{"max_window_layers", 0}}), 0) << "all layers see everything";
  EXPECT_EQ(of_qwen2({{"layer_types", {"full_attention", "full_attention"}}}), 0);
  EXPECT_EQ(of_qwen2({{"layer_types", {"full_attention", "sliding_attention"}}}), 4096);
  Json qwen2 = {{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", 28}};
  for (const Json& types : std::vector<Json>{{"full_attention", "sliding_attention"},
                                             {"full_attention", "linear_attention"},
                                             {"full_attention"}}) {
    qwen2["layer_types"] = types;
    expect_refused(qwen2, "\"layer_types\"");
  }
  const auto of_layers = [](const Json& patch) {
    auto result = parse_with(patch);
    CHECK(result.ok(), "%s", result.status().message().c_str());
    std::vector<int64_t> windows;
    for (int64_t l = 0; l < result->num_layers; ++l) windows.push_back(result->window_of(l));
    return windows;
  };
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(of_layers({{"model_type", "mixtral"}, {"sliding_window", 64}}), (Windows{64, 64}));
  EXPECT_EQ(of_layers({{"model_type", "mixtral"}}), (Windows{0, 0}));
  Json patch = {{"model_type", "qwen2_moe"},
                {"shared_expert_intermediate_size", 28},
                {"use_sliding_window", true},
                {"sliding_window", 9},
                {"num_hidden_layers", 5}};
  EXPECT_EQ(of_layers(patch), (Windows{9, 0, 9, 0, 9})) << "Transformers has every other one";
  patch["max_window_layers"] = 3;
  EXPECT_EQ(of_layers(patch), (Windows{9, 0, 9, 0, 0}));
  patch["num_hidden_layers"] = 2;
  patch["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(of_layers(patch), (Windows{0, 9}));
}

// Numbers are those of Transformers 5.23 for the same files (_compute_yarn_parameters).
TEST(ModelConfig, Yarn) {
  const auto rotation = [](const Json& rope) {
    auto c = parse_with({{"rope_parameters", rope}});
    CHECK(c.ok(), "%s", c.status().message().c_str());
    return c->rotation;
  };
  const Rotation oss = rotation({{"rope_type", "yarn"},
                                 {"factor", 32.0},
                                 {"beta_fast", 24.0},
                                 {"beta_slow", 2.0},
                                 {"truncate", false},
                                 {"original_max_position_embeddings", 4096}});
  EXPECT_EQ(oss.factor, 32.0);
  EXPECT_EQ(oss.original_positions, 4096.0);
  EXPECT_EQ(oss.fast_turns, 24.0);
  EXPECT_EQ(oss.slow_turns, 2.0);
  EXPECT_FALSE(oss.whole_pairs);
  EXPECT_NEAR(oss.size, 1.3465735902799727, 1e-15);
  const Rotation rest = rotation({{"rope_type", "yarn"}, {"original_max_position_embeddings", 32}});
  EXPECT_EQ(rest.factor, 4.0) << "128 positions";
  EXPECT_TRUE(rest.whole_pairs);
  EXPECT_EQ(rest.fast_turns, 32.0);
  EXPECT_EQ(rest.slow_turns, 1.0);
  EXPECT_EQ(rotation({{"rope_type", "yarn"}, {"factor", 8}, {"attention_factor", 1.5}}).size, 1.5);
  EXPECT_EQ(rotation({{"rope_type", "yarn"}, {"factor", 8}, {"mscale", 1}, {"mscale_all_dim", 1}})
                .size,
            1.0);
  expect_refused({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", -1}}}},
                 "\"rope_parameters\": \"factor\"");
  expect_refused({{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}}}, "\"llama3\"");
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
      gpt_oss_with({{"swiglu_alpha", 1.0}, {"swiglu_limit", 2.5}, {"attention_bias", false},
                    {"output_router_logits", true}, {"router_aux_loss_coef", 0.9},
                    {"sliding_window", 7}, {"head_dim", 8}, {"hidden_size", 32},
                    {"intermediate_size", 64},
                    {"layer_types", {"full_attention", "sliding_attention", "sliding_attention",
                                     "full_attention"}},
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
  refuse({{"hidden_size", 32}, {"intermediate_size", 40},
          {"quantization_config", {{"quant_method", "mxfp4"}}}},
         "no multiple of MXFP4's 32");
  refuse({{"intermediate_size", 1}}, "a width of at least 2");
  refuse({{"swiglu_limit", 0}}, "\"swiglu_limit\"");
  refuse({{"swiglu_alpha", "steep"}}, "\"swiglu_alpha\"");
  refuse({{"layer_types", {"chunked_attention", "full_attention", "full_attention",
                           "full_attention"}}},
         "\"layer_types\" holds");
}

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
  const ModelConfig v2 = of("deepseek_v2", {{"norm_topk_prob", true}, {"n_group", 4},
                                            {"topk_group", 2}});
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
  const ModelConfig grouped =
      of("deepseek_v2", {{"topk_method", "group_limited_greedy"}, {"n_group", 16},
                         {"topk_group", 3}});
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
  const ModelConfig yarn =
      of("deepseek_v3", {{"rope_theta", nullptr},
                         {"rope_scaling", {{"type", "yarn"}, {"factor", 8}, {"mscale", 1},
                                           {"mscale_all_dim", 0.5}}}});
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

TEST(ModelConfig, RefusesSizesThatCannotBe) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok"}) {
    const std::string name = strf("\"%s\"", key);
    expect_refused({{key, 0}}, name);
    expect_refused({{key, -5}}, name);
    expect_refused({{key, 2.5}}, name);
    expect_refused({{key, "16"}}, name);
    expect_refused({{key, 18446744073709551615u}}, name);
    expect_refused({{key, nullptr}}, name);
  }
  expect_refused({{"num_experts", 4097}}, "\"num_experts\"");
  expect_refused({{"num_hidden_layers", 1025}}, "\"num_hidden_layers\"");
  expect_refused({{"vocab_size", (1 << 22) + 1}}, "\"vocab_size\"");
  expect_refused({{"num_experts_per_tok", 4}}, "\"num_experts_per_tok\"");
  expect_refused({{"num_key_value_heads", 3}}, "\"num_key_value_heads\"");
  expect_refused({{"head_dim", 7}}, "\"head_dim\"");
  expect_refused({{"mlp_only_layers", {1.0}}}, "\"mlp_only_layers\"");
  expect_refused({{"mlp_only_layers", 1}}, "\"mlp_only_layers\"");
  expect_refused({{"decoder_sparse_step", 0}}, "\"decoder_sparse_step\"");
  expect_refused({{"rms_norm_eps", "small"}}, "\"rms_norm_eps\"");
  expect_refused({{"tie_word_embeddings", 1}}, "\"tie_word_embeddings\"");
  expect_refused({{"hidden_size", 1 << 24},
                  {"moe_intermediate_size", 1 << 24},
                  {"num_experts", 4096},
                  {"num_hidden_layers", 80}},
                 "parameters");
  expect_refused({{"num_experts", 4096}, {"num_hidden_layers", 1024}}, "tensors");
}

TEST(ModelConfig, RefusesWhatIsNotAnObject) {
  for (const char* text : {"", "[]", "3", "{\"a\":1", "{}x", "\xEF\xBB\xBF{}"}) {
    const auto result = ModelConfig::parse(text, "f");
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), Exit::kBadData);
  }
}

TEST(Json, RefusesDuplicatesDepthNulAndBadText) {
  const auto message = [](std::string_view text, const JsonLimits& limits = {}) {
    const auto result = parse_json(text, "f", limits);
    return result.ok() ? std::string("accepted") : result.status().message();
  };
  EXPECT_EQ(message(R"({"a":1,"b":{"a":[1,{"c":null}]}})"), "accepted");
  EXPECT_EQ(message(R"({"a":1,"b":2,"a":3})"), "f: byte 16: duplicate key \"a\"");
  EXPECT_NE(message(std::string("{}\0{}", 5)).find("byte 2: invalid JSON: NUL"), std::string::npos);
  EXPECT_NE(message("[1,2").find("f: byte 4: invalid JSON"), std::string::npos);
  EXPECT_NE(message("\"\xC3(\"").find("invalid"), std::string::npos);
  EXPECT_NE(message(R"("\ud800")").find("invalid"), std::string::npos);
  EXPECT_NE(message("[1e999]").find("invalid"), std::string::npos);
  EXPECT_EQ(message(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(message(std::string(65, '[') + std::string(65, ']')),
            "f: byte 65: nested deeper than 64");
  EXPECT_NE(message(std::string(500000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_EQ(message("[1,2,3]", {.max_values = 4}), "accepted");
  EXPECT_NE(message("[1,2,3,4]", {.max_values = 4}).find("more than 4 values"), std::string::npos);
  EXPECT_EQ(message("\"abcd\"", {.max_string_bytes = 4}), "accepted");
  EXPECT_NE(message("\"abcde\"", {.max_string_bytes = 4}).find("longer than 4"), std::string::npos);
  EXPECT_NE(message("[1]", {.max_bytes = 2}).find("limit of 2"), std::string::npos);
}

TEST(Json, KeepsValues) {
  const std::string text = R"({"a":[1,-2,3.5,true,null,"x\u00e9"],"b":{},"c":[[],[[]]]})";
  auto result = parse_json(text, "f");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value(), Json::parse(text));
}

}  // namespace
}  // namespace pagoda
