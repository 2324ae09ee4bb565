#include "tests/testing/plan/plan_run_test.h"

#include "tests/testing/files.h"

namespace pagoda {

const char* const PlanTest::kSmallMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
  "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
  "num_key_value_heads": 4, "intermediate_size": 3584, "num_local_experts": 8,
  "num_experts_per_tok": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.02,
  "max_position_embeddings": 32768})";

std::string PlanTest::configs(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name;
}

Words PlanTest::small_on_two_kinds() {
  put_file(dir_.file("config.json"), kSmallMixtral);
  return {"--model.path",
          dir_.file("config.json"),
          "--cluster",
          configs("clusters/a40-v100.toml"),
          "--train.tokens_per_step",
          "65536"};
}

ProcessResult PlanTest::plan(Words words) {
  words.insert(words.begin(), {PAGODA_BINARY, "plan"});
  return Process(words, dir_.file("plan")).wait();
}

Words PlanTest::on(const std::string& model, const std::string& machine) {
  return {"--model.path", configs("models/" + model + ".json"), "--machine",
          configs("machines/" + machine + ".toml")};
}

std::string PlanTest::two_nodes(const char* gb_s) {
  return two_nodes("machines/gpu-2xa40.toml", gb_s);
}

std::string PlanTest::two_cpu_nodes() { return two_nodes("machines/cpu-2-cores.toml", "1.0"); }

std::string PlanTest::two_nodes(const char* machine, const char* gb_s) {
  const std::string file = dir_.file("cluster.toml"), node = configs(machine);
  put_file(file, "[cluster]\nname = \"2 nodes\"\nsource = \"datasheet\"\nnodes = [\"" + node +
                     "\", \"" + node + "\"]\n[network]\ngb_s = " + gb_s + "\nlatency_us = 15.0\n");
  return file;
}

void PlanTest::expect_page(const std::string& file, const Words& words) {
  const std::string html = get_file(file);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  for (const std::string& word : words + Words{"<polyline", "</html>"}) {
    EXPECT_NE(html.find(word), std::string::npos) << word;
  }
  for (const char* word : {"http://", "https://", "src=", "href=", "@import", "nan", "inf\""}) {
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  }
  EXPECT_LT(html.size(), size_t{4} << 20);
}

void PlanTest::expect_no_plan(const Words& words, int code, const std::string& names) {
  const ProcessResult result = plan(words);
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.error_line().find(names), std::string::npos) << result.err;
}

}  // namespace pagoda
