#include "tests/testing/run_test.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words train(const Flags& flags, const Words& more) {
  Words words = {"train"};
  for (const auto& [key, value] : flags) words = words + Words{"--" + key, value};
  return words + more;
}

std::string named_budget(const ProcessResult& refused) {
  const std::string before = "needs at least ";
  const size_t begin = refused.err.find(before);
  if (begin == std::string::npos) return "";
  const std::string rest = refused.err.substr(begin + before.size());
  return rest.substr(0, rest.find('B') + 1);  // "1.5 MiB"
}

void RunTest::SetUp() {
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

std::unique_ptr<Process> RunTest::start(Words words, ProcessLimits limits) {
  return std::make_unique<Process>(program_ + words, dir_.file(strf("process-%d", ++processes_)),
                                   limits);
}

ProcessResult RunTest::run(Words words, ProcessLimits limits) {
  return start(std::move(words), limits)->wait();
}

Flags RunTest::flags(const std::string& output_dir) const {
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

void RunTest::expect_refused(const ProcessResult& result, int code, const Words& names) {
  EXPECT_EQ(result.code, code) << result.err;
  const std::string line = result.error_line();
  EXPECT_NE(line, "") << "not one last line \"pagoda: ...\":\n" << result.err;
  for (const std::string& name : names) {
    EXPECT_NE(line.find(name), std::string::npos) << name << " is not in: " << result.err;
  }
}

std::string RunTest::exported(const std::string& run_dir, int64_t step) {
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

std::map<int64_t, double> RunTest::logged(const std::string& run_dir, const char* type,
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

void RunTest::find_smallest_budgets() {
  static std::map<Words, std::pair<std::string, std::string>> known;  // by the program
  if (known.contains(program_)) {
    std::tie(device_, host_) = known[program_];
    return;
  }
  for (std::string* budget : {&device_, &host_}) {
    const ProcessResult refused = run(train(flags("never")));
    *budget = named_budget(refused);
    ASSERT_NE(*budget, "") << refused.err;
  }
  known[program_] = {device_, host_};
}

}  // namespace pagoda
