// Writing Hugging Face folders: what was read comes back byte for byte, nothing unfinished stays.
#include "checkpoint/hf_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include "base/stop_signal.h"
#include "tests/testing/files.h"
#include "tests/testing/model_folder.h"
#include "train/weights.h"

namespace pagoda {
namespace {

using Writer = ModelFolderTest;

TEST_F(Writer, UntrainedExportIsByteExact) {
  for (const auto& dtypes : {std::vector<StoredDType>{StoredDType::kBF16},
                             std::vector<StoredDType>{StoredDType::kF32}, kMixed}) {
    std::filesystem::remove_all(out_);
    const Model model = random_model(table_, dtypes);
    write_safetensors(in_ + "/model.safetensors", model);
    auto folder = HfFolder::open(in_);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
    ASSERT_TRUE(options.ok());
    export_folder(folder.value(), options.value(), 100);
    expect_holds(out_, model);
    EXPECT_EQ(get_file(out_ + "/config.json"), get_file(in_ + "/config.json"));
  }
}

TEST_F(Writer, ShardsInAndOutAreByteExact) {
  const Model model = random_model(table_, kMixed);
  write_shards(model);
  for (const char* name :
       {"tokenizer.json", "vocab.json", "merges.txt", "generation_config.json"}) {
    put_file(in_ + "/" + name, std::string("content of ") + name);
  }
  put_file(in_ + "/README.md", "not copied");
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
  ASSERT_TRUE(options.ok());
  options->shard_bytes = 4000;
  export_folder(folder.value(), options.value(), 1 << 20);
  expect_holds(out_, model);
  EXPECT_EQ(get_file(out_ + "/merges.txt"), "content of merges.txt");
  EXPECT_EQ(get_file(out_ + "/generation_config.json"), "content of generation_config.json");
  EXPECT_FALSE(std::filesystem::exists(out_ + "/README.md"));
  EXPECT_FALSE(std::filesystem::exists(out_ + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(out_ + "/model.safetensors.index.json"));
  int64_t total = 0, files = 0;
  for (const auto& [name, raw] : model) total += static_cast<int64_t>(raw.bytes.size());
  const Json index = Json::parse(get_file(out_ + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], total);
  for (const auto& file : std::filesystem::directory_iterator(out_)) {
    EXPECT_NE(file.path().extension(), ".tmp");
    files += file.path().extension() == ".safetensors";
  }
  EXPECT_GT(files, 3);
  auto again = HfFolder::open(out_);
  EXPECT_TRUE(again.ok()) << again.status().message();
}

TEST_F(Writer, ChangedDtypeIsSaidInTheConfig) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  auto same = HfWriter::options_for(out_, folder.value(), DType::kBF16);
  EXPECT_EQ(same->config_json, folder->config().json);
  auto wider = HfWriter::options_for(out_, folder.value(), DType::kF32);
  Json expected = config_;
  expected["torch_dtype"] = "float32";
  EXPECT_EQ(Json::parse(wider->config_json), expected);
  auto five = config_with_dtype(R"({"z":1,"dtype":"bfloat16","a":2})", StoredDType::kF32, "f");
  EXPECT_EQ(five.value(), "{\n  \"z\": 1,\n  \"dtype\": \"float32\",\n  \"a\": 2\n}\n");
}

// Tensors of whole 4 KiB come first and begin on such borders.
TEST_F(Writer, LargeTensorsBeginOnBorders) {
  Json config = config_;
  config["moe_intermediate_size"] = 128;  // experts of 16 x 128 bf16 values: 4 KiB
  put_file(in_ + "/config.json", config.dump());
  const TensorTable table = table_of(config);
  const Model model = random_model(table, {StoredDType::kBF16});
  write_safetensors(in_ + "/model.safetensors", model);
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
  export_folder(folder.value(), options.value(), 1 << 20);
  expect_holds(out_, model);
  auto file = SafetensorsFile::open(out_ + "/model.safetensors");
  ASSERT_TRUE(file.ok());
  int64_t aligned = 0;
  for (const SafetensorsEntry& entry : file->entries()) {
    if (entry.bytes % 4096 != 0) continue;
    EXPECT_EQ(entry.offset % 4096, 0) << entry.name;
    ++aligned;
  }
  EXPECT_EQ(aligned, 9);
}

// What Transformers wrote comes back with the same tensors and the same config.
class RoundTrip : public Writer, public testing::WithParamInterface<const char*> {
 public:
  static Model model_of(const std::string& directory) {
    Model model;
    for (const auto& path : std::filesystem::directory_iterator(directory)) {
      const std::string name = path.path().filename();
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      auto file = SafetensorsFile::open(path.path());
      CHECK(file.ok(), "%s", file.status().message().c_str());
      for (const SafetensorsEntry& entry : file->entries()) {
        Raw& raw = model[entry.name];
        raw = {*stored_dtype_of(entry.dtype), entry.shape,
               std::string(static_cast<size_t>(entry.bytes), '\0')};
        CHECK(file->read(entry, 0, raw.bytes.data(), entry.bytes).ok());
      }
    }
    return model;
  }
};

TEST_P(RoundTrip, IsByteExact) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/" + GetParam();
  auto folder = HfFolder::open(golden);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const std::string name = GetParam();
  const bool fused = name.ends_with("_fused") || name == "gpt_oss";
  EXPECT_EQ(folder->layout(), fused                  ? ExpertLayout::kFused
                              : name == "granitemoe" ? ExpertLayout::kStacked
                                                     : ExpertLayout::kPerExpert);
  const Status written = export_weights(*weights_of_folder(folder.value()), folder.value(), out_);
  ASSERT_TRUE(written.ok()) << written.message();
  expect_holds(out_, model_of(golden));
  for (const char* file : {"config.json", "generation_config.json"}) {
    EXPECT_EQ(get_file(out_ + "/" + file), get_file(golden + "/" + file));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RoundTrip,
                         testing::Values("qwen3_moe_tiny", "qwen3_moe_tied", "qwen3_moe_bf16",
                                         "qwen3_moe_bf16_fused", "mixtral", "mixtral_fused",
                                         "olmoe", "olmoe_fused", "qwen2_moe", "qwen2_moe_fused",
                                         "glm4_moe", "glm4_moe_fused", "lfm2_moe", "lfm2_moe_fused",
                                         "gpt_oss", "deepseek_v2", "deepseek_v2_fused",
                                         "deepseek_v3", "deepseek_v3_fused", "glm4_moe_lite",
                                         "glm4_moe_lite_fused", "granitemoe", "granitemoe_fused",
                                         "dots1", "dots1_fused", "minimax_m2", "minimax_m2_fused"),
                         [](const auto& info) { return std::string(info.param); });

// Quantised experts leave as bf16, as Transformers would have written what it makes of them.
TEST_F(Writer, Mxfp4LeavesAsBf16) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/gpt_oss";
  auto folder = HfFolder::open(golden + "_mxfp4");
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(folder->layout(), ExpertLayout::kMxfp4);
  const Status written = export_weights(*weights_of_folder(folder.value()), folder.value(), out_);
  ASSERT_TRUE(written.ok()) << written.message();
  expect_holds(out_, RoundTrip::model_of(golden));
  EXPECT_EQ(Json::parse(get_file(out_ + "/config.json")),
            Json::parse(get_file(golden + "/config.json")));
  EXPECT_TRUE(HfFolder::open(out_).ok());
}

TEST_F(Writer, Fp8LeavesAsBf16) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/deepseek_v3";
  auto folder = HfFolder::open(golden + "_fp8");
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const Status written = export_weights(*weights_of_folder(folder.value()), folder.value(), out_);
  ASSERT_TRUE(written.ok()) << written.message();
  expect_holds(out_, RoundTrip::model_of(golden));
  EXPECT_EQ(Json::parse(get_file(out_ + "/config.json")),
            Json::parse(get_file(golden + "/config.json")));
}

// Pieces of any size, one of them the border between experts.
TEST_F(Writer, PartsThatTakeTurnsMayComeInPieces) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/gpt_oss";
  auto folder = HfFolder::open(golden);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  for (const int64_t piece : {7, 100, 1024, 5000}) {
    std::filesystem::remove_all(out_);
    auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
    ASSERT_TRUE(options.ok());
    options->shard_bytes = 40000;
    export_folder(folder.value(), options.value(), piece);
    expect_holds(out_, RoundTrip::model_of(golden));
  }
}

// A model of GLM's kind with a layer that predicts a further token, whose bytes an export keeps.
class NextTokenLayer : public Writer {
 protected:
  NextTokenLayer() {
    std::filesystem::remove_all(in_);
    std::filesystem::copy(std::string(PAGODA_GOLDEN_DIR) + "/glm4_moe", in_);
    config_json_ = Json::parse(get_file(in_ + "/config.json"));
    model_ = RoundTrip::model_of(in_);
    kept_["model.layers.3.eh_proj.weight"] = random_tensor(StoredDType::kBF16, {32, 64}, 1);
    kept_["model.layers.3.enorm.weight"] = random_tensor(StoredDType::kF32, {32}, 2);
    kept_["model.layers.3.mlp.gate.e_score_correction_bias"] =
        random_tensor(StoredDType::kF32, {6}, 3);
  }
  void write(const Model& more) {
    Model all = model_;
    all.insert(more.begin(), more.end());
    write_safetensors(in_ + "/model.safetensors", all);
  }
  Json config_json_;
  Model model_, kept_;
};

TEST_F(NextTokenLayer, IsExportedByteForByte) {
  write(kept_);
  Model all = model_;
  all.insert(kept_.begin(), kept_.end());
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(folder->kept().size(), kept_.size());
  for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{5000}, int64_t{300}}) {
    std::filesystem::remove_all(out_);
    auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
    ASSERT_TRUE(options.ok());
    options->shard_bytes = shard_bytes;
    export_folder(folder.value(), options.value(), 1 << 20);
    expect_holds(out_, all);
    auto again = HfFolder::open(out_);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->kept().size(), kept_.size());
  }
}

// Another type of weights leaves the corrections, and what is kept, as they are.
TEST_F(NextTokenLayer, ChangedDtypeLeavesItAndTheCorrections) {
  write(kept_);
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const Status written = export_weights(*weights_of_folder(folder.value()), folder.value(), out_,
                                        DType::kF32);
  ASSERT_TRUE(written.ok()) << written.message();
  Model got = RoundTrip::model_of(out_);
  EXPECT_EQ(got.size(), model_.size() + kept_.size());
  for (const auto& [name, raw] : got) {
    if (kept_.contains(name)) {
      EXPECT_EQ(raw.dtype, kept_[name].dtype) << name;
      EXPECT_EQ(raw.bytes, kept_[name].bytes) << name;
      continue;
    }
    EXPECT_EQ(raw.dtype, StoredDType::kF32) << name;
    if (!name.ends_with("e_score_correction_bias")) continue;
    EXPECT_EQ(raw.bytes, model_[name].bytes) << name;
  }
}

TEST_F(NextTokenLayer, MayBeMissingButNotAnother) {
  write({});
  EXPECT_TRUE(HfFolder::open(in_).ok()) << "Transformers writes none";
  write({{"model.layers.4.enorm.weight", random_tensor(StoredDType::kF32, {32}, 2)}});
  expect_refused({"model.layers.4.enorm.weight", "not part of the model"});
  write(kept_);
  config_json_["num_nextn_predict_layers"] = 0;
  put_file(in_ + "/config.json", config_json_.dump());
  expect_refused({"model.layers.3.", "not part of the model"});
}

TEST_F(Writer, RefusesUsedFoldersAndNonFiniteValues) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  auto options = HfWriter::options_for(in_, folder.value(), std::nullopt);
  const std::string before = get_file(in_ + "/model.safetensors");
  EXPECT_EQ(HfWriter::create(options.value(), table_).status().code(), Exit::kCannotCreate);
  EXPECT_EQ(get_file(in_ + "/model.safetensors"), before);
  options->directory = out_;
  options->dtypes.assign(table_.tensors.size(), StoredDType::kF16);
  for (const float value : {1e6f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto writer = HfWriter::create(options.value(), table_);
    ASSERT_TRUE(writer.ok());
    const float values[] = {1.0f, value};
    const int64_t first = writer->order().front();
    const Status status = writer->append(first, values, 2);
    EXPECT_EQ(status.code(), Exit::kDiverged);
    EXPECT_NE(status.message().find(table_.tensors[first].name), std::string::npos);
    EXPECT_NE(status.message().find("element 1"), std::string::npos) << status.message();
    EXPECT_EQ(std::filesystem::status(out_).permissions(), std::filesystem::perms::owner_all);
  }
  EXPECT_FALSE(std::filesystem::exists(out_)) << "the next could not have been created";
}

// Removes only what the writer made: neither a folder that was there nor files that others put into
// it.
TEST_F(Writer, WhatIsNotFinishedIsRemoved) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  const auto stopped = [&](const std::string& directory) {
    request_stop(SIGTERM);
    const Status status =
        export_weights(*weights_of_folder(folder.value()), folder.value(), directory);
    request_stop(0);
    EXPECT_EQ(status.code(), exit_of_signal(SIGTERM)) << status.message();
  };
  stopped(dir_.file("a/b/out"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("a")));
  std::filesystem::create_directory(out_);
  stopped(out_);
  EXPECT_TRUE(std::filesystem::is_empty(out_));
  {
    auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
    options->shard_bytes = 1;
    auto writer = HfWriter::create(options.value(), table_);
    ASSERT_TRUE(writer.ok());
    const int64_t first = writer->order().front();
    std::vector<float> values(static_cast<size_t>(table_.tensors[first].num_elements()));
    ASSERT_TRUE(writer->append(first, values.data(), static_cast<int64_t>(values.size())).ok());
    put_file(out_ + "/mine", "x");
    EXPECT_GT(std::distance(std::filesystem::directory_iterator(out_), {}), 2);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(out_), {}), 1);
  EXPECT_EQ(get_file(out_ + "/mine"), "x");
  std::filesystem::remove(out_ + "/mine");
  EXPECT_TRUE(export_weights(*weights_of_folder(folder.value()), folder.value(), out_).ok());
}

}  // namespace
}  // namespace pagoda
