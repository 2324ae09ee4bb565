// Packing seen from the model's step: documents of a row do not see each other, not by one bit, and
// padding is seen by nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/testing/session_model.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/token_cache.h"

namespace pagoda {
namespace {

constexpr uint64_t kSeed = 31;
constexpr int32_t kVocab = 96;  // of the smallest of the models

std::string golden(const std::string& name) { return std::string(PAGODA_GOLDEN_DIR) + "/" + name; }

// Few enough experts that each has several blocks of rows.
std::string few_experts() {
  std::string config = kTinyConfig;
  const std::string many = "\"num_experts\": 24";
  return config.replace(config.find(many), many.size(), "\"num_experts\": 4");
}

struct Sizes {
  int64_t microbatches = 2, microbatch_tokens = 512;
  int64_t tokens() const { return microbatches * microbatch_tokens; }
};

// A Qwen3-MoE with 24 or with few experts, and a Qwen2-MoE: shared expert, biases, tied embeddings.
enum class Kind { kManyExperts, kFewExperts, kSharedExpert };

class Model {
 public:
  Model(DType dtype, Kind kind, Sizes sizes)
      : run_(dtype, kind == Kind::kManyExperts ? kTinyConfig : few_experts().c_str()),
        sizes_(sizes),
        model_(kind == Kind::kSharedExpert ? golden("qwen2_moe") : run_.config().model.path, dtype,
               sizes.microbatch_tokens, sizes.microbatches) {}

  StepRunner& runner() { return model_.runner(); }

  // The loss of each token's target, by itself; of token 0 as target where there is none. (N)
  std::vector<double> token_losses(const StepBatch& batch);

  // All gradients of a step as fp32, tensor behind tensor; those of unused experts are left out.
  std::vector<float> gradients(const StepResult& result);

 private:
  TinyRun run_;
  Sizes sizes_;
  SessionModel model_;
};

std::vector<double> Model::token_losses(const StepBatch& batch) {
  const int64_t t = sizes_.microbatch_tokens, v = model_.session().config().vocab_size;
  Stream& s = model_.session().executor().host_stream();
  std::vector<double> losses(static_cast<size_t>(sizes_.tokens()), 0.0);
  for (int64_t b = 0; b < sizes_.microbatches; ++b) {
    const std::vector<float> logits = model_.logits(batch, b);
    for (int64_t i = 0; i < t; ++i) {
      const int32_t target = std::max(batch.targets[b * t + i], 0);
      const float one = 1.0f;
      cpu_ops().cross_entropy(DType::kF32, logits.data() + i * v, &target, &one, 1, v, 1.0f,
                              nullptr, &losses[b * t + i], s);
      s.synchronize();
    }
  }
  return losses;
}

std::vector<float> Model::gradients(const StepResult& result) {
  const TensorTable& table = model_.table();
  std::vector<float> values;
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const RecordSpec& record = table.records[table.tensors[i].record];
    const bool used = record.expert < 0 ||
                      result.tokens_per_expert[record.layer][record.expert] > 0;
    if (!used) continue;
    const std::vector<float> gradient = model_.gradient(static_cast<int64_t>(i));
    values.insert(values.end(), gradient.begin(), gradient.end());
  }
  return values;
}

// A document of a step: where it lies and what it is.
struct Placed {
  size_t begin = 0, length = 0;
};

// Builds batches of documents behind each other, each microbatch padded to its end.
class Packer {
 public:
  explicit Packer(Sizes sizes) : sizes_(sizes) {}

  // False when it does not fit into what is left of the microbatch.
  bool add(const std::vector<int32_t>& tokens) {
    const size_t left = end_of_microbatch() - batch_.tokens.size();
    if (tokens.size() > left) return false;
    begin_document();
    placed_.push_back({batch_.tokens.size(), tokens.size()});
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool last = i + 1 == tokens.size();
      add_token(tokens[i], last ? -1 : tokens[i + 1], static_cast<int32_t>(i), false);
    }
    return true;
  }
  void pad_microbatch(int32_t token) {
    const size_t end = end_of_microbatch();
    if (batch_.tokens.size() < end) begin_document();
    for (int32_t i = 0; batch_.tokens.size() < end; ++i) add_token(token, -1, i, true);
    ++microbatch_;
  }
  StepBatch take() {
    CHECK(static_cast<int64_t>(batch_.tokens.size()) == sizes_.tokens());
    for (auto& starts : batch_.document_start) {
      starts.push_back(static_cast<int32_t>(sizes_.microbatch_tokens));
    }
    return std::move(batch_);
  }
  const std::vector<Placed>& placed() const { return placed_; }

 private:
  size_t end_of_microbatch() const {
    return (microbatch_ + 1) * static_cast<size_t>(sizes_.microbatch_tokens);
  }
  void begin_document() {
    batch_.document_start.resize(std::max(batch_.document_start.size(), microbatch_ + 1));
    const size_t first = microbatch_ * static_cast<size_t>(sizes_.microbatch_tokens);
    batch_.document_start[microbatch_].push_back(
        static_cast<int32_t>(batch_.tokens.size() - first));
  }
  void add_token(int32_t token, int32_t target, int32_t position, bool padding) {
    batch_.tokens.push_back(token);
    batch_.targets.push_back(target);
    batch_.positions.push_back(position);
    batch_.weights.push_back(target >= 0 ? 1.0f : 0.0f);
    batch_.padding.push_back(padding);
    batch_.total_weight += target >= 0;
  }

  Sizes sizes_;
  StepBatch batch_;
  std::vector<Placed> placed_;
  size_t microbatch_ = 0;
};

std::vector<int32_t> document(uint64_t number, int64_t length) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<int32_t>(
        random_below(kSeed, number << 20 | static_cast<uint64_t>(i), kVocab)));
  }
  return tokens;
}

// Documents of 1 to 150 tokens, both microbatches almost full.
StepBatch random_batch(Sizes sizes, std::vector<Placed>* placed) {
  Packer packer(sizes);
  uint64_t number = 1;
  for (int64_t b = 0; b < sizes.microbatches; ++b) {
    while (packer.add(document(number, 1 + random_below(kSeed, number * 7, 150)))) ++number;
    packer.pad_microbatch(0);
  }
  *placed = packer.placed();
  return packer.take();
}

class PackedStep : public testing::TestWithParam<std::tuple<DType, Kind>> {
 protected:
  Model model(Sizes sizes) const {
    return Model(std::get<0>(GetParam()), std::get<1>(GetParam()), sizes);
  }
};

TEST_P(PackedStep, ADocumentChangesNoOtherDocumentsLoss) {
  const Sizes sizes;
  Model model = this->model(sizes);
  std::vector<Placed> placed;
  const StepBatch batch = random_batch(sizes, &placed);
  const std::vector<double> before = model.token_losses(batch);
  const auto routing = model.runner().train(batch, 0.0)->tokens_per_expert;
  ASSERT_TRUE(model.runner().drain().ok());
  ASSERT_GT(placed.size(), 8u);
  int regrouped = 0;
  for (size_t d = 0; d < placed.size(); ++d) {
    StepBatch other = batch;
    const Placed& changed = placed[d];
    for (size_t i = 0; i < changed.length; ++i) {
      int32_t& token = other.tokens[changed.begin + i];
      token = (token + 1 + static_cast<int32_t>(random_below(kSeed, 900000 + i, 90))) % kVocab;
    }
    const std::vector<double> after = model.token_losses(other);
    size_t own = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const bool mine = i >= changed.begin && i < changed.begin + changed.length;
      own += mine && before[i] != after[i];
      if (!mine) {
        ASSERT_EQ(std::memcmp(&before[i], &after[i], sizeof(double)), 0)
            << "document " << d << " changed the loss at token " << i << " from " << before[i]
            << " to " << after[i] << ", seed " << kSeed;
      }
    }
    ASSERT_EQ(own, changed.length) << "document " << d << ": the change must show in it";
    if (d % 4 != 0) continue;
    regrouped += model.runner().train(other, 0.0)->tokens_per_expert != routing;
    ASSERT_TRUE(model.runner().drain().ok());
  }
  EXPECT_GT(regrouped, 0) << "no change moved rows between blocks of experts";
}

// A document's loss is the same alone and in any company, wherever it lies.
TEST_P(PackedStep, CompanyAndPlaceDoNotMatter) {
  const Sizes sizes;
  Model model = this->model(sizes);
  std::vector<int32_t> mine = document(1, 137);
  Packer alone(sizes);
  ASSERT_TRUE(alone.add(mine));
  for (int b = 0; b < 2; ++b) alone.pad_microbatch(5);
  const StepBatch batch = alone.take();
  const auto want = model.token_losses(batch);
  for (uint64_t company = 1; company <= 6; ++company) {
    Packer packer(sizes);
    if (company % 2 == 0) {
      while (packer.add(document(100 * company, 61))) continue;
      packer.pad_microbatch(9);
    }
    const int64_t before = random_below(kSeed, company, 350);
    if (before > 0) {
      ASSERT_TRUE(packer.add(document(200 * company, before)));
    }
    ASSERT_TRUE(packer.add(mine));
    const size_t at = packer.placed().back().begin;
    while (packer.add(document(300 * company, 1 + static_cast<int64_t>(company)))) continue;
    packer.pad_microbatch(3);
    if (company % 2 == 1) packer.pad_microbatch(9);
    const auto losses = model.token_losses(packer.take());
    for (size_t i = 0; i < mine.size(); ++i) {
      ASSERT_EQ(std::memcmp(&losses[at + i], &want[i], sizeof(double)), 0)
          << "token " << i << " at " << at << " in company " << company << ": " << losses[at + i]
          << ", alone " << want[i];
    }
  }
}

// What the padding holds changes no bit of losses, gradients or routing.
TEST_P(PackedStep, PaddingIsSeenByNothing) {
  const Sizes sizes;
  std::vector<float> want;
  StepResult first;
  for (const int32_t token : {0, 17, 95}) {
    Model model = this->model(sizes);
    Packer packer(sizes);
    for (uint64_t d = 0; d < 5; ++d) ASSERT_TRUE(packer.add(document(d, 60)));
    packer.pad_microbatch(token);
    for (uint64_t d = 5; d < 7; ++d) ASSERT_TRUE(packer.add(document(d, 30)));
    packer.pad_microbatch(token);
    auto result = model.runner().train(packer.take(), 0.0);
    ASSERT_TRUE(result.ok()) << result.status().message();
    const std::vector<float> gradients = model.gradients(result.value());
    EXPECT_EQ(result->tokens, 360);
    EXPECT_EQ(result->total_weight, 5 * 59 + 2 * 29);
    int64_t routed = 0;
    for (const int64_t count : result->tokens_per_expert[0]) routed += count;
    EXPECT_EQ(routed, 360 * 2) << "padding was routed";
    if (want.empty()) {
      want = gradients;
      first = result.value();
      continue;
    }
    EXPECT_EQ(result->loss, first.loss);
    EXPECT_EQ(result->aux_loss, first.aux_loss);
    EXPECT_EQ(result->grad_norm, first.grad_norm);
    EXPECT_EQ(result->tokens_per_expert, first.tokens_per_expert);
    ASSERT_EQ(gradients.size(), want.size());
    EXPECT_EQ(std::memcmp(gradients.data(), want.data(), want.size() * 4), 0) << "token " << token;
  }
  EXPECT_GT(first.aux_loss, 0);
}

INSTANTIATE_TEST_SUITE_P(All, PackedStep,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(Kind::kManyExperts, Kind::kFewExperts,
                                                          Kind::kSharedExpert)));

// Padding does not change a step: two microbatches of unequal numbers of documents, all of one
// length, against each of them alone. Loss, balance loss and gradients then are means weighted by
// the number of documents.
TEST(PackedStepMeans, PaddingChangesNoMean) {
  constexpr int64_t kLength = 40;
  constexpr uint64_t kMany = 9, kFew = 3;
  const auto run = [&](Model& model, Packer& packer) {
    auto result = model.runner().train(packer.take(), 0.0);
    CHECK(result.ok(), "%s", result.status().message().c_str());
    return result.take();
  };
  const Sizes padded;
  Model model(DType::kF32, Kind::kFewExperts, padded);
  Packer both(padded);
  for (uint64_t d = 0; d < kMany; ++d) ASSERT_TRUE(both.add(document(d, kLength)));
  both.pad_microbatch(1);
  for (uint64_t d = 0; d < kFew; ++d) ASSERT_TRUE(both.add(document(100 + d, kLength)));
  both.pad_microbatch(1);
  const StepResult together = run(model, both);
  const std::vector<float> gradients = model.gradients(together);

  std::vector<double> want(gradients.size(), 0.0);
  double loss = 0, aux = 0;
  for (const auto& [first, count] : {std::pair{uint64_t{0}, kMany}, {uint64_t{100}, kFew}}) {
    const Sizes exact{1, static_cast<int64_t>(count) * kLength};
    Model apart(DType::kF32, Kind::kFewExperts, exact);
    Packer packer(exact);
    for (uint64_t d = 0; d < count; ++d) ASSERT_TRUE(packer.add(document(first + d, kLength)));
    const StepResult result = run(apart, packer);
    const double share = static_cast<double>(count) / (kMany + kFew);
    const std::vector<float> part = apart.gradients(result);
    ASSERT_EQ(part.size(), want.size()) << "an expert without tokens";
    for (size_t i = 0; i < part.size(); ++i) want[i] += share * part[i];
    loss += share * result.loss;
    aux += share * result.aux_loss;
  }
  EXPECT_NEAR(together.loss / loss, 1.0, 1e-6);
  EXPECT_NEAR(together.aux_loss / aux, 1.0, 1e-6);
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (gradients[i] - want[i]) * (gradients[i] - want[i]);
    size += want[i] * want[i];
  }
  // fp32 sums of some hundred terms in another order.
  EXPECT_LE(std::sqrt(difference / size), 1e-5);
  std::printf("gradients: relative distance %.2e\n", std::sqrt(difference / size));
}

// A microbatch without anything to train adds nothing to the loss, and divides by nothing.
TEST(PackedStepMeans, AMicrobatchWithoutWeightOrTokens) {
  const Sizes sizes{2, 128};
  const auto step = [&](bool all_padding, uint64_t masked_document) {
    Model model(DType::kF32, Kind::kManyExperts, sizes);
    Packer packer(sizes);
    EXPECT_TRUE(packer.add(document(1, 100)));
    packer.pad_microbatch(0);
    EXPECT_TRUE(all_padding || packer.add(document(masked_document, 90)));
    packer.pad_microbatch(0);
    StepBatch batch = packer.take();
    for (size_t i = 128; i < 256; ++i) {
      batch.total_weight -= batch.weights[i];
      batch.weights[i] = 0;
      batch.targets[i] = -1;
    }
    auto result = model.runner().train(batch, 0.0);
    EXPECT_TRUE(result.ok()) << result.status().message();
    for (const float g : model.gradients(result.value())) EXPECT_TRUE(std::isfinite(g));
    return result.take();
  };
  const StepResult one = step(false, 2), other = step(false, 3), none = step(true, 0);
  EXPECT_EQ(one.total_weight, 99);
  EXPECT_EQ(one.loss, other.loss);
  EXPECT_EQ(one.loss, none.loss);
  EXPECT_NE(one.aux_loss, other.aux_loss) << "masked tokens are routed and balanced";
  EXPECT_TRUE(std::isfinite(none.aux_loss) && none.aux_loss > 0);
  // Forward only, nothing at all has weight.
  Model model(DType::kF32, Kind::kManyExperts, sizes);
  Packer empty(sizes);
  for (int b = 0; b < 2; ++b) empty.pad_microbatch(0);
  const auto sum = model.runner().evaluate(empty.take());
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(sum.value().loss, 0);
  EXPECT_EQ(sum.value().weight, 0);
}

}  // namespace
}  // namespace pagoda
