// The built program over three epochs with ten random interruptions (kill -9 and SIGTERM): what its
// metrics say it used is each example exactly once an epoch, and its weights are those of a run
// that nobody interrupted.
#include <signal.h>

#include <chrono>
#include <random>
#include <sstream>
#include <thread>

#include "base/bytes.h"
#include "base/check.h"
#include "config/run_config.h"
#include "model/json.h"
#include "tests/testing/data_use.h"
#include "tests/testing/files.h"
#include "tests/testing/interrupted_run_test.h"
#include "tests/testing/mpirun.h"

namespace pagoda {
namespace {

constexpr uint32_t kSeed = 20240611;
constexpr int kInterruptions = 10;
constexpr uint64_t kEpochs = 3;

class ExactlyOnceTest : public InterruptedRunTest {
 protected:
  // 60 examples, some longer than a row.
  void make_text() {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      const std::string word(static_cast<size_t>(3 + i * 29 % 70),
                             static_cast<char>('a' + i % 26));
      text += strf("{\"text\": \"row %d %s\"}\n", i, word.c_str());
    }
    put_file(dir_.file("text.jsonl"), text);
  }
  // The data as the run in `run_dir` packed it; its own token cache must do.
  Dataset dataset(const std::string& run_dir) {
    const Tokenizer tokenizer = Tokenizer::open(dir_.file("model")).value();
    const ExampleOptions options = RunConfig().example_options(dir_.file("model")).value();
    auto file = TokenFile::open_or_create(dir_.file(run_dir) + "/tokens.bin",
                                          {dir_.file("text.jsonl")}, tokenizer, options);
    CHECK(file.ok() && file->reused());
    return std::move(Dataset::create(file.take(), {32, 3}).value());
  }
  std::vector<RowsUsed> rows_used(const std::string& run_dir) {
    std::vector<RowsUsed> steps;
    std::istringstream lines(get_file(dir_.file(run_dir) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object["type"] == "step") steps.push_back({object["first_row"], object["rows"]});
    }
    return steps;
  }
};

TEST_F(ExactlyOnceTest, ThreeEpochsWithTenInterruptions) {
  make_text();
  Flags flags = this->flags("run");
  flags["train.save_steps"] = "4";
  // How many rows there are is known when a run has packed them.
  flags["train.steps"] = "2";
  flags["train.output_dir"] = dir_.file("probe");
  const ProcessResult probe = run(train(flags));
  ASSERT_EQ(probe.code, 0) << probe.err;
  const int64_t rows = dataset("probe").num_rows(), step_rows = 4;
  ASSERT_NE(rows % step_rows, 0) << "the test wants steps across the ends of epochs";
  EXPECT_NE(probe.err.find(strf("data: 60 examples, ")), std::string::npos) << probe.err;
  flags["train.steps"] = std::to_string(div_ceil(kEpochs * rows, step_rows));
  make_reference(flags);

  flags["train.output_dir"] = dir_.file("run");
  std::mt19937 random(kSeed);
  int kills = 0, stops = 0;
  Words resume;
  while (kills + stops < kInterruptions) {
    const bool kill = (kills + stops) % 2 == 0;
    const auto process = start(train(flags, resume));
    // Once it trains, a while that lets ten such lives end before the run does.
    const int64_t most_us = run_us_ / (kInterruptions + 2);
    process->wait_for_err("tok/s");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % most_us));
    process->send(kill ? SIGKILL : SIGTERM);
    const ProcessResult ended = process->wait();
    ASSERT_TRUE(ended.code == 75 || ended.code == 128 + SIGKILL)
        << "seed " << kSeed << ": ended with " << ended.code << " before it was interrupted "
        << kInterruptions << " times\n" << ended.err;
    ++(kill ? kills : stops);
    resume = {"--resume"};
  }
  const ProcessResult last = run(train(flags, resume));
  ASSERT_EQ(last.code, 0) << last.err;
  expect_reference("run");
  expect_each_once(dataset("run"), rows_used("run"), kEpochs);
  EXPECT_EQ(rows_used("run"), rows_used("reference"));
  std::printf("seed %u: %lld rows an epoch, %s steps, %d kills, %d stops\n", kSeed, (long long)rows,
              flags["train.steps"].c_str(), kills, stops);
}

// The same of two processes, then three, then one: whoever does a step, it has the rows that are
// next.
TEST_F(ExactlyOnceTest, TwoEpochsOnOtherNumbersOfRanks) {
  if (!has_mpirun()) GTEST_SKIP() << "SKIPPED: built without MPI, or there is no mpirun";
  set_mpirun_variables();
  make_text();
  Flags flags = this->flags("reference");
  flags["memory.device"] = flags["memory.host"] = "16MiB";
  flags["train.threads"] = "1";
  flags["train.micro_batch_tokens"] = "32";
  flags["optim.schedule"] = "constant";
  flags["train.steps"] = "2";
  ASSERT_EQ(run(train(flags)).code, 0);
  constexpr uint64_t kTwo = 2;
  const auto last = div_ceil(kTwo * dataset("reference").num_rows(), int64_t{4});
  flags["train.steps"] = std::to_string(last);
  ASSERT_EQ(run(train(flags, {"--resume"})).code, 0);
  flags["train.output_dir"] = dir_.file("ranks");
  const std::vector<std::pair<int, int64_t>> parts = {{2, last / 3}, {3, 2 * last / 3}, {1, last}};
  for (const auto& [processes, steps] : parts) {
    flags["train.steps"] = std::to_string(steps);
    const Words words = train(flags, processes == 2 ? Words() : Words{"--resume"});
    const ProcessResult part =
        Process(mpirun_words(processes) + Words{PAGODA_BINARY} + words, dir_.file("part")).wait();
    ASSERT_EQ(part.code, 0) << part.err;
  }
  expect_each_once(dataset("ranks"), rows_used("ranks"), kTwo);
  EXPECT_EQ(rows_used("ranks"), rows_used("reference"));
  EXPECT_EQ(losses("ranks"), losses("reference"));
}

}  // namespace
}  // namespace pagoda
