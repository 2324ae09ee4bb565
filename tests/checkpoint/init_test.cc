#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/init_folder.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_config.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

class Init : public testing::Test {
 protected:
  Init() { put_file(options_.config_path, tiny_config().dump(2)); }
  TempDir dir_;
  InitOptions options_{dir_.file("config.json"), "", dir_.file("out"), 42, DType::kBF16};
};

TEST_F(Init, MakesAModelOfTheDistributionAsked) {
  const Status status = init_folder(options_);
  ASSERT_TRUE(status.ok()) << status.message();
  auto folder = HfFolder::open(dir_.file("out"));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  double sum = 0, squares = 0;
  int64_t count = 0;
  for (size_t t = 0; t < folder->table().tensors.size(); ++t) {
    const TensorSpec& tensor = folder->table().tensors[t];
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    ASSERT_TRUE(folder->read_tensor(static_cast<int64_t>(t), values.data()).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      if (tensor.init == TensorInit::kOnes) {
        ASSERT_EQ(values[i], 1.0f) << tensor.name;
        continue;
      }
      const float drawn = 0.02f * random_normal(42, RandomPurpose::kInit, t, i);
      ASSERT_EQ(values[i], to_float(bf16_round_weight(drawn))) << tensor.name << " " << i;
      sum += values[i];
      squares += double{values[i]} * values[i];
      ++count;
    }
  }
  // Five standard errors of mean and variance of `count` normal values.
  const double n = static_cast<double>(count);
  EXPECT_LT(std::fabs(sum / n), 5 * 0.02 / std::sqrt(n));
  EXPECT_LT(std::fabs(squares / n / (0.02 * 0.02) - 1), 5 * std::sqrt(2 / n));
}

TEST_F(Init, BiasesAreZero) {
  Json config = tiny_config();
  config.merge_patch({{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", 20}});
  put_file(options_.config_path, config.dump());
  ASSERT_TRUE(init_folder(options_).ok());
  auto folder = HfFolder::open(dir_.file("out"));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const TensorTable& table = folder->table();
  for (const TensorRole role : {TensorRole::kQueryBias, TensorRole::kKeyBias,
                                TensorRole::kValueBias}) {
    const int64_t t = table.find(table.layer(1), role);
    std::vector<float> values(static_cast<size_t>(table.tensors[t].num_elements()), 1.0f);
    ASSERT_TRUE(folder->read_tensor(t, values.data()).ok());
    EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << table.tensors[t].name;
  }
}

// gpt-oss's published config is of MXFP4; what is made is not.
TEST_F(Init, ExpertsOfGptOssAreStackedAndNotQuantised) {
  Json config = tiny_config();
  config.merge_patch({{"model_type", "gpt_oss"}, {"hidden_size", 32}, {"intermediate_size", 64},
                      {"quantization_config", {{"quant_method", "mxfp4"}}}});
  put_file(options_.config_path, config.dump());
  const Status status = init_folder(options_);
  ASSERT_TRUE(status.ok()) << status.message();
  auto folder = HfFolder::open(dir_.file("out"));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(folder->layout(), ExpertLayout::kFused);
  EXPECT_FALSE(Json::parse(get_file(dir_.file("out/config.json"))).contains("quantization_config"));
}

TEST_F(Init, SameSeedSameBytes) {
  ASSERT_TRUE(init_folder(options_).ok());
  options_.out_directory = dir_.file("again");
  ASSERT_TRUE(init_folder(options_).ok());
  options_.out_directory = dir_.file("other");
  options_.seed = 43;
  ASSERT_TRUE(init_folder(options_).ok());
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(get_file(dir_.file("out/") + name), get_file(dir_.file("again/") + name));
  }
  const std::string weights = get_file(dir_.file("out/model.safetensors"));
  EXPECT_TRUE(weights == get_file(dir_.file("again/model.safetensors")));
  EXPECT_FALSE(weights == get_file(dir_.file("other/model.safetensors")));
}

TEST_F(Init, Fp32IsSaidInTheConfig) {
  options_.dtype = DType::kF32;
  ASSERT_TRUE(init_folder(options_).ok());
  EXPECT_EQ(Json::parse(get_file(dir_.file("out/config.json")))["torch_dtype"], "float32");
  auto folder = HfFolder::open(dir_.file("out"));
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->dtypes().front(), StoredDType::kF32);
}

TEST_F(Init, WritesTheByteTokenizer) {
  ASSERT_TRUE(init_folder(options_).ok());
  const auto tokenizer = Tokenizer::open(dir_.file("out"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  std::vector<uint32_t> ids;
  ASSERT_TRUE(tokenizer.value().encode(all, &ids).ok());
  ASSERT_EQ(ids.size(), 256u);
  for (uint32_t byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[byte], byte);
  // The vocabulary's spelling of some bytes, from the published GPT-2 table.
  const Json vocabulary = Json::parse(get_file(dir_.file("out/tokenizer.json")))["model"]["vocab"];
  EXPECT_EQ(vocabulary["A"], 65);
  EXPECT_EQ(vocabulary["\u0120"], 32);  // space
  EXPECT_EQ(vocabulary["\u010A"], 10);  // newline
  EXPECT_EQ(vocabulary["\u0100"], 0);
  EXPECT_EQ(vocabulary["\u0143"], 173);  // soft hyphen, the last that is moved
  EXPECT_EQ(vocabulary["\u00FF"], 255);
}

TEST_F(Init, CopiesAGivenTokenizer) {
  std::filesystem::create_directory(dir_.file("tok"));
  options_.tokenizer_directory = dir_.file("tok");
  EXPECT_EQ(init_folder(options_).code(), Exit::kNoInput);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("out")));
  put_file(dir_.file("tok/tokenizer.json"), "{\"mine\":1}");
  put_file(dir_.file("tok/special_tokens_map.json"), "{}");
  ASSERT_TRUE(init_folder(options_).ok());
  EXPECT_EQ(get_file(dir_.file("out/tokenizer.json")), "{\"mine\":1}");
  EXPECT_EQ(get_file(dir_.file("out/special_tokens_map.json")), "{}");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("out/tokenizer_config.json")));
}

TEST_F(Init, ADiskWithoutRoomIsSaidBeforeAnythingIsWritten) {
  Json huge = tiny_config();
  huge.update({{"vocab_size", 1 << 22}, {"hidden_size", 1 << 24}});
  put_file(options_.config_path, huge.dump());
  options_.out_directory = dir_.file("new/out");
  const Status refused = init_folder(options_);
  EXPECT_EQ(refused.code(), Exit::kCannotCreate) << refused.message();
  EXPECT_NE(refused.message().find("out: needs 2"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find(" free; nothing was written"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("new")));
}

TEST_F(Init, RefusesBadInput) {
  Json small = tiny_config();
  small["vocab_size"] = 256;
  put_file(options_.config_path, small.dump());
  EXPECT_EQ(init_folder(options_).code(), Exit::kBadData);
  put_file(options_.config_path, "{");
  EXPECT_EQ(init_folder(options_).code(), Exit::kBadData);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("out")));
  put_file(options_.config_path, tiny_config().dump());
  std::filesystem::create_directory(dir_.file("out"));
  put_file(dir_.file("out/kept"), "x");
  EXPECT_EQ(init_folder(options_).code(), Exit::kCannotCreate);
  EXPECT_EQ(get_file(dir_.file("out/kept")), "x");
}

}  // namespace
}  // namespace pagoda
