// Tests of the built program on a tiny model: a folder with model, text and the flags of a run
// whose budgets page.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/testing/process.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_run.h"

#ifndef PAGODA_BINARY
#define PAGODA_BINARY \
  ""  // the build names the program; without it this header still compiles alone
#endif

namespace pagoda {

using Words = std::vector<std::string>;
using Flags = std::map<std::string, std::string>;  // "train.steps" -> "12"

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The command line of `pagoda train`.
inline Words train(const Flags& flags, const Words& more = {}) {
  Words words = {"train"};
  for (const auto& [key, value] : flags) words = words + Words{"--" + key, value};
  return words + more;
}

// The size behind "at least" in a refusal, as a person would copy it.
inline std::string named_budget(const ProcessResult& refused) {
  std::smatch found;
  const bool named =
      std::regex_search(refused.err, found, std::regex("needs at least ([0-9.]+ [KMG]?i?B)"));
  return named ? found[1].str() : "";
}

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    put_file(dir_.file("config.json"), kTinyConfig);
    const ProcessResult made = run({"init", "--config", dir_.file("config.json"), "--seed", "7",
                                    "--out", dir_.file("model")});
    ASSERT_EQ(made.code, 0) << made.err;
    std::string text;
    for (int i = 0; i < 200; ++i) {
      const std::string word(static_cast<size_t>(3 + i * 29 % 70), static_cast<char>('a' + i % 26));
      text += strf("{\"text\": \"row %d %s\"}\n", i, word.c_str());
    }
    put_file(dir_.file("text.jsonl"), text);
    find_smallest_budgets();
  }

  std::unique_ptr<Process> start(Words words, ProcessLimits limits = {}) {
    words.insert(words.begin(), PAGODA_BINARY);
    return std::make_unique<Process>(std::move(words), dir_.file(strf("process-%d", ++processes_)),
                                     limits);
  }
  ProcessResult run(Words words, ProcessLimits limits = {}) {
    return start(std::move(words), limits)->wait();
  }

  // Flags of a run in `output_dir` with the smallest budgets that the program itself names.
  Flags flags(const std::string& output_dir) const {
    return {{"model.path", dir_.file("model")},
            {"data.path", dir_.file("text.jsonl")},
            {"data.sequence_len", "32"},
            {"train.tokens_per_step", "128"},
            {"train.micro_batch_tokens", "64"},
            {"train.steps", "12"},
            {"train.save_steps", "3"},
            {"train.eval_steps", "0"},
            {"train.log_steps", "1"},
            {"train.seed", "3"},
            {"train.threads", "2"},
            {"train.output_dir", dir_.file(output_dir)},
            {"optim.learning_rate", "3e-3"},
            {"optim.weight_decay", "0.1"},
            {"optim.warmup_steps", "2"},
            {"memory.device", device_},
            {"memory.host", host_}};
  }

  // The run ends with `code`, one error line, and that names everything in `names`.
  void expect_refused(const ProcessResult& result, int code, const Words& names) {
    EXPECT_EQ(result.code, code) << result.err;
    const std::string line = result.error_line();
    EXPECT_NE(line, "") << "not one last line \"pagoda: ...\":\n" << result.err;
    for (const std::string& name : names) {
      EXPECT_NE(line.find(name), std::string::npos) << name << " is not in: " << result.err;
    }
  }

  // All weights of a run's newest (or given) checkpoint as one string of bytes.
  std::string exported(const std::string& run_dir, int64_t step = -1) {
    const std::string out = dir_.file(strf("export-%d", ++exports_));
    Words words = {"export", "--checkpoint", dir_.file(run_dir), "--out", out};
    if (step >= 0) words = words + Words{"--step", std::to_string(step)};
    const ProcessResult result = run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    if (result.code != 0) return "";
    std::string bytes = get_file(out + "/model.safetensors");
    std::filesystem::remove_all(out);
    return bytes;
  }

  // By step, what lines of a type in the metrics have in a field. A step twice is an error.
  std::map<int64_t, double> logged(const std::string& run_dir, const char* type,
                                   const char* field) {
    std::map<int64_t, double> values;
    std::istringstream lines(get_file(dir_.file(run_dir) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object["type"] != type) continue;
      EXPECT_TRUE(values.emplace(object["step"], object[field]).second) << line;
    }
    return values;
  }
  std::map<int64_t, double> losses(const std::string& run_dir) {
    return logged(run_dir, "step", "loss");
  }
  std::map<int64_t, double> evals(const std::string& run_dir) {
    return logged(run_dir, "eval", "loss");
  }
  std::map<int64_t, double> checkpoints(const std::string& run_dir) {
    return logged(run_dir, "checkpoint", "step");
  }

  TempDir dir_;
  std::string device_ = "1KiB", host_ = "1KiB";

 private:
  void find_smallest_budgets() {
    for (std::string* budget : {&device_, &host_}) {
      const ProcessResult refused = run(train(flags("never")));
      *budget = named_budget(refused);
      ASSERT_NE(*budget, "") << refused.err;
    }
  }

  int processes_ = 0, exports_ = 0;
};

}  // namespace pagoda
