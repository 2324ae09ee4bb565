// Rows of tables of runs whose SHA-256 over losses, weights and optimizer state must be that of a
// run with room for everything, and which must have paged: fetched, evicted, written back.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_config.h"
#include "tests/testing/tiny_run.h"
#include "train/saved_layers.h"

namespace pagoda {

// Behind one step other bits of a gradient are in the optimizer's moments, behind a few in weights
// in bf16. Sanitized builds look for races and for misused memory, in short runs.
inline constexpr int64_t kSteps = kUnderSanitizer ? 2 : 4;

enum class Drive { kSim, kThreads, kUring };

struct PromiseRow {
  const char* what;
  int64_t more_device = 0, more_host = 0;  // KiB beyond the smallest budgets
  Drive drive = Drive::kSim;
  uint64_t seed = 1;  // of the simulated drive's completion order
  int directories = 1;
  const char* devices = "cpu";
  int64_t attention = 0;  // devices that attend; 0: all, or as many as there are shards
  PlaceKind place = PlaceKind::kStep;
  ShareKind shares = ShareKind::kSpeed;
  int page_slots = 2;
  const char* pin = "off";
  bool resumed = false;  // halfway; needs two page slots
  PlanOptions plan = {};
};

inline constexpr PlanOptions kNoPrefetch{.prefetch = false};
inline constexpr PlanOptions kAtEnd{.optimizer_at_end = true};
inline constexpr PlanOptions kWhole{.whole_layers = true};
inline constexpr PlanOptions kByMicrobatch{.microbatch_major = true};
inline constexpr PlanOptions kPadded{.padded_experts = true};
inline constexpr PlanOptions kPairs{.group_blocks = 2};
inline constexpr PlanOptions kCopied{.in_place = false};
inline constexpr PlanOptions kGroups{.group_blocks = 16};
// The order of generic offloading.
inline constexpr PlanOptions kGeneric{
    .prefetch = false, .optimizer_at_end = true, .whole_layers = true};
inline constexpr PlanOptions kAll{.prefetch = false,
                                  .optimizer_at_end = true,
                                  .whole_layers = true,
                                  .microbatch_major = true,
                                  .padded_experts = true};
inline constexpr PlanOptions kAllInGroups{.prefetch = false,
                                          .optimizer_at_end = true,
                                          .whole_layers = true,
                                          .microbatch_major = true,
                                          .group_blocks = 3,
                                          .waves_in_flight = 8};

inline std::unique_ptr<Storage> storage_of(const PromiseRow& row, const TinyRun& run) {
  if (row.drive == Drive::kSim) return std::make_unique<SimStorage>(row.seed);
  const IoKind kind = row.drive == Drive::kUring ? IoKind::kUring : IoKind::kThreads;
  auto storage = open_storage(kind, run.dir().path());
  return storage.ok() ? storage.take() : nullptr;
}

inline void configure(const PromiseRow& row, TinyRun& run) {
  RunConfig& config = run.config();
  config.train.steps = kSteps;
  config.train.save_steps = row.page_slots == 2 ? kSteps : 0;
  config.train.devices = {row.devices};
  config.parallel.attention_devices = row.attention;
  config.parallel.place = row.place;
  config.parallel.shares = row.shares;
  config.plan = row.plan;
  config.memory.pin = row.pin;
  for (int i = 0; i < row.directories && row.directories > 1; ++i) {
    config.memory.disk.push_back(run.dir().file(strf("drive-%d", i)));
  }
  run.use_minimum_budgets();
  config.memory.device = MemorySize::of_bytes(config.device_bytes() + row.more_device * kKiB);
  config.memory.host = MemorySize::of_bytes(config.host_bytes() + row.more_host * kKiB);
}

inline SessionOptions options_of(const RunConfig& config, const HfFolder& folder) {
  SessionOptions options = session_options(config);
  CHECK(set_frozen(config, folder.config(), options).ok());
  return options;
}

// Layers that a run keeps (train/saved_layers.h), and how many there are.
inline std::pair<int64_t, int64_t> layers_kept(const RunConfig& config) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const SessionOptions options = options_of(config, folder);
  const MemoryPlan memory = Session::plan(folder.config(), options).take();
  return {saved_layers(folder.config(), options, memory), folder.config().num_layers};
}

inline std::string hash_with_room(TinyRun& run) {
  const auto [kept, layers] = layers_kept(run.config());
  CHECK(kept == layers, "the reference computes again");
  run.config().train.steps = run.config().train.save_steps = kSteps;
  SimStorage storage(99);
  const Outcome outcome = run_to_end(run.config(), &storage);
  CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
  CHECK(outcome.paging.write_backs == 0, "the reference pages");
  const HfFolder folder = std::move(HfFolder::open(run.config().model.path).value());
  const bool adds = outcome.row_bytes.added > 0;
  CHECK(adds == (folder.config().num_moe_layers() > 0) && outcome.row_bytes.combined == 0,
        "the reference does not add in place");
  return outcome.sha256;
}

// Whether the plan has room for rows in place, and whether the only device adds to sums there.
inline void expect_planned_rows(const RunConfig& config, const Executor::RowBytes& bytes) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const SessionOptions options = options_of(config, folder);
  const bool in_place = Session::plan(folder.config(), options).take().in_place;
  expect_in_place(bytes, in_place, in_place && options.num_devices() == 1);
}

inline void expect_hash(const PromiseRow& row, TinyRun& run, const std::string& resident) {
  const auto storage = storage_of(row, run);
  if (!storage) GTEST_SKIP() << "SKIPPED: io_uring is not available here";
  const Outcome outcome = run_to_end(run.config(), storage.get(), row.resumed ? kSteps / 2 : -1);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.sha256, resident);
  expect_paged(outcome.paging);
  expect_planned_rows(run.config(), outcome.row_bytes);
}

struct Planned {
  MemoryPlan memory;
  PageTable pages;
};

inline Planned plan_of(const RunConfig& config) {
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const SessionOptions options = options_of(config, folder);
  return {Session::plan(folder.config(), options).take(),
          PageTable(make_run_shape(model_shape(folder.config()), options))};
}

}  // namespace pagoda
