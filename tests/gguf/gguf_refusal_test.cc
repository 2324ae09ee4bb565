// What llama.cpp would compute otherwise is not written, and what it computes nearly is said.
#include <gtest/gtest.h>

#include <filesystem>

#include "gguf/gguf_architecture.h"
#include "gguf/gguf_model.h"
#include "model/json.h"
#include "model/model_config.h"
#include "tests/testing/files.h"
#include "tests/testing/golden.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_config.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

TEST(GgufRefusal, WhatLlamaWouldComputeOtherwiseIsRefused) {
  TempDir dir;
  const auto refused = [&](const std::string& name, const Json& patch) {
    auto opened = HfFolder::open(patched_folder(dir, name, patch));
    CHECK(opened.ok(), "%s", opened.status().message().c_str());
    const auto described = describe_for_gguf(*opened, GgufType::kF32, "m");
    EXPECT_EQ(described.status().code(), Exit::kBadData) << name;
    return described.status().message();
  };
  EXPECT_NE(refused("glm4_moe_lite", Json::object()).find("its family is none of mixtral, olmoe"),
            std::string::npos);
  EXPECT_NE(refused("lfm2_moe", Json::object()).find("does not scale"), std::string::npos);
  const Json ungrouped = {{"n_group", 1}, {"topk_group", 1}, {"topk_method", "greedy"}};
  EXPECT_NE(refused("deepseek_v2", ungrouped).find("3 layers for one with a latent of queries"),
            std::string::npos);
  Json other = ungrouped;
  other["rms_norm_eps"] = 1e-5;
  EXPECT_NE(refused("deepseek_v3", other).find("rms_norm_eps"), std::string::npos);
  other = ungrouped;
  other["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_NE(refused("deepseek_v3", other).find("is scaled in another way"), std::string::npos);
  EXPECT_NE(refused("glm4_moe", Json::object()).find("by groups"), std::string::npos);
  EXPECT_NE(refused("gpt_oss", Json::object()).find("slope of SwiGLU"), std::string::npos);
  EXPECT_NE(refused("gpt_oss", {{"swiglu_limit", 7.0}}).find("\"beta_fast\""), std::string::npos);
  EXPECT_NE(refused("gpt_oss", {{"swiglu_limit", 7.0},
                                {"rope_parameters", {{"rope_type", "default"}}},
                                {"layer_types", {"full_attention", "sliding_attention"}}})
                .find("every other layer"),
            std::string::npos);
  EXPECT_NE(refused("olmoe", Json::object()).find("fewer heads of keys"), std::string::npos);
  EXPECT_NE(refused("dots1", Json::object()).find("fewer heads of keys"), std::string::npos);
  EXPECT_NE(refused("qwen3_moe_tiny", Json::object()).find("layers without experts"),
            std::string::npos);
  EXPECT_NE(refused("qwen3_moe_tied", Json::object()).find("norm_topk_prob"), std::string::npos);
  EXPECT_NE(refused("mixtral", {{"sliding_window", 8}}).find("slide"), std::string::npos);
}

// What a configuration is refused for; "": it is written.
std::string refusal(const char* family, const Json& changes) {
  Json config = Json::parse(tiny_with(family));
  config.merge_patch(changes);
  auto parsed = ModelConfig::parse(config.dump(), "config.json");
  CHECK(parsed.ok(), "%s", parsed.status().message().c_str());
  auto architecture = architecture_of(*parsed);
  return architecture.ok() ? "" : architecture.status().message();
}

void expect_refused(const char* family, const Json& changes, const char* why) {
  const std::string said = refusal(family, changes);
  EXPECT_NE(said.find(why), std::string::npos) << changes.dump() << ": \"" << said << "\"";
}

const Json kUngrouped = {{"n_group", 1}, {"topk_group", 1}, {"topk_method", "greedy"}};

Json with(Json changes, const Json& more) {
  changes.merge_patch(more);
  return changes;
}

// llama.cpp takes 26 and 27 layers, and 48 with Kimi's vocabulary, for models without a latent of
// queries (b11739, src/models/deepseek2.cpp).
TEST(GgufRefusal, DeepSeekWithoutALatentOfQueriesIsKnownByItsLayers) {
  EXPECT_EQ(refusal(kLatent, kUngrouped), "");
  for (const int layers : {26, 27}) {
    expect_refused(kLatent, with(kUngrouped, {{"num_hidden_layers", layers}}),
                   "layers for one without a latent of queries");
    EXPECT_EQ(refusal(kLatentV2, with(kUngrouped, {{"num_hidden_layers", layers}})), "");
  }
  EXPECT_EQ(refusal(kLatent, with(kUngrouped, {{"num_hidden_layers", 48}})), "");
  expect_refused(kLatent, with(kUngrouped, {{"num_hidden_layers", 48}, {"vocab_size", 128256}}),
                 "48 layers for one without a latent of queries");
}

TEST(GgufRefusal, DeepSeekOfAnotherKind) {
  expect_refused(kLatent, with(kUngrouped, {{"rope_interleave", false}}), "not neighbours");
  const Json yarn = {{"rope_type", "yarn"},   {"rope_theta", 10000.0},
                     {"factor", 4.0},         {"mscale", 1.0},
                     {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 64}};
  const auto scaled = [&](const Json& more) {
    return with(kUngrouped, {{"rope_parameters", with(yarn, more)}});
  };
  EXPECT_EQ(refusal(kLatent, scaled(Json::object())), "");
  const char* why = "is scaled in another way";
  expect_refused(kLatent, scaled({{"truncate", false}}), why);
  expect_refused(kLatent, scaled({{"beta_fast", 16.0}}), why);
  expect_refused(kLatent, scaled({{"beta_slow", 2.0}}), why);
  expect_refused(kLatent, scaled({{"mscale", 0.5}}), why);
  expect_refused(kLatent,
                 with(kUngrouped, {{"rope_parameters",
                                    {{"rope_type", "llama3"},
                                     {"rope_theta", 10000.0},
                                     {"factor", 4.0},
                                     {"low_freq_factor", 1.0},
                                     {"high_freq_factor", 32.0},
                                     {"original_max_position_embeddings", 64}}}}),
                 why);
}

TEST(GgufRefusal, WhatOtherFamiliesHave) {
  expect_refused(kLfm2, Json::object(), "not as long together");  // 4 heads of 16, 32 wide
  EXPECT_EQ(refusal(kLfm2, {{"head_dim", 8}}), "");
  expect_refused(kLfm2, {{"head_dim", 8}, {"use_expert_bias", false}}, "has no correction");
  expect_refused(kMixtral,
                 {{"sliding_window", nullptr},
                  {"rope_parameters",
                   {{"rope_type", "yarn"},
                    {"rope_theta", 10000.0},
                    {"factor", 4.0},
                    {"original_max_position_embeddings", 64}}}},
                 "its rotary embedding is scaled");
  const Json ungrouped = {{"n_group", 1}, {"topk_group", 1}};
  EXPECT_EQ(refusal(kGlm, ungrouped), "");
  expect_refused("{}", {{"mlp_only_layers", {2}}}, "layers without experts");
}

Json gpt_oss_yarn(const Json& more) {
  const Json yarn = {{"rope_type", "yarn"}, {"rope_theta", 10000.0},
                     {"factor", 4.0},       {"beta_fast", 32.0},
                     {"beta_slow", 1.0},    {"original_max_position_embeddings", 64}};
  return {{"swiglu_limit", 7.0}, {"rope_parameters", with(yarn, more)}};
}

TEST(GgufRefusal, GptOssOfAnotherKind) {
  EXPECT_EQ(refusal(kGptOss, gpt_oss_yarn(Json::object())), "");
  EXPECT_EQ(
      refusal(kGptOss, {{"swiglu_limit", 7.0},
                        {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}),
      "");
  expect_refused(kGptOss, gpt_oss_yarn({{"attention_factor", 1.0}}), "than by plain YaRN");
  expect_refused(kGptOss, with(gpt_oss_yarn(Json::object()), {{"attention_bias", false}}),
                 "with biases");
  const Json llama3 = {{"rope_type", "llama3"},
                       {"rope_theta", 10000.0},
                       {"factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 32.0},
                       {"original_max_position_embeddings", 64}};
  expect_refused(kGptOss, {{"swiglu_limit", 7.0}, {"rope_parameters", llama3}},
                 "than by plain YaRN");
}

// The published gpt-oss has "truncate": false, which llama.cpp does not know.
TEST(GgufRefusal, YarnThatIsNotRoundedIsSaid) {
  const auto said = [](const Json& changes) {
    Json config = Json::parse(tiny_with(kGptOss));
    config.merge_patch(changes);
    auto parsed = ModelConfig::parse(config.dump(), "config.json");
    CHECK(parsed.ok(), "%s", parsed.status().message().c_str());
    return computed_nearly(*parsed);
  };
  EXPECT_EQ(said(gpt_oss_yarn({{"truncate", true}})), "");
  EXPECT_EQ(said({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}), "");
  EXPECT_NE(said(gpt_oss_yarn({{"truncate", false}})).find("rounds where YaRN's mix begins"),
            std::string::npos);
}

}  // namespace
}  // namespace pagoda
