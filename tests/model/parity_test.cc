// Every family, with experts in both layouts, against Transformers (tests/golden/README.md):
// logits, losses, every gradient, fifty steps of AdamW, and bf16's distance from fp32.
#include <gtest/gtest.h>

#include <filesystem>

#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/golden.h"
#include "tests/testing/session_model.h"

namespace pagoda {
namespace {

// What a model is expected to compute does not depend on how its files hold the experts.
std::string expected_of(const std::string& name) {
  std::string model = name;
  for (const std::string suffix : {"_fused", "_mxfp4", "_fp8"}) {
    if (name.ends_with(suffix)) model.resize(name.size() - suffix.size());
  }
  return golden(model) + "/expected.safetensors";
}

void append(std::vector<int32_t>& all, const std::vector<int32_t>& some) {
  all.insert(all.end(), some.begin(), some.end());
}

StepBatch batch_of(const Golden& expected) {
  StepBatch batch;
  for (int b = 0; b < 2; ++b) {
    const std::string prefix = strf("microbatch.%d.", b);
    append(batch.tokens, expected.ints(prefix + "input_ids"));
    append(batch.positions, expected.ints(prefix + "position_ids"));
    append(batch.targets, expected.ints(prefix + "targets"));
    batch.document_start.push_back(expected.ints(prefix + "document_start"));
  }
  for (int32_t target : batch.targets) {
    batch.weights.push_back(target >= 0 ? 1.0f : 0.0f);
    batch.total_weight += target >= 0;
  }
  return batch;
}

// Loss as the reference adds it up.
double total_loss(const StepResult& result, const ModelConfig& config) {
  return result.loss + config.router_aux_loss_coef * result.aux_loss;
}

class Fp32Parity : public testing::TestWithParam<const char*> {};

TEST_P(Fp32Parity, LogitsLossesAndEveryGradient) {
  const Golden expected(expected_of(GetParam()));
  const StepBatch batch = batch_of(expected);
  SessionModel model(golden(GetParam()), DType::kF32,
                     static_cast<int64_t>(batch.tokens.size()) / 2);
  for (int b = 0; b < 2; ++b) {
    const double off = relative_l2(model.logits(batch, b),
                                   expected.floats(strf("microbatch.%d.logits", b)));
    EXPECT_LE(off, 1e-5) << "logits of microbatch " << b;
  }
  auto result = model.runner().train(batch, 0.0);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const double aux = (expected.number("microbatch.0.aux_loss") +
                      expected.number("microbatch.1.aux_loss")) / 2.0;
  EXPECT_NEAR(result->aux_loss / aux, 1.0, 1e-5);
  EXPECT_NEAR(total_loss(*result, model.session().config()) / expected.number("loss"), 1.0, 1e-5);
  double worst = 0;
  std::string worst_name;
  for (size_t t = 0; t < model.table().tensors.size(); ++t) {
    const std::string& name = model.table().tensors[t].name;
    if (model.table().tensors[t].is_correction()) {
      for (const float g : model.gradient(static_cast<int64_t>(t))) ASSERT_EQ(g, 0.0f) << name;
      continue;
    }
    const double off = relative_l2(model.gradient(static_cast<int64_t>(t)),
                                   expected.floats("grad." + name));
    EXPECT_LE(off, 1e-4) << name;
    if (off > worst) {
      worst = off;
      worst_name = name;
    }
  }
  std::printf("worst gradient: %.2e, %s\n", worst, worst_name.c_str());
}

INSTANTIATE_TEST_SUITE_P(Models, Fp32Parity,
                         testing::Values("qwen3_moe_tiny", "qwen3_moe_tied", "qwen3_moe_bf16",
                                         "qwen3_moe_bf16_fused", "mixtral", "mixtral_fused",
                                         "olmoe", "olmoe_fused", "qwen2_moe", "qwen2_moe_fused",
                                         "glm4_moe", "glm4_moe_fused", "lfm2_moe", "lfm2_moe_fused",
                                         "gpt_oss", "gpt_oss_mxfp4", "deepseek_v2",
                                         "deepseek_v2_fused", "deepseek_v3", "deepseek_v3_fused",
                                         "deepseek_v3_fp8", "glm4_moe_lite", "glm4_moe_lite_fused",
                                         "granitemoe", "granitemoe_fused", "dots1", "dots1_fused",
                                         "minimax_m2", "minimax_m2_fused"),
                         [](const auto& info) { return std::string(info.param); });

// With optim.balance_loss and optim.z_loss, whatever config.json says.
TEST(RouterLosses, LossAndGradientsOfRouters) {
  const std::string folder = golden("qwen3_moe_tiny");
  const Golden expected(folder + "/router_losses.safetensors");
  const StepBatch batch = batch_of(Golden(expected_of("qwen3_moe_tiny")));
  const RouterLosses losses{expected.number("balance"), expected.number("z")};
  SessionModel model(folder, DType::kF32, static_cast<int64_t>(batch.tokens.size()) / 2, 2, {},
                     losses);
  auto result = model.runner().train(batch, 0.0);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_NEAR(result->z_loss / expected.number("z_loss"), 1.0, 1e-5);
  const double total =
      result->loss + *losses.balance * result->aux_loss + losses.z * result->z_loss;
  EXPECT_NEAR(total / expected.number("loss"), 1.0, 1e-5);
  int routers = 0;
  for (size_t t = 0; t < model.table().tensors.size(); ++t) {
    const std::string name = "grad." + model.table().tensors[t].name;
    if (!expected.has(name)) continue;
    EXPECT_LE(relative_l2(model.gradient(static_cast<int64_t>(t)), expected.floats(name)), 1e-4)
        << name;
    routers += model.table().tensors[t].role == TensorRole::kRouter;
  }
  EXPECT_EQ(routers, 2);
}

TEST(RouterLosses, SigmoidsHaveNoZLoss) {
  auto folder = HfFolder::open(golden("glm4_moe"));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const Status refused = check_losses(folder->config(), {std::nullopt, 0.001});
  EXPECT_EQ(refused.code(), Exit::kUsage);
  EXPECT_NE(refused.message().find("optim.z_loss"), std::string::npos) << refused.message();
  EXPECT_TRUE(check_losses(folder->config(), {0.1, 0.0}).ok());
}

// What config.json says of the pad token; empty: nothing, so that the family's own counts.
struct PadToken {
  const char* model;
  const char* value;
};

class PadTokenParity : public testing::TestWithParam<PadToken> {};

// Look-ups of the pad token give its row of the embedding no gradient; a tied head still does.
TEST_P(PadTokenParity, GradientOfTheEmbedding) {
  const auto [name, value] = GetParam();
  const Golden expected(expected_of(name)), padded(golden(name) + "/pad_token.safetensors");
  TempDir dir;
  const std::string folder = dir.file("model");
  std::filesystem::copy(golden(name), folder);
  Json config = Json::parse(get_file(folder + "/config.json"));
  config.erase("pad_token_id");
  if (*value != 0) config["pad_token_id"] = Json::parse(value);
  put_file(folder + "/config.json", config.dump());
  const StepBatch batch = batch_of(expected);
  SessionModel model(folder, DType::kF32, static_cast<int64_t>(batch.tokens.size()) / 2);
  EXPECT_EQ(model.session().config().pad_token_id, padded.ints("row").at(0));
  ASSERT_TRUE(model.runner().train(batch, 0.0).ok());
  for (size_t t = 0; t < model.table().tensors.size(); ++t) {
    const TensorSpec& tensor = model.table().tensors[t];
    if (tensor.is_correction()) continue;
    const bool embedding = tensor.role == TensorRole::kEmbedding;
    EXPECT_LE(relative_l2(model.gradient(static_cast<int64_t>(t)),
                          (embedding ? padded : expected).floats("grad." + tensor.name)),
              1e-4)
        << tensor.name;
    if (!embedding) continue;
    const auto row = padded.ints("row").at(0) * tensor.shape[1];
    const auto got = model.gradient(static_cast<int64_t>(t));
    const auto want = padded.floats("grad." + tensor.name);
    for (int64_t i = row; i < row + tensor.shape[1]; ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PadTokenParity,
                         testing::Values(PadToken{"qwen3_moe_tied", "7"}, PadToken{"mixtral", "5"},
                                         PadToken{"olmoe", ""}, PadToken{"qwen2_moe", "-3"},
                                         PadToken{"lfm2_moe", ""}),
                         [](const auto& info) { return std::string(info.param.model); });

// A correction's parts still add up to what the file has, to the last bit.
void expect_kept(SessionModel& model, const std::string& folder, int64_t t) {
  const TensorSpec& tensor = model.table().tensors[static_cast<size_t>(t)];
  const auto parts = model.tensor(t, model.session().pages().weights(tensor.record));
  const auto want = Golden(golden(folder) + "/model.safetensors").floats(tensor.name);
  ASSERT_EQ(parts.size(), 3 * want.size());
  for (size_t e = 0; e < want.size(); ++e) {
    EXPECT_EQ(parts[e] + parts[want.size() + e] + parts[2 * want.size() + e], want[e]) << e;
  }
}

struct Curve {
  const char* model;
  const char* expected;
  int64_t row;  // tokens
  std::vector<std::string> freeze = {};
};

// The reference's requires_grad = False.
const std::vector<std::string> kFrozenRouter = {"router"};
const std::vector<std::string> kFrozenParts = {"embed", "*.k_proj.weight", "*.down_proj.weight",
                                               "model.layers.0.mlp.experts.*"};

// No bit of it has changed.
void expect_frozen(SessionModel& model, const std::string& folder, int64_t t) {
  const TensorSpec& tensor = model.table().tensors[static_cast<size_t>(t)];
  EXPECT_EQ(model.tensor(t, model.session().pages().weights(tensor.record)),
            Golden(golden(folder) + "/model.safetensors").floats(tensor.name))
      << tensor.name;
}

class CurveParity : public testing::TestWithParam<Curve> {};

TEST_P(CurveParity, FiftyStepsOfAdamW) {
  const Golden expected(golden(GetParam().expected));
  const auto ids = expected.ints("input_ids");
  const auto losses = expected.floats("cross_entropy"), norms = expected.floats("grad_norm");
  const auto rates = expected.floats("learning_rate");
  const int64_t row = GetParam().row, tokens = 4 * row;
  SessionModel model(golden(GetParam().model), DType::kF32, 2 * row, 2, {}, {}, GetParam().freeze);
  double worst = 0;
  for (size_t step = 0; step < losses.size(); ++step) {
    StepBatch batch;
    const int32_t* at = ids.data() + static_cast<int64_t>(step) * tokens;
    for (int64_t i = 0; i < tokens; ++i) {
      const bool last = i % row == row - 1;
      batch.tokens.push_back(at[i]);
      batch.targets.push_back(last ? -1 : at[i + 1]);
      batch.positions.push_back(static_cast<int32_t>(i % row));
      batch.weights.push_back(last ? 0.0f : 1.0f);
      batch.total_weight += !last;
    }
    batch.document_start.assign(
        2, {0, static_cast<int32_t>(row), static_cast<int32_t>(2 * row)});
    auto result = model.runner().train(batch, rates[step]);
    ASSERT_TRUE(result.ok()) << result.status().message();
    worst = std::max(worst, std::abs(result->loss - losses[step]));
    EXPECT_NEAR(result->loss, losses[step], 1e-3) << "step " << step;
    EXPECT_NEAR(result->grad_norm / norms[step], 1.0, 1e-3) << "step " << step;
  }
  std::printf("largest loss difference over %zu steps: %.2e\n", losses.size(), worst);
  ASSERT_TRUE(model.runner().drain().ok());
  for (size_t t = 0; t < model.table().tensors.size(); ++t) {
    const TensorSpec& tensor = model.table().tensors[t];
    if (tensor.is_correction()) {
      expect_kept(model, GetParam().model, static_cast<int64_t>(t));
      continue;
    }
    if (model.session().options().frozen.has(static_cast<int64_t>(t))) {
      expect_frozen(model, GetParam().model, static_cast<int64_t>(t));
    }
    if (!expected.has("final." + tensor.name)) continue;
    const auto values = model.tensor(static_cast<int64_t>(t),
                                     model.session().pages().weights(tensor.record));
    EXPECT_LE(relative_l2(values, expected.floats("final." + tensor.name)), 1e-4) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, CurveParity,
    testing::Values(Curve{"qwen3_moe_tiny", "curve/expected.safetensors", 40},
                    Curve{"qwen3_moe_tiny", "curve/frozen_router.safetensors", 40, kFrozenRouter},
                    Curve{"qwen3_moe_tiny", "curve/frozen_parts.safetensors", 40, kFrozenParts},
                    Curve{"mixtral", "mixtral/curve.safetensors", 20},
                    Curve{"olmoe", "olmoe/curve.safetensors", 20},
                    Curve{"qwen2_moe_fused", "qwen2_moe/curve.safetensors", 20},
                    Curve{"glm4_moe", "glm4_moe/curve.safetensors", 20},
                    Curve{"lfm2_moe_fused", "lfm2_moe/curve.safetensors", 20},
                    Curve{"gpt_oss_mxfp4", "gpt_oss/curve.safetensors", 20},
                    Curve{"deepseek_v2", "deepseek_v2/curve.safetensors", 20},
                    Curve{"deepseek_v3_fused", "deepseek_v3/curve.safetensors", 20},
                    Curve{"glm4_moe_lite", "glm4_moe_lite/curve.safetensors", 20},
                    Curve{"granitemoe", "granitemoe/curve.safetensors", 20},
                    Curve{"dots1_fused", "dots1/curve.safetensors", 20},
                    Curve{"minimax_m2", "minimax_m2/curve.safetensors", 20}),
    [](const auto& info) {
      const std::vector<std::string>& freeze = info.param.freeze;
      return info.param.model + (freeze.empty() ? "" : strf("_%zu_frozen", freeze.size()));
    });

// With the reference's routing, our bf16 may be at most half as far again from fp32 as the
// reference's own bf16. Experts with fewer than 64 tokens are too noisy to compare. How near the
// reference comes in a tensor of few values is luck; such a tensor may be as far as half of the
// reference's others are.
constexpr int64_t kFewValues = 256;

// The middle of the reference's distances of all gradients.
double usual_distance(const Golden& expected, const TensorTable& table) {
  std::vector<double> distances;
  for (const TensorSpec& tensor : table.tensors) {
    if (tensor.is_correction()) continue;
    distances.push_back(expected.number("bf16_distance.grad." + tensor.name));
  }
  const auto middle = distances.begin() + std::ssize(distances) / 2;
  std::nth_element(distances.begin(), middle, distances.end());
  return *middle;
}

class Bf16Parity : public testing::TestWithParam<const char*> {};

TEST_P(Bf16Parity, DistanceToFp32) {
  const std::string folder = golden(GetParam());
  const Golden expected(expected_of(GetParam()));
  const StepBatch batch = batch_of(expected);
  SessionModel model(folder, DType::kBF16, static_cast<int64_t>(batch.tokens.size()) / 2);
  const ModelConfig& c = model.session().config();
  const auto first = expected.ints("microbatch.0.experts"), second =
      expected.ints("microbatch.1.experts");
  const size_t per_layer = first.size() / static_cast<size_t>(c.num_moe_layers());
  std::vector<std::vector<int32_t>> experts(static_cast<size_t>(c.num_layers));
  std::vector<int64_t> row(experts.size());  // of each layer among those with experts
  for (size_t l = 0, moe = 0; l < experts.size(); ++l) {
    if (!c.is_moe_layer(static_cast<int64_t>(l))) continue;
    row[l] = static_cast<int64_t>(moe);
    for (const auto* half : {&first, &second}) {
      experts[l].insert(experts[l].end(), half->begin() + moe * per_layer,
                        half->begin() + (moe + 1) * per_layer);
    }
    ++moe;
  }
  model.session().executor().impose_routing(&experts);
  for (int b = 0; b < 2; ++b) {
    const std::string name = strf("microbatch.%d.logits", b);
    const double off = relative_l2(model.logits(batch, b), expected.floats(name));
    const double reference = expected.number("bf16_distance." + name);
    EXPECT_LE(off, 1.5 * reference) << name;
    std::printf("%s: %.4f, reference %.4f\n", name.c_str(), off, reference);
  }
  auto result = model.runner().train(batch, 0.0);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto tokens = expected.ints("tokens_per_expert");
  const double usual = usual_distance(expected, model.table());
  double worst = 0;
  std::string worst_name;
  std::vector<double> ratios;
  for (size_t t = 0; t < model.table().tensors.size(); ++t) {
    const TensorSpec& tensor = model.table().tensors[t];
    const RecordSpec& record = model.table().records[tensor.record];
    const int64_t at = record.expert < 0 ? -1 : row[record.layer] * c.num_experts + record.expert;
    if (tensor.is_correction() || (at >= 0 && tokens[at] < 64)) continue;
    const double off = relative_l2(model.gradient(static_cast<int64_t>(t)),
                                   expected.floats("grad." + tensor.name));
    double reference = expected.number("bf16_distance.grad." + tensor.name);
    if (tensor.num_elements() < kFewValues) reference = std::max(reference, usual);
    EXPECT_LE(off, 1.5 * reference) << tensor.name << ": " << off;
    ratios.push_back(off / reference);
    if (off / reference > worst) {
      worst = off / reference;
      worst_name = tensor.name;
    }
  }
  const auto middle = ratios.begin() + std::ssize(ratios) / 2;
  std::nth_element(ratios.begin(), middle, ratios.end());
  std::printf(
      "%zu tensors; ratio to the reference's distance: %.3f in the middle, %.3f worst, %s\n",
      ratios.size(), *middle, worst, worst_name.c_str());
  EXPECT_GT(ratios.size(), 20u);
}

INSTANTIATE_TEST_SUITE_P(Models, Bf16Parity,
                         testing::Values("qwen3_moe_bf16", "mixtral", "olmoe", "qwen2_moe",
                                         "glm4_moe", "lfm2_moe", "gpt_oss", "deepseek_v2",
                                         "deepseek_v3", "glm4_moe_lite", "granitemoe", "dots1",
                                         "minimax_m2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace pagoda
