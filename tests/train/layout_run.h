// Runs of twelve microbatches for tables of layouts (zebra, pipelines): a row's model and sums on
// one device, and its budgets.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {

// Behind the first step other bits of a gradient are in the optimizer's moments.
inline constexpr int64_t kLayoutSteps = 2;

enum class Budget { kMinimum, kMiddle, kAmple };

// `Row` has: changes (of the tiny model), chunks, shards, expert_shards, clip, correction_speed.
template <typename Row>
std::unique_ptr<TinyRun> run_of(const Row& row) {
  auto run = std::make_unique<TinyRun>(DType::kBF16, tiny_with(row.changes).c_str());
  RunConfig& config = run->config();
  config.data.sequence_len = config.train.micro_batch_tokens = 16;
  config.train.tokens_per_step = 12 * 16;
  config.train.steps = config.train.save_steps = kLayoutSteps;
  config.train.eval_steps = kLayoutSteps / 2;
  config.train.chunks = row.chunks;
  config.train.shards = row.shards;
  config.train.expert_shards = row.expert_shards;
  config.optim.clip = row.clip;
  config.optim.correction_speed = row.correction_speed;
  return run;
}

// The hash of the row's run on one device, which rows of the same model and sums share.
template <typename Row>
std::string on_one_device(const Row& row) {
  using Sums = std::tuple<std::string, int64_t, int64_t, int64_t, ClipKind, double>;
  static std::map<Sums, std::string> known;
  std::string& sha256 = known[Sums(row.changes, row.chunks, row.shards, row.expert_shards, row.clip,
                                   row.correction_speed)];
  if (!sha256.empty()) return sha256;
  const std::unique_ptr<TinyRun> run = run_of(row);
  SimStorage storage(99);
  const Outcome outcome = run_to_end(run->config(), &storage);
  CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
  return sha256 = outcome.sha256;
}

inline void set_budgets(Budget budget, TinyRun& run) {
  if (budget == Budget::kAmple) return;
  run.use_minimum_budgets();
  if (budget == Budget::kMinimum) return;
  RunConfig& config = run.config();
  config.memory.device = MemorySize::of_bytes(config.device_bytes() + 150 * kKiB);
  config.memory.host = MemorySize::of_bytes(config.host_bytes() + 300 * kKiB);
}

}  // namespace pagoda
