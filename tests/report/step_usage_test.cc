// What a step used of the machine, against runs whose answer is known.
#include "report/step_usage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

constexpr int64_t kUs = 1000000;

TEST(StepUsage, SharesOfAKnownStep) {
  SessionCounters before, after;
  before.pager = {.uses = 100, .hits = 50, .device_reads = 10, .device_hits = 5, .host_hits = 1};
  after.pager = {.uses = 200, .hits = 130, .device_reads = 30, .device_hits = 20, .host_hits = 4};
  before.prefetches = {.brought = 7, .used = 7};
  after.prefetches = {.brought = 11, .used = 10};
  before.devices[0].idle_us = 9 * kUs;
  after.devices[0].idle_us = 10 * kUs;
  after.devices[0].waited_us[static_cast<size_t>(WorkKind::kFetch)] = 3 * kUs;
  after.devices[0].waited_us[static_cast<size_t>(WorkKind::kOptimizer)] = 1 * kUs;
  after.optimizer.busy_us = 4 * kUs;
  after.host_updates = 5;
  const StepUsage usage(before, after, /*step_s=*/10);
  EXPECT_DOUBLE_EQ(usage.hit_rate, 0.8);
  EXPECT_DOUBLE_EQ(usage.device_hit_rate, 15.0 / 20);
  EXPECT_DOUBLE_EQ(usage.host_hit_rate, 3.0 / 5);
  EXPECT_DOUBLE_EQ(usage.stall_s(), 5);
  EXPECT_DOUBLE_EQ(usage.stall_share(), 0.5);
  EXPECT_EQ(usage.main_stall(), "fetch");
  EXPECT_DOUBLE_EQ(usage.optimizer_s, 4);
  EXPECT_DOUBLE_EQ(usage.optimizer_hidden, 0.75);
  EXPECT_EQ(usage.prefetches, 4);
  EXPECT_DOUBLE_EQ(usage.prefetch_accuracy, 0.75);
}

// Two devices, the second half as fast. Layer 0 ends with the second at 30 / 1 where 60 rows over 3
// would end at 20, layer 2 with the first at 40 / 2 where 50 over 3 would end at 50 / 3.
TEST(StepUsage, OfSeveralDevices) {
  SessionCounters before, after;
  before.devices.resize(2);
  after.devices.resize(2);
  after.devices[0].busy_us = 9 * kUs;
  after.devices[1].busy_us = 6 * kUs;
  after.devices[1].waited_us[static_cast<size_t>(WorkKind::kLink)] = 4 * kUs;
  before.expert_rows = {1, 2, 0, 0, 3, 4};
  after.expert_rows = {31, 32, 0, 0, 43, 14};
  after.expert_speeds = {2, 1};
  after.attended = {96, 32};
  before.links[{0, 1}] = {2, 100, 10};
  after.links[{0, 1}] = {5, 700, 40};
  after.links[{1, 0}] = {1, 64, 0};
  const StepUsage usage(before, after, /*step_s=*/10);
  EXPECT_EQ(usage.busy_shares(), std::pair(0.6, 0.9));
  EXPECT_EQ(usage.devices[0].expert_rows, 70);
  EXPECT_EQ(usage.devices[1].expert_rows, 40);
  EXPECT_DOUBLE_EQ(usage.imbalance, (30.0 + 20) / (20 + 50.0 / 3));
  EXPECT_EQ(usage.links.at({0, 1}), (Link::Count{3, 600, 30}));
  MetricsFields fields;
  usage.append_to(fields);
  const auto json = nlohmann::json::parse(metrics_line(MetricsType::kStep, fields));
  EXPECT_EQ(json["devices"]["busy_s"], (std::vector<double>{9, 6}));
  EXPECT_EQ(json["devices"]["stall_s"]["link"], (std::vector<double>{0, 4}));
  EXPECT_EQ(json["devices"]["tokens"], (std::vector<int64_t>{96, 32}));
  EXPECT_EQ(json["devices"]["expert_rows"], (std::vector<int64_t>{70, 40}));
  EXPECT_EQ(json["links"]["to"], (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(json["links"]["bytes"], (std::vector<int64_t>{600, 64}));
  EXPECT_EQ(json["links"]["rows"], (std::vector<int64_t>{30, 0}));
}

TEST(StepUsage, WhatDidNotHappenHasNoRate) {
  const StepUsage usage(SessionCounters(), SessionCounters(), 1);
  EXPECT_TRUE(std::isnan(usage.device_hit_rate));
  EXPECT_TRUE(std::isnan(usage.host_hit_rate));
  EXPECT_TRUE(std::isnan(usage.optimizer_hidden));
  EXPECT_TRUE(std::isnan(usage.prefetch_accuracy));
  EXPECT_EQ(usage.stall_share(), 0);
  EXPECT_EQ(usage.main_stall(), "");
  MetricsFields fields;
  usage.append_to(fields);
  const auto json = nlohmann::json::parse(metrics_line(MetricsType::kStep, fields));
  EXPECT_TRUE(json["prefetch_accuracy"].is_null());
  EXPECT_EQ(json["stall_s"]["issue"], 0.0);
  EXPECT_EQ(json["stall_s"]["write_back"], 0.0);
  EXPECT_FALSE(json.contains("devices")) << "there is one";
}

// Steps of a tiny run: what they used, one by one.
std::vector<StepUsage> usage_of_steps(TinyRun& run, Storage* storage) {
  auto started = Trainer::start(run.config(), false, storage);
  CHECK(started.ok(), "%s", started.status().message().c_str());
  std::vector<StepUsage> usages;
  while ((*started)->steps_done() < run.config().train.steps) {
    const SessionCounters before = SessionCounters::read((*started)->session());
    const int64_t begin_us = monotonic_us();
    CHECK((*started)->step().ok());
    const double step_s = static_cast<double>(monotonic_us() - begin_us) / 1e6;
    usages.emplace_back(before, SessionCounters::read((*started)->session()), step_s);
  }
  return usages;
}

TEST(StepUsage, WithRoomForEverythingNothingMoves) {
  TinyRun run;
  run.config().train.save_steps = 0;
  run.config().train.steps = 24;
  SimStorage storage(5);
  int quiet_steps = 0;  // those that met no expert for the first time
  for (const StepUsage& usage : usage_of_steps(run, &storage)) {
    const int64_t down_bytes = usage.write_back_bytes + usage.download_bytes;
    if (usage.fetch_bytes + usage.upload_bytes + down_bytes > 0) continue;
    ++quiet_steps;
    EXPECT_EQ(usage.device_hit_rate, 1);
    EXPECT_TRUE(std::isnan(usage.optimizer_hidden)) << "it ran on the device";
    EXPECT_EQ(usage.prefetches, 0);
    EXPECT_TRUE(std::isnan(usage.host_hit_rate)) << "nothing was missing on the device";
    for (const auto& [cause, stall] : usage.stalls) {
      if (cause == "issue" || cause == "wake") continue;
      EXPECT_EQ(stall, 0) << cause;
    }
  }
  EXPECT_GT(quiet_steps, 0);
}

TEST(StepUsage, APagedStepAddsUp) {
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    TinyRun run;
    run.config().optim.clip = clip;
    run.use_minimum_budgets();
    const int64_t device_bytes = run.config().device_bytes() + 200 * kKiB;  // slots to spare
    run.config().memory.device = MemorySize::of_bytes(device_bytes);
    SimStorage storage(6);
    int64_t prefetches = 0;
    double optimizer_s = 0;
    int hidden = 0;
    for (const StepUsage& usage : usage_of_steps(run, &storage)) {
      EXPECT_GT(usage.device_hit_rate, 0);
      EXPECT_LT(usage.device_hit_rate, 1);
      EXPECT_GE(usage.host_hit_rate, 0);
      EXPECT_LE(usage.host_hit_rate, 1);
      EXPECT_GT(usage.fetch_bytes, 0);
      EXPECT_GT(usage.upload_bytes, 0);
      // The readings of the clock at both ends lie outside the step that was timed.
      EXPECT_LE(usage.stall_s(), usage.step_s + 0.001);
      optimizer_s += usage.optimizer_s;
      if (!std::isnan(usage.optimizer_hidden)) {
        ++hidden;
        EXPECT_GE(usage.optimizer_hidden, 0);
        EXPECT_LE(usage.optimizer_hidden, 1);
      }
      prefetches += usage.prefetches;
      if (usage.prefetches > 0) {
        EXPECT_GE(usage.prefetch_accuracy, 0);
        EXPECT_LE(usage.prefetch_accuracy, 1);
      }
    }
    EXPECT_TRUE(prefetches > 0 || clip == ClipKind::kPerExpert)
        << "eager updates have brought up all there is room for";
    EXPECT_GT(optimizer_s, 0);
    EXPECT_GE(hidden, 5) << "all steps but the first, which has nothing pending yet";
  }
}

TEST(PrefetchScore, CountsWhatWasBroughtAndStillThereInItsForward) {
  const std::vector<SlotClass> classes = {{.device_slots = {2}, .host_slots = 4}};
  Residency residency(1, classes, {0, 0, 0, 0});
  std::vector<Move> moves;
  std::vector<int32_t> slots;
  for (PageId page = 0; page < 4; ++page) residency.set_on_disk(page);
  const auto task = [](TaskKind kind, int64_t record) {
    Task t;
    t.kind = kind;
    t.record = record;
    t.microbatch = kind == TaskKind::kEmbed ? 0 : -1;
    const Access access = kind == TaskKind::kPrefetch ? Access::kPrefetch : Access::kRead;
    t.use(static_cast<PageId>(record), Place::on_device(0), access);
    return t;
  };
  PrefetchScore score;
  const auto run = [&](TaskKind kind, int64_t record) {
    const Task t = task(kind, record);
    score.before(t, residency);
    residency.acquire(t.used(), moves, slots);
    residency.release(t.used());
    score.after(t, residency);
  };
  run(TaskKind::kPrefetch, 0);
  run(TaskKind::kPrefetch, 0);  // there already, and not yet used
  run(TaskKind::kExpert, 0);
  run(TaskKind::kExpert, 0);  // its second block
  EXPECT_EQ(score.counts().brought, 1);
  EXPECT_EQ(score.counts().used, 1);
  run(TaskKind::kPrefetch, 1);
  run(TaskKind::kPrefetch, 2);
  run(TaskKind::kExpert, 3);  // takes the place of 1
  run(TaskKind::kExpert, 1);
  EXPECT_EQ(score.counts().brought, 3);
  EXPECT_EQ(score.counts().used, 1) << "what was evicted before its turn was of no use";
  run(TaskKind::kPrefetch, 0);
  run(TaskKind::kEmbed, 3);  // the next forward
  run(TaskKind::kPrefetch, 0);
  run(TaskKind::kExpert, 0);
  EXPECT_EQ(score.counts().used, 1) << "what an earlier forward brought is no prefetch";
}

TEST(ExpertLoad, OfKnownCounts) {
  const ExpertLoad even = expert_load(std::vector<int64_t>{5, 5, 5, 5});
  EXPECT_DOUBLE_EQ(even.max_over_mean, 1);
  EXPECT_NEAR(even.entropy, 1, 1e-15);
  EXPECT_EQ(even.dead, 0);
  const ExpertLoad one = expert_load(std::vector<int64_t>{0, 9, 0, 0});
  EXPECT_DOUBLE_EQ(one.max_over_mean, 4);
  EXPECT_DOUBLE_EQ(one.entropy, 0);
  EXPECT_EQ(one.dead, 3);
  const ExpertLoad half = expert_load(std::vector<int64_t>{2, 2, 0, 0});
  EXPECT_DOUBLE_EQ(half.entropy, 0.5);
  const ExpertLoad nobody = expert_load(std::vector<int64_t>{0, 0});
  EXPECT_EQ(nobody.dead, 2);
  EXPECT_EQ(nobody.max_over_mean, 0);
  EXPECT_EQ(expert_load(std::vector<int64_t>{3}).entropy, 0);
}

TEST(ExpertLoad, DenseLayersAreLeftOut) {
  const auto json =
      nlohmann::json::parse(expert_loads({{1, 3}, {}, {0, 2}}).json);
  EXPECT_EQ(json["layer"], (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(json["max_over_mean"], (std::vector<double>{1.5, 2}));
  EXPECT_EQ(json["dead"], (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(json["entropy"].size(), 2u);
  EXPECT_EQ(json["entropy"][1], 0.0);
}

}  // namespace
}  // namespace pagoda
