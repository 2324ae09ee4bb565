// Three epochs with ten random interruptions use each example exactly once an epoch, with the
// losses of an unbroken run. Here trainers are dropped between steps, as a kill does to what is in
// memory; tests/process/process_exactly_once_test.cc does it to the program.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/data_use.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/token_cache.h"

namespace pagoda {
namespace {

constexpr uint64_t kSeed = 8;
constexpr uint64_t kEpochs = 3;
constexpr int kInterruptions = 10;

struct History {
  std::vector<RowsUsed> steps;
  std::vector<double> losses;
};

void add_step(Trainer& trainer, History& history) {
  const int64_t first = trainer.rows_consumed();
  auto result = trainer.step();
  ASSERT_TRUE(result.ok()) << result.status().message();
  history.steps.push_back({first, trainer.rows_consumed() - first});
  history.losses.push_back(result->loss);
  // The step's numbers are those of these rows.
  const auto rows = trainer.data().microbatch(static_cast<uint64_t>(first),
                                              history.steps.back().rows);
  double weight = 0;
  for (const float w : rows.value().weights) weight += w;
  EXPECT_EQ(result->total_weight, weight);
  const std::vector<uint8_t>& padding = rows.value().padding;
  EXPECT_EQ(result->tokens, std::count(padding.begin(), padding.end(), 0));
}

// Runs to the end; saves at random steps, and drops the trainer at `interruptions` of them.
History run_interrupted(TinyRun& run, Storage* storage, int interruptions) {
  History history;
  std::vector<int64_t> stops;
  for (int i = 0; i < interruptions; ++i) {
    stops.push_back(1 + random_below(kSeed, 100 + i, run.config().train.steps - 1));
  }
  std::sort(stops.begin(), stops.end());
  for (size_t life = 0; life <= stops.size(); ++life) {
    auto started = Trainer::start(run.config(), life > 0, storage);
    CHECK(started.ok(), "%s", started.status().message().c_str());
    Trainer& trainer = **started;
    // What came after the checkpoint did not happen.
    history.steps.resize(static_cast<size_t>(trainer.steps_done()));
    history.losses.resize(history.steps.size());
    const int64_t end = life < stops.size() ? stops[life] : run.config().train.steps;
    while (trainer.steps_done() < end && !testing::Test::HasFatalFailure()) {
      add_step(trainer, history);
      const auto step = static_cast<uint64_t>(trainer.steps_done());
      const bool saves = random_below(kSeed, 1000 * life + step, 3) == 0;
      EXPECT_TRUE(!saves || trainer.save().ok());
    }
  }
  return history;
}

TEST(ExactlyOnce, EpochsWithInterruptions) {
  TinyRun run;
  run.config().train.tokens_per_step = 448;
  const auto storage = open_storage(IoKind::kThreads, run.dir().path());
  ASSERT_TRUE(storage.ok());
  int64_t rows = 0;
  {
    auto probe = Trainer::start(run.config(), false, storage.value().get());
    ASSERT_TRUE(probe.ok()) << probe.status().message();
    rows = (*probe)->data().num_rows();
  }
  const int64_t step_rows = run.config().train.tokens_per_step / run.config().data.sequence_len;
  ASSERT_NE(rows % step_rows, 0) << "the test wants steps across the ends of epochs";
  run.config().train.steps = div_ceil(static_cast<int64_t>(kEpochs) * rows, step_rows);
  run.new_run();
  const History unbroken = run_interrupted(run, storage.value().get(), 0);
  run.new_run();
  const History history = run_interrupted(run, storage.value().get(), kInterruptions);
  EXPECT_EQ(history.losses, unbroken.losses);
  EXPECT_EQ(history.steps, unbroken.steps);
  auto whole = Trainer::start(run.config(), true, storage.value().get());
  ASSERT_TRUE(whole.ok());
  expect_each_once((*whole)->data(), history.steps, kEpochs);
  std::printf("seed %llu: %lld rows an epoch, %zu steps, %d interruptions\n",
              (unsigned long long)kSeed, (long long)rows, history.steps.size(), kInterruptions);
}

}  // namespace
}  // namespace pagoda
