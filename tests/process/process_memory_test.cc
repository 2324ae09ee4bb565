// Peak memory of the built program: at most both budgets and the overhead it prints before it
// starts, on a model whose weights and optimizer state are more than five times both budgets
// together.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/bytes.h"
#include "base/memory_size.h"
#include "tests/testing/files.h"
#include "tests/testing/mpirun.h"
#include "tests/testing/run_test.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr int64_t kDeviceBytes = 24 * kMiB, kHostBytes = 32 * kMiB;
constexpr int64_t kMostOverheadBytes = 300 * kMiB;

constexpr const char* kConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 320,
  "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 64, "intermediate_size": 512, "moe_intermediate_size": 256, "num_experts": 32,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.02, "max_position_embeddings": 2048, "mlp_only_layers": [],
  "decoder_sparse_step": 1, "attention_bias": false})";

class MemoryTest : public RunTest {
 protected:
  void SetUp() override {
    if (kUnderSanitizer) {
      GTEST_SKIP() << "SKIPPED: a sanitizer's own memory is no part of the promise";
    }
    RunTest::SetUp();
    put_file(dir_.file("large.json"), kConfig);
    const ProcessResult made = run(
        {"init", "--config", dir_.file("large.json"), "--seed", "1", "--out", dir_.file("large")});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  Flags large_run() const {
    Flags flags = this->flags("run");
    flags["model.path"] = dir_.file("large");
    flags["train.steps"] = "3";
    flags["train.tokens_per_step"] = "512";
    flags["train.micro_batch_tokens"] = "128";
    flags["optim.learning_rate"] = "1e-4";
    flags["memory.device"] = std::to_string(kDeviceBytes) + "B";
    flags["memory.host"] = std::to_string(kHostBytes) + "B";
    return flags;
  }
  // The overhead that the run promised.
  static int64_t promised_bytes(const ProcessResult& result) {
    std::smatch found;
    const std::regex line("memory beyond the budgets: at most ([0-9.]+ [KMG]iB)");
    if (!std::regex_search(result.err, found, line)) return -1;
    return MemorySize::parse(found[1].str()).value().resolve(0, 0);
  }
  void expect_within_promise(const ProcessResult& result) {
    ASSERT_EQ(result.code, 0) << result.err;
    const int64_t overhead = promised_bytes(result), budgets = kDeviceBytes + kHostBytes;
    ASSERT_GT(overhead, 0) << result.err;
    std::printf("peak %s = budgets %s + %s; promised: + %s\n",
                format_bytes(result.peak_rss_bytes).c_str(), format_bytes(budgets).c_str(),
                format_bytes(result.peak_rss_bytes - budgets).c_str(),
                format_bytes(overhead).c_str());
    EXPECT_LE(overhead, kMostOverheadBytes);
    EXPECT_LE(result.peak_rss_bytes, budgets + overhead);
    EXPECT_GT(result.peak_rss_bytes, budgets) << "the budgets were not used";
  }
};

TEST_F(MemoryTest, PagedRunStaysWithinItsPromise) {
  // Weights are bf16 (2 bytes), optimizer state is three fp32 (12 bytes) of each parameter.
  const auto parameters =
      static_cast<int64_t>(std::filesystem::file_size(dir_.file("large") + "/model.safetensors")) /
      2;
  ASSERT_GT(parameters * 14, 5 * (kDeviceBytes + kHostBytes));
  for (const auto& [threads, io] : {std::pair{"1", "threads"}, {"2", "auto"}, {"6", "threads"}}) {
    SCOPED_TRACE(testing::Message() << threads << " threads, io " << io);
    std::filesystem::remove_all(dir_.file("run"));
    Flags flags = large_run();
    flags["train.threads"] = threads;
    flags["memory.io"] = io;
    expect_within_promise(run(train(flags)));
  }
}

TEST_F(MemoryTest, SoDoesAResumedRun) {
  Flags flags = large_run();
  flags["optim.schedule"] = "constant";
  expect_within_promise(run(train(flags)));
  flags["train.steps"] = "12";
  expect_within_promise(run(train(flags, {"--resume"})));
}

// A rank holds experts of its own, so budgets are used by each of several processes.
TEST_F(MemoryTest, EachRankStaysWithinThePromise) {
  if (!has_mpirun()) GTEST_SKIP() << "SKIPPED: built without MPI, or there is no mpirun";
  set_mpirun_variables();
  Flags flags = large_run();
  flags["train.threads"] = "1";
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    std::filesystem::remove_all(dir_.file("run"));
    const ProcessResult result =
        Process(mpirun_words(ranks) + program_ + train(flags), dir_.file("ranks")).wait();
    ASSERT_EQ(result.code, 0) << result.err;
    const int64_t budgets = kDeviceBytes + kHostBytes, overhead = promised_bytes(result);
    ASSERT_GT(overhead, 0) << result.err;
    nlohmann::json step;  // the last
    for (const std::string& line : lines_of(get_file(dir_.file("run/metrics.jsonl")))) {
      const auto object = nlohmann::json::parse(line);
      if (object["type"] == "step") step = object;
    }
    ASSERT_EQ(step["ranks"].size(), static_cast<size_t>(ranks)) << step;
    for (const nlohmann::json& rank : step["ranks"]) {
      const int64_t peak = rank["peak_memory_bytes"];
      std::printf("peak %s = budgets %s + %s; promised: + %s\n", format_bytes(peak).c_str(),
                  format_bytes(budgets).c_str(), format_bytes(peak - budgets).c_str(),
                  format_bytes(overhead).c_str());
      EXPECT_LE(peak, budgets + overhead) << rank["rank"];
      EXPECT_GT(peak, budgets) << rank["rank"] << ": the budgets were not used";
      EXPECT_GT(rank["fetch_bytes"], 0) << rank["rank"];
    }
  }
}

}  // namespace
}  // namespace pagoda
