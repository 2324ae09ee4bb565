// GGUF files against those of llama.cpp's own Python package (tools/make_gguf_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "commands/gguf_export.h"
#include "gguf/gguf_model.h"
#include "model/json.h"
#include "tests/gguf/gguf_text.h"
#include "tests/testing/files.h"
#include "tests/testing/golden.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_config.h"
#include "tests/testing/tiny_run.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {
namespace {

TEST(Gguf, AFileIsWhatGgufWriterWrites) {
  TempDir dir;
  GgufEntries entries;
  entries.add("general.architecture", "test");
  entries.add("a.text", "r\xc3\xa4ksm\xc3\xb6rg\xc3\xa5s");
  entries.add("a.number", uint32_t{4000000000});
  entries.add("a.real", 1.5f);
  entries.add("a.flag", true);
  entries.add("a.texts", std::vector<std::string>{"", "x", "yz"});
  entries.add("a.numbers", std::vector<int32_t>{-1, 2, 3});
  entries.add("a.reals", std::vector<float>{0.5f, -2.25f});
  std::vector<float> values;
  for (int i = 0; i < 96; ++i) {
    const bool zero = i >= 32 && i < 64;
    values.push_back(zero ? 0.0f : static_cast<float>((i * 7919) % 257 - 128) / 64);
  }
  auto writer = GgufWriter::create(dir.file("file.gguf"), entries,
                                   {{"one", {3}, GgufType::kF32},
                                    {"two", {3, 32}, GgufType::kBF16},
                                    {"three", {3, 32}, GgufType::kQ8_0},
                                    {"four", {3, 32}, GgufType::kF16}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  // In another order than theirs, and in pieces.
  ASSERT_TRUE(writer->write(3, 0, values.data(), 96).ok());
  ASSERT_TRUE(writer->write(2, 64, values.data() + 64, 32).ok());
  ASSERT_TRUE(writer->write(2, 0, values.data(), 64).ok());
  ASSERT_TRUE(writer->write(1, 0, values.data(), 96).ok());
  ASSERT_TRUE(writer->write(0, 0, values.data(), 3).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(get_file(dir.file("file.gguf")) == get_file(golden("gguf/format.gguf")), true);
}

// A golden model with the byte tokenizer beside it.
std::string model_folder(const TempDir& dir, const std::string& name) {
  const std::string folder = dir.file(name);
  std::filesystem::copy(golden(name), folder);
  put_file(folder + "/tokenizer.json", byte_tokenizer_json());
  put_file(folder + "/tokenizer_config.json", byte_tokenizer_config_json());
  return folder;
}

// Ids of the byte tokenizer are more than the model has.
Status export_model(const std::string& folder, const std::string& path, GgufType type) {
  auto opened = HfFolder::open(folder);
  CHECK(opened.ok(), "%s", opened.status().message().c_str());
  const auto weights = weights_of_folder(*opened);
  return export_gguf(*weights, *opened, path, type);
}

class GgufModelTest : public testing::TestWithParam<const char*> {};

// The reference says what it took for other values than the golden model's, which llama.cpp does
// not compute.
TEST_P(GgufModelTest, TensorsAndEntriesAreTheReferences) {
  const Json reference = Json::parse(get_file(golden(std::string("gguf/") + GetParam() + ".json")));
  const std::pair<const char*, GgufType> types[] = {
      {"fp32", GgufType::kF32}, {"bf16", GgufType::kBF16}, {"q8_0", GgufType::kQ8_0}};
  TempDir dir;
  auto folder =
      HfFolder::open(patched_folder(dir, GetParam(), reference.value("patch", Json::object())));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  for (const auto& [name, type] : types) {
    auto described = describe_for_gguf(*folder, type, "model");
    ASSERT_TRUE(described.ok()) << described.status().message();
    const std::string path = dir.file(std::string(name) + ".gguf");
    const auto weights = weights_of_folder(*folder);
    const Status written = write_gguf(*weights, folder->table(), described.take(), path);
    ASSERT_TRUE(written.ok()) << written.message();
    const GgufText file(path);
    const Json& want = reference[name];
    EXPECT_EQ(file.tensors().size(), want["tensors"].size());
    for (const auto& [tensor_name, tensor] : file.tensors()) {
      ASSERT_TRUE(want["tensors"].contains(tensor_name)) << tensor_name;
      const Json& of_tensor = want["tensors"][tensor_name];
      EXPECT_EQ(Json(tensor.shape), of_tensor["shape"]) << tensor_name;
      EXPECT_EQ(tensor.type, of_tensor["type"].get<uint32_t>()) << tensor_name;
      EXPECT_EQ(file.sha256(tensor), of_tensor["sha256"].get<std::string>()) << tensor_name;
    }
    for (const auto& [key, value] : want["entries"].items()) {
      ASSERT_TRUE(file.has(key)) << key;
      if (value.is_number_float()) {
        EXPECT_NEAR(file.entry(key).get<double>() / value.get<double>(), 1.0, 1e-6) << key;
      } else {
        EXPECT_EQ(file.entry(key), value) << key;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GgufModelTest,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe_bf16", "granitemoe",
                                         "minimax_m2", "lfm2_moe", "deepseek_v3"));

// What a described model has, by name: how many numbers, and of which type.
std::map<std::string, std::pair<int64_t, GgufType>> tensors_of(const std::string& changes) {
  TinyRun run(DType::kBF16, tiny_with(changes.c_str()).c_str());
  auto folder = HfFolder::open(run.config().model.path);
  CHECK(folder.ok(), "%s", folder.status().message().c_str());
  auto described = describe_for_gguf(*folder, GgufType::kBF16, "m");
  CHECK(described.ok(), "%s", described.status().message().c_str());
  std::map<std::string, std::pair<int64_t, GgufType>> found;
  for (const GgufTensor& tensor : described->tensors) {
    found[tensor.name] = {tensor.elements(), tensor.type};
  }
  return found;
}

// The names that llama.cpp b11739 asks for (src/models/glm4-moe.cpp, openai-moe.cpp).
TEST(Gguf, TensorsOfGlm45AndGptOss) {
  Json glm = Json::parse(kGlm);
  glm.merge_patch({{"n_group", 1}, {"topk_group", 1}});
  const auto of_glm = tensors_of(glm.dump());
  for (const char* name :
       {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight",
        "blk.0.attn_q.bias", "blk.1.attn_q_norm.weight", "blk.1.post_attention_norm.weight",
        "blk.1.ffn_gate_exps.weight", "blk.2.ffn_down_shexp.weight", "output_norm.weight"}) {
    EXPECT_TRUE(of_glm.contains(name)) << name;
  }
  EXPECT_EQ(of_glm.at("blk.1.exp_probs_b.bias"), std::pair(int64_t{6}, GgufType::kF32));
  EXPECT_FALSE(of_glm.contains("blk.0.ffn_gate_inp.weight"));
  Json gpt_oss = Json::parse(kGptOss);
  gpt_oss.merge_patch({{"swiglu_limit", 7.0}});
  const auto of_gpt_oss = tensors_of(gpt_oss.dump());
  EXPECT_EQ(of_gpt_oss.at("blk.0.ffn_gate_exps.bias"), std::pair(int64_t{24 * 24}, GgufType::kF32))
      << "24 experts of width 24";
  EXPECT_EQ(of_gpt_oss.at("blk.0.ffn_down_exps.bias"), std::pair(int64_t{24 * 32}, GgufType::kF32));
  EXPECT_EQ(of_gpt_oss.at("blk.2.attn_sinks.weight"), std::pair(int64_t{4}, GgufType::kF32));
  EXPECT_EQ(of_gpt_oss.at("blk.2.ffn_gate_inp.bias"), std::pair(int64_t{24}, GgufType::kF32));
  EXPECT_EQ(of_gpt_oss.at("blk.1.attn_output.bias"), std::pair(int64_t{32}, GgufType::kF32));
  EXPECT_EQ(of_gpt_oss.at("blk.1.attn_output.weight").second, GgufType::kBF16);
}

// The names that b11739 asks for (src/models/deepseek2.cpp, lfm2moe.cpp).
TEST(Gguf, TensorsOfDeepSeekV2LiteAndLfm2) {
  Json lite = Json::parse(kLatentV2);
  lite.merge_patch(
      {{"n_group", 1}, {"topk_group", 1}, {"topk_method", "greedy"}, {"num_hidden_layers", 27}});
  const auto of_lite = tensors_of(lite.dump());
  EXPECT_EQ(of_lite.at("blk.26.attn_q.weight").first, 4 * 12 * 32) << "4 heads of 8 + 4";
  EXPECT_EQ(of_lite.at("blk.26.attn_kv_a_mqa.weight").first, (20 + 4) * 32);
  EXPECT_EQ(of_lite.at("blk.26.attn_kv_a_norm.weight"), std::pair(int64_t{20}, GgufType::kF32));
  EXPECT_EQ(of_lite.at("blk.26.attn_k_b.weight").first, 4 * 20 * 8);
  EXPECT_EQ(of_lite.at("blk.26.attn_v_b.weight").first, 4 * 6 * 20);
  EXPECT_EQ(of_lite.at("blk.26.ffn_up_shexp.weight").first, 2 * 24 * 32);
  EXPECT_TRUE(of_lite.contains("blk.0.ffn_up.weight"));
  EXPECT_FALSE(of_lite.contains("blk.1.exp_probs_b.bias"));
  Json lfm2 = Json::parse(kLfm2);
  lfm2["head_dim"] = 8;
  const auto of_lfm2 = tensors_of(lfm2.dump());
  EXPECT_EQ(of_lfm2.at("blk.0.shortconv.in_proj.weight").first, 3 * 32 * 32);
  EXPECT_EQ(of_lfm2.at("blk.0.shortconv.conv.weight"), std::pair(int64_t{32 * 3}, GgufType::kF32));
  EXPECT_TRUE(of_lfm2.contains("blk.2.shortconv.out_proj.weight"));
  EXPECT_TRUE(of_lfm2.contains("blk.1.attn_q_norm.weight"));
  EXPECT_TRUE(of_lfm2.contains("token_embd_norm.weight"));
  EXPECT_FALSE(of_lfm2.contains("blk.1.shortconv.conv.weight"));
}

// Two heads of 4 rows, of which 1 is a key's in latent attention; a row is named by its first
// element, h * 100 + i * 10, and column c adds c.
TEST(Gguf, OrdersOfRows) {
  std::vector<float> rows;
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 4; ++i) {
      for (int c = 0; c < 2; ++c) rows.push_back(static_cast<float>(100 * h + 10 * i + c));
    }
  }
  using Floats = std::vector<float>;
  GgufPlace place = {.order = GgufOrder::kPermuted, .heads = 2, .key_rows = 1};
  EXPECT_EQ(in_order(place, rows.data(), 8, 2),
            (Floats{0, 1, 20, 21, 10, 11, 30, 31, 100, 101, 120, 121, 110, 111, 130, 131}));
  place.order = GgufOrder::kKeyHeads;
  place.key_rows = 3;
  EXPECT_EQ(in_order(place, rows.data(), 8, 2),
            (Floats{0, 10, 20, 1, 11, 21, 100, 110, 120, 101, 111, 121}));
  place.order = GgufOrder::kValueHeads;
  EXPECT_EQ(in_order(place, rows.data(), 8, 2), (Floats{30, 31, 130, 131}));
}

// What a described model says of itself.
GgufText entries_of(const TempDir& dir, const Json& changes) {
  TinyRun run(DType::kBF16, tiny_with(changes.dump().c_str()).c_str());
  auto folder = HfFolder::open(run.config().model.path);
  CHECK(folder.ok(), "%s", folder.status().message().c_str());
  auto described = describe_for_gguf(*folder, GgufType::kBF16, "m");
  CHECK(described.ok(), "%s", described.status().message().c_str());
  return read_back(described->entries, dir.file("m.gguf"));
}

// DeepSeek-V2-Lite's YaRN (its config.json on the hub), by both names that it may have.
TEST(Gguf, YarnOfDeepSeekScalesScores) {
  TempDir dir;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    Json lite = Json::parse(kLatentV2);
    Json yarn = {{"rope_type", "yarn"},
                 {"factor", 40},
                 {"beta_fast", 32},
                 {"beta_slow", 1},
                 {"mscale", 0.707},
                 {"mscale_all_dim", 0.707},
                 {"original_max_position_embeddings", 64}};
    if (key == std::string("rope_parameters")) yarn["rope_theta"] = 10000.0;
    lite.merge_patch({{"n_group", 1},
                      {"topk_group", 1},
                      {"topk_method", "greedy"},
                      {"num_hidden_layers", 27},
                      {key, yarn}});
    const GgufText file = entries_of(dir, lite);
    EXPECT_EQ(file.entry("deepseek2.rope.scaling.type"), "yarn");
    EXPECT_EQ(file.entry("deepseek2.rope.scaling.factor"), 40.0);
    EXPECT_EQ(file.entry("deepseek2.rope.scaling.original_context_length"), 64);
    EXPECT_NEAR(file.entry("deepseek2.rope.scaling.yarn_log_multiplier").get<double>(), 0.0707,
                1e-7);
    EXPECT_EQ(file.entry("deepseek2.expert_gating_func"), 1) << "softmax";
    EXPECT_EQ(file.entry("deepseek2.expert_weights_norm"), false);
    EXPECT_EQ(file.entry("deepseek2.expert_shared_count"), 2);
    EXPECT_EQ(file.entry("deepseek2.attention.head_count_kv"), 1);
  }
}

TEST(Gguf, WindowsAndYarnOfGptOss) {
  Json gpt_oss = Json::parse(kGptOss);
  gpt_oss.merge_patch({{"swiglu_limit", 7.0},
                       {"rope_parameters",
                        {{"rope_type", "yarn"},
                         {"rope_theta", 10000.0},
                         {"factor", 32.0},
                         {"beta_fast", 32.0},
                         {"beta_slow", 1.0},
                         {"original_max_position_embeddings", 64}}}});
  TempDir dir;
  const GgufText file = entries_of(dir, gpt_oss);
  EXPECT_EQ(file.entry("gpt-oss.attention.sliding_window"), 5);
  EXPECT_EQ(file.entry("gpt-oss.rope.scaling.type"), "yarn");
  EXPECT_EQ(file.entry("gpt-oss.rope.scaling.factor"), 32.0);
  EXPECT_EQ(file.entry("gpt-oss.rope.scaling.original_context_length"), 64);
}

TEST(Gguf, AFileThatDoesNotFitIsNotBegun) {
  TempDir dir;
  auto writer =
      GgufWriter::create(dir.file("m.gguf"), {}, {{"huge", {int64_t{1} << 41}, GgufType::kF32}});
  EXPECT_EQ(writer.status().code(), Exit::kCannotCreate);
  EXPECT_NE(writer.status().message().find("takes 8192.01 GiB"), std::string::npos)
      << writer.status().message();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// qwen3_moe_tiny's vocabulary has room for the byte tokenizer; a plain one of the same config is
// made without its dense layer.
TEST(Gguf, AnExportHasBoth) {
  TempDir dir;
  const std::string folder = model_folder(dir, "qwen3_moe_bf16");
  const Status small = export_model(folder, dir.file("m.gguf"), GgufType::kBF16);
  EXPECT_EQ(small.code(), Exit::kBadData) << "160 ids are fewer than the tokenizer has";
  EXPECT_FALSE(std::filesystem::exists(dir.file("m.gguf")));
}

}  // namespace
}  // namespace pagoda
