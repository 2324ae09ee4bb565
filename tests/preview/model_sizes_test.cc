// config.json files of published models, in configs/models, against the numbers of parameters that
// their weights have; files that do not parse.
#include "preview/model_sizes.h"

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

std::string model_file(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/models/" + name + ".json";
}

struct Published {
  const char* name;
  int64_t total, active;
};

TEST(ModelSizes, OfPublishedConfigsHasTheParametersOfTheirWeights) {
  const Published models[] = {
      {"qwen3-30b-a3b", 30532122624, 3353032704},
      {"mixtral-8x7b", 46702792704, 46702792704 - 32LL * 6 * 3 * 4096 * 14336},
      {"olmoe-1b-7b", 6919161856, 6919161856 - 16LL * 56 * 3 * 2048 * 1024},
      {"qwen1.5-moe-a2.7b", 14315784192, 14315784192 - 24LL * 56 * 3 * 2048 * 1408},
      {"deepseek-v2-lite", 15706484224, 15706484224 - 26LL * 58 * 3 * 2048 * 1408},
      {"deepseek-v2", 235741434880, 235741434880 - 59LL * 154 * 3 * 5120 * 1536},
      {"deepseek-v3", 671026419200, 37552297472},
      {"gpt-oss-20b", 20914757184, 20914757184 - 24LL * 28 * (3 * 2880 * 2880 + 3 * 2880)},
      {"gpt-oss-120b", 116829156672, 116829156672 - 36LL * 124 * (3 * 2880 * 2880 + 3 * 2880)},
      {"glm-4.7-flash", 29943393920, 29943393920 - 46LL * 60 * 3 * 2048 * 1536},
      {"glm-4.5-air", 106852251264, 106852251264 - 45LL * 120 * 3 * 4096 * 1408},
      {"lfm2-8b-a1b", 8339930560, 8339930560 - 22LL * 28 * 3 * 2048 * 1792},
      {"granite-3.0-1b-a400m", 1334628352, 1334628352 - 24LL * 24 * 3 * 1024 * 512},
      {"dots.llm1", 142774381696, 142774381696 - 61LL * 122 * 3 * 4096 * 1408},
      {"minimax-m2", 228689764864, 228689764864 - 62LL * 248 * 3 * 3072 * 1536},
      {"glm-4.5", 352797829024, 352797829024 - 89LL * 152 * 3 * 5120 * 1536},
      {"mixtral-8x22b", 140620634112, 140620634112 - 56LL * 6 * 3 * 6144 * 16384},
      {"qwen3-235b-a22b", 235093634560, 235093634560 - 94LL * 120 * 3 * 4096 * 1536},
      {"kimi-k2", 1026408232448, 1026408232448 - 60LL * 376 * 3 * 7168 * 2048},
  };
  for (const Published& published : models) {
    SCOPED_TRACE(published.name);
    auto model = read_model_sizes(model_file(published.name));
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->name, published.name);
    EXPECT_EQ(count_parameters(model->shape).total, published.total);
    EXPECT_EQ(count_parameters(model->shape).active, published.active);
  }
}

TEST(ModelSizes, IsReadFromAFolderOrAFile) {
  const TempDir dir;
  put_file(dir.file("config.json"), tiny_config().dump());
  auto folder = read_model_sizes(dir.path());
  auto file = read_model_sizes(dir.file("config.json"));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(folder->family, "qwen3_moe");
  EXPECT_EQ(count_parameters(folder->shape).total, count_parameters(file->shape).total);
  EXPECT_EQ(read_model_sizes(dir.file("none")).status().code(), Exit::kNoInput);
}

// One line that names the file and the field.
TEST(ModelSizes, RefusesWhatDoesNotParse) {
  const auto refuse = [](const std::string& name, const char* word, auto change) {
    auto text = read_text_file(model_file(name), Links::kFollow, 1 << 20);
    ASSERT_TRUE(text.ok());
    Json config = Json::parse(*text);
    change(config);
    const Status status = parse_model_sizes(config.dump(), "the/config.json").status();
    EXPECT_EQ(status.code(), Exit::kBadData) << word;
    EXPECT_TRUE(status.message().starts_with("the/config.json: ")) << status.message();
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  refuse("deepseek-v3", "kv_lora_rank", [](Json& c) { c.erase("kv_lora_rank"); });
  refuse("deepseek-v3", "attention_bias", [](Json& c) { c["attention_bias"] = true; });
  refuse("deepseek-v3", "n_routed_experts", [](Json& c) { c["n_routed_experts"] = 0; });
  refuse("deepseek-v3", "num_experts_per_tok", [](Json& c) { c["num_experts_per_tok"] = 257; });
  refuse("deepseek-v3", "hidden_size", [](Json& c) { c["hidden_size"] = -7168; });
  refuse("deepseek-v2", "q_lora_rank", [](Json& c) { c["q_lora_rank"] = "much"; });
  refuse("gpt-oss-20b", "num_local_experts", [](Json& c) { c["num_local_experts"] = 2.5; });
  refuse("glm-4.5", "multiple of \"num_key_value_heads\"",
         [](Json& c) { c["num_key_value_heads"] = 7; });
  refuse("qwen3-30b-a3b", "model_type", [](Json& c) { c["model_type"] = "gpt2"; });
  refuse("qwen3-30b-a3b", "num_experts", [](Json& c) { c["num_experts"] = Json::array(); });
  for (const char* text : {"", "[]", "{", "{\"model_type\": 3}", "{\"model_type\": \"gpt_oss\"}"}) {
    EXPECT_EQ(parse_model_sizes(text, "x").status().code(), Exit::kBadData) << text;
  }
}

}  // namespace
}  // namespace pagoda
