// A dense model made into a Mixture-of-Experts: the same function without noise, and what the
// random parts look like.
#include "checkpoint/upcycle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/golden.h"
#include "tests/testing/session_model.h"

namespace pagoda {
namespace {

const std::string kDense = std::string(PAGODA_GOLDEN_DIR) + "/llama";

class Upcycling : public testing::Test {
 protected:
  UpcycleOptions options(int64_t experts, int64_t top_k, double noise) const {
    return {kDense, experts, top_k, noise, 11, dir_.file("out")};
  }
  HfFolder upcycled(const UpcycleOptions& options) {
    std::filesystem::remove_all(options.out_directory);
    const Status status = upcycle_folder(options);
    CHECK(status.ok(), "%s", status.message().c_str());
    return std::move(HfFolder::open(options.out_directory).value());
  }
  std::vector<float> tensor(const HfFolder& folder, int64_t t) const {
    std::vector<float> values(static_cast<size_t>(folder.table().tensors[t].num_elements()));
    CHECK(folder.read_tensor(t, values.data()).ok());
    return values;
  }
  // The dense folder with its config patched.
  std::string patched_dense(const Json& patch) {
    const std::string path = dir_.file("dense");
    std::filesystem::remove_all(path);
    std::filesystem::copy(kDense, path);
    Json config = Json::parse(get_file(kDense + "/config.json"));
    config.merge_patch(patch);
    put_file(path + "/config.json", config.dump(2));
    return path;
  }
  void expect_refused(UpcycleOptions options, Exit code, const std::string& part) {
    const Status status = upcycle_folder(options);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_FALSE(std::filesystem::exists(options.out_directory + "/config.json"));
  }

  TempDir dir_;
};

// The reference's logits are the dense model's in Transformers.
TEST_F(Upcycling, WithoutNoiseItComputesWhatTheDenseModelDid) {
  const Golden expected(kDense + "/expected.safetensors");
  const std::vector<int32_t> ids = expected.ints("input_ids");
  const auto n = static_cast<int32_t>(ids.size());
  StepBatch batch;
  for (int b = 0; b < 2; ++b) {
    batch.tokens.insert(batch.tokens.end(), ids.begin(), ids.end());
    batch.document_start.push_back({0, n});
    for (int32_t i = 0; i < n; ++i) batch.positions.push_back(i);
  }
  batch.targets.assign(2 * ids.size(), -1);
  batch.weights.assign(2 * ids.size(), 0.0f);
  for (const auto& [experts, top_k] : {std::pair{4, 2}, {3, 1}, {1, 1}, {5, 5}}) {
    upcycled(options(experts, top_k, 0.0));
    SessionModel model(dir_.file("out"), DType::kF32, n);
    const double off = relative_l2(model.logits(batch, 1), expected.floats("logits"));
    EXPECT_LE(off, 1e-5) << experts << " experts, top " << top_k;
    std::printf("%d experts, top %d: %.2e\n", experts, top_k, off);
  }
}

TEST_F(Upcycling, RotationsStayThoseOfTheDenseModel) {
  UpcycleOptions with_yarn = options(2, 1, 0.0);
  with_yarn.dense_directory = patched_dense(
      {{"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 5e4}, {"factor", 4.0},
                            {"original_max_position_embeddings", 64}}}});
  const HfFolder folder = upcycled(with_yarn);
  EXPECT_EQ(folder.config().rotation.factor, 4.0);
  EXPECT_EQ(folder.config().rotation.original_positions, 64.0);
}

TEST_F(Upcycling, ConfigDtypesAndCompanionsComeFromTheDenseModel) {
  const std::string dense = patched_dense({{"torch_dtype", "bfloat16"}, {"bos_token_id", 7}});
  put_file(dense + "/tokenizer.json", "a tokenizer");
  UpcycleOptions o = options(4, 2, 0.1);
  o.dense_directory = dense;
  const HfFolder folder = upcycled(o);
  const ModelConfig& c = folder.config();
  EXPECT_STREQ(c.family->model_type, "mixtral");
  EXPECT_EQ(c.num_experts, 4);
  EXPECT_EQ(c.experts_per_token, 2);
  EXPECT_EQ(c.rotation.theta, 50000.0);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_TRUE(c.tie_word_embeddings);
  const Json config = Json::parse(c.json);
  EXPECT_EQ(config["eos_token_id"], 1);
  EXPECT_EQ(config["bos_token_id"], 7);
  EXPECT_EQ(config["dtype"], "bfloat16");
  for (const StoredDType dtype : folder.dtypes()) EXPECT_EQ(dtype, StoredDType::kBF16);
  EXPECT_EQ(get_file(dir_.file("out/tokenizer.json")), "a tokenizer");
  EXPECT_EQ(get_file(dir_.file("out/generation_config.json")),
            get_file(kDense + "/generation_config.json"));
}

TEST_F(Upcycling, NoiseAndRoutersHaveTheirSpread) {
  constexpr double kNoise = 0.25;
  const HfFolder dense = std::move(HfFolder::open(kDense, ModelKind::kDense).value());
  const HfFolder folder = upcycled(options(3, 2, kNoise));
  const TensorTable &table = folder.table(), &from = dense.table();
  for (int64_t l = 0; l < 2; ++l) {
    const std::vector<float> router = tensor(folder, table.find(table.layer(l),
                                                                TensorRole::kRouter));
    double squares = 0;
    for (const float v : router) squares += double{v} * v;
    // Five standard errors of the variance of that many normal values.
    const double count = static_cast<double>(router.size());
    EXPECT_NEAR(squares / count / (0.2 * 0.2), 1.0, 5 * std::sqrt(2 / count));
    for (const TensorRole role : {TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
      const std::vector<float> original = tensor(dense, from.find(from.layer(l), role));
      std::vector<float> first;
      for (int64_t e = 0; e < 3; ++e) {
        const std::vector<float> expert = tensor(folder, table.find(table.expert(l, e), role));
        // relative_l2 of the noise against the tensor, whose mean is next to nothing.
        EXPECT_NEAR(relative_l2(expert, original) / kNoise, 1.0,
                    5 * std::sqrt(0.5 / static_cast<double>(expert.size())) + 0.01);
        if (e == 0) first = expert;
        EXPECT_EQ(e == 0, expert == first) << "experts must differ";
      }
    }
    const TensorRole same = TensorRole::kQuery;
    EXPECT_EQ(tensor(folder, table.find(table.layer(l), same)),
              tensor(dense, from.find(from.layer(l), same)));
  }
}

TEST_F(Upcycling, SameSeedSameBytes) {
  UpcycleOptions o = options(3, 2, 0.1);
  upcycled(o);
  const std::string bytes = get_file(dir_.file("out/model.safetensors"));
  upcycled(o);
  EXPECT_TRUE(get_file(dir_.file("out/model.safetensors")) == bytes);
  o.seed = 12;
  upcycled(o);
  EXPECT_FALSE(get_file(dir_.file("out/model.safetensors")) == bytes);
}

TEST_F(Upcycling, RefusesWhatMixtralCannotHold) {
  UpcycleOptions o = options(4, 2, 0.1);
  o.dense_directory = dir_.file("absent");
  expect_refused(o, Exit::kNoInput, "absent");
  o.dense_directory = std::string(PAGODA_GOLDEN_DIR) + "/mixtral";
  expect_refused(o, Exit::kBadData, "has experts already");
  for (const auto& [patch, name] : std::vector<std::pair<Json, std::string>>{
           {{{"attention_bias", true}}, "\"attention_bias\""},
           {{{"mlp_bias", true}}, "\"mlp_bias\""},
           {{{"model_type", "qwen3"}}, "llama, mistral"},
           {{{"rope_scaling", {{"rope_type", "llama3"}}}}, "\"rope_scaling\""},
           {{{"vocab_size", 97}}, "has shape (96, 32)"}}) {
    o.dense_directory = patched_dense(patch);
    expect_refused(o, Exit::kBadData, name);
  }
  o = options(4, 2, 0.0);
  upcycled(o);
  EXPECT_EQ(upcycle_folder(o).code(), Exit::kCannotCreate);
}

TEST_F(Upcycling, NamesADenseTensorThatIsNotFinite) {
  UpcycleOptions o = options(2, 1, 0.1);
  o.dense_directory = patched_dense(Json::object());
  const std::string path = o.dense_directory + "/model.safetensors";
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  std::string bytes = get_file(path);
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  const uint16_t nan = 0x7fc0;
  std::memcpy(bytes.data() + file->find(name)->offset + 10, &nan, 2);
  put_file(path, bytes);
  expect_refused(o, Exit::kBadData, name);
}

}  // namespace
}  // namespace pagoda
