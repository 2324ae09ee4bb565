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
  expect_refused({{"rope_scaling", {{"type", "default"}, {"rope_type", "longrope"}}}}, "longrope");
  expect_refused({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
                 "\"full_attention\"");
  expect_refused({{"rope_parameters", {{"rope_theta", 7.0}}}}, "differ");
  expect_refused({{"num_local_experts", 4}}, "differ");
}

TEST(ModelConfig, SaysWhatAModelNeedsThatIsNotThere) {
  expect_refused({{"model_type", "qwen3_next"}}, "which needs gated DeltaNet layers");
  expect_refused({{"model_type", "qwen3_5_moe"}}, "gated DeltaNet layers, which come next; the ");
  expect_refused({{"model_type", "deepseek_v4"}}, "needs hyper-connections");
  expect_refused({{"model_type", "nemotron_h"}}, "needs Mamba layers");
  expect_refused({{"model_type", "arctic"}}, "needs a dense MLP, and experts that read what");
  expect_refused({{"model_type", "gpt2"}}, "\"model_type\" is \"gpt2\"; the families");
}

// Files whose model_type is one thing and whose other keys are another.
TEST(ModelConfig, RefusesKeysByWhichOtherFamiliesComputeOtherwise) {
  expect_refused({{"final_logit_softcapping", 30.0}}, "\"final_logit_softcapping\" is 30.0");
  expect_refused({{"index_topk", 2048}}, "sparse attention with an indexer");
  expect_refused({{"full_attention_interval", 4}}, "\"full_attention_interval\" is 4");
  expect_refused({{"mamba_d_state", 128}}, "no Mamba layers");
  expect_refused({{"hc_mult", 4}}, "no hyper-connections");
  expect_refused({{"attn_output_gate", true}}, "\"attn_output_gate\" is true");
  expect_refused({{"kv_lora_rank", 512}}, "no latent attention");
  expect_refused({{"residual_multiplier", 0.22}}, "\"residual_multiplier\" is 0.22");
  expect_refused({{"scoring_func", "sigmoid"}}, "\"scoring_func\" is \"sigmoid\"");
  for (const Json& same : std::vector<Json>{{{"final_logit_softcapping", nullptr}},
                                            {{"attn_output_gate", false}},
                                            {{"shared_intermediate_size", 0}},
                                            {{"residual_multiplier", 1.0}},
                                            {{"hc_mult", 1}},
                                            {{"scoring_func", "softmax"}}}) {
    EXPECT_TRUE(parse_with(same).ok()) << same.dump();
  }
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
}

TEST(ModelConfig, Llama3Rope) {
  const Json whole = {{"rope_type", "llama3"},
                      {"factor", 32.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};
  auto c = parse_with({{"rope_parameters", whole}});
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_TRUE(c->rotation.by_turns);
  EXPECT_EQ(c->rotation.factor, 32.0);
  EXPECT_EQ(c->rotation.slow_turns, 1.0);
  EXPECT_EQ(c->rotation.fast_turns, 4.0);
  EXPECT_EQ(c->rotation.original_positions, 8192.0);
  EXPECT_EQ(c->rotation.size, 1.0);
  for (const auto& [key, value] : whole.items()) {
    if (key == "rope_type") continue;
    Json less = whole;
    less.erase(key);
    expect_refused({{"rope_parameters", less}}, "\"" + key + "\" is missing");
  }
  Json turned = whole;
  turned["low_freq_factor"] = 4.0;
  expect_refused({{"rope_parameters", turned}}, "must be below");
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

}  // namespace
}  // namespace pagoda
