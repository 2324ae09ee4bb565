// A training run moves exactly the bytes that its resolved plan predicts, and has as many in slots:
// pager and page file count them, and a replay of the plan over a copy of the residency predicts
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "plan/memory/memory_plan.h"
#include "tests/testing/plan/random_plan.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_config.h"
#include "tests/testing/tiny_run.h"
#include "train/batch.h"

namespace pagoda {
namespace {

PageTraffic counted(Pager& pager) {
  const Pager::Counters& c = pager.counters();
  return {{c.fetches, c.fetch_bytes},
          {c.uploads, c.upload_bytes},
          {c.downloads, c.download_bytes},
          {c.write_backs, c.write_back_bytes}};
}

std::string text(const PageTraffic& t) {
  const auto link = [](const PageTraffic::Link& l) {
    return strf("%lld (%lld B)", (long long)l.moves, (long long)l.bytes);
  };
  return "fetch " + link(t.fetch) + ", upload " + link(t.upload) + ", download " +
         link(t.download) + ", write back " + link(t.write_back);
}

DryRun planned_run(const Session& session, bool skip_untouched) {
  return DryRun(session.shape(), session.pages(), session.memory().classes,
                session.memory().state_on_device,
                Ledger(skip_untouched, 0,
                       std::vector<int64_t>(session.table().records.size(), 0)));
}

// [device], and behind them the host's: the most bytes of pages in slots, as the pager counted.
std::vector<int64_t> most_held(const Session& session) {
  std::vector<int64_t> most;
  for (int d = 0; d < session.shape().devices; ++d) {
    most.push_back(session.pager().peak_bytes(Place::on_device(d)));
  }
  most.push_back(session.pager().peak_bytes(Place::host()));
  return most;
}

// The same as predicted by a replay that began when so many were counted.
std::vector<int64_t> most_predicted(const Replay& replay, std::vector<int64_t> most) {
  const int devices = static_cast<int>(most.size()) - 1;
  for (int p = 0; p <= devices; ++p) {
    const Place place = p < devices ? Place::on_device(p) : Place::host();
    const auto i = static_cast<size_t>(p);
    most[i] = std::max(most[i], replay.peak_bytes(place));
  }
  return most;
}

constexpr int64_t kSteps = 3;  // the third fetches what the second has left

// Trains, and beside it plans from the routings alone; all steps in all counters must agree.
PageTraffic expect_predicted(const RunConfig& config) {
  SimStorage storage(13);
  auto started = Trainer::start(config, false, &storage);
  CHECK(started.ok(), "%s", started.status().message().c_str());
  Trainer& trainer = **started;
  Session& session = trainer.session();
  Replay replay(&session.pages(), session.pager().residency());
  DryRun planned = planned_run(session, config.optim.untouched == UntouchedKind::kSkip);
  session.pager().drain();
  const PageTraffic start = counted(session.pager());
  const std::vector<int64_t> held_at_start = most_held(session);
  const PageFile::Counters file_start = session.file().counters();
  PageTraffic all;
  for (int64_t step = 1; step <= kSteps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const auto result = trainer.step();
    CHECK(result.ok(), "%s", result.status().message().c_str());
    CHECK(!result.value().skipped);
    planned.train(result.value().routing, [&](const StepPiece& piece) {
      foresee(piece, replay);
      for (const Task& task : piece.tasks) replay.place(task);
    });
    session.pager().drain();
    all = counted(session.pager()) - start;
    EXPECT_EQ(all, replay.traffic())
        << "counted " << text(all) << "\npredicted " << text(replay.traffic());
    EXPECT_EQ(most_held(session), most_predicted(replay, held_at_start));
    const PageFile::Counters file = session.file().counters();
    EXPECT_EQ(file.reads - file_start.reads, all.fetch.moves);
    EXPECT_EQ(file.writes - file_start.writes, all.write_back.moves);
    EXPECT_EQ(file.read_bytes - file_start.read_bytes,
              all.fetch.bytes + kPageHeaderBytes * all.fetch.moves);
    EXPECT_EQ(file.write_bytes - file_start.write_bytes,
              all.write_back.bytes + kPageHeaderBytes * all.write_back.moves);
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(most_held(session).front(), held_at_start.front());
  return all;
}

TEST(PredictedBytes, AreThoseCountedForEveryBudget) {
  TinyRun run;
  run.use_minimum_budgets();
  const int64_t device = run.config().device_bytes(), host = run.config().host_bytes();
  for (const auto& [more_device, more_host] :
       {std::pair{int64_t{0}, int64_t{0}}, {200 * kKiB, int64_t{0}}, {int64_t{0}, 300 * kKiB},
        {150 * kKiB, 800 * kKiB}, {600 * kKiB, 3 * kMiB}, {40 * kMiB, 40 * kMiB}}) {
    for (ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
      if (kUnderThreadSanitizer && clip == ClipKind::kGlobal) continue;
      SCOPED_TRACE(testing::Message() << more_device << " B more on the device, " << more_host
                                      << " B more in host memory, clip "
                                      << static_cast<int>(clip));
      run.new_run();
      run.config().optim.clip = clip;
      run.config().memory.device = MemorySize::of_bytes(device + more_device);
      run.config().memory.host = MemorySize::of_bytes(host + more_host);
      const PageTraffic moved = expect_predicted(run.config());
      if (more_device + more_host < kMiB) {
        EXPECT_GT(moved.fetch.moves, 0);
        EXPECT_GT(moved.write_back.moves, 0);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Weights of all experts are uploaded where rows are, or of those with more bytes of rows: experts
// of eight hidden units, whose weights have as many bytes as 18.7 of about 32 rows.
TEST(PredictedBytes, AreThoseCountedWithGuests) {
  for (const Sharing sharing : {Sharing::kData, Sharing::kAuto}) {
    for (const int64_t devices : {2, 3}) {
      TinyRun run(DType::kBF16,
                  tiny_with(R"({"num_experts": 4, "moe_intermediate_size": 8})").c_str());
      run.config().train.devices = cpus(devices);
      run.config().train.micro_batch_tokens = 32;
      run.config().train.expert_shards = 4;
      run.use_minimum_budgets();
      run.config().parallel.sharing = Sharing::kRows;
      const PageTraffic of_rows = expect_predicted(run.config());
      for (const int64_t more : {int64_t{0}, 60 * kKiB}) {
        SCOPED_TRACE(testing::Message() << devices << " devices, " << more << " B more, sharing "
                                        << static_cast<int>(sharing));
        run.new_run();
        run.config().parallel.sharing = sharing;
        run.use_minimum_budgets();
        run.config().memory.device = MemorySize::of_bytes(run.config().device_bytes() + more);
        const PageTraffic moved = expect_predicted(run.config());
        EXPECT_GT(moved.fetch.moves, 0);
        if (more == 0) {
          EXPECT_GT(moved.upload.moves, of_rows.upload.moves);
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(PredictedBytes, AreThoseCountedForEveryPlan) {
  const PlanOptions plans[] = {{.prefetch = false}, {.optimizer_at_end = true},
                               {.whole_layers = true}, {.microbatch_major = true},
                               {.padded_experts = true}, {false, true, true, true, true}};
  for (const PlanOptions& plan : plans) {
    for (int64_t devices : {1, 2}) {
      if (kUnderThreadSanitizer && devices == 1) continue;
      TinyRun run;
      run.config().plan = plan;
      run.config().train.devices = cpus(devices);
      run.config().optim.untouched = UntouchedKind::kSkip;
      run.use_minimum_budgets();
      EXPECT_GT(expect_predicted(run.config()).fetch.moves, 0);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// kTinyFamilies has every family of the table.
TEST(PredictedBytes, AreThoseCountedForEveryFamily) {
  std::string names;
  for (const char* family : kTinyFamilies) {
    SCOPED_TRACE(family);
    TinyRun run(DType::kBF16, tiny_with(family).c_str());
    run.config().train.devices = cpus(2);
    run.use_minimum_budgets();
    auto folder = HfFolder::open(run.config().model.path);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    names += (names.empty() ? "" : ", ") + std::string(folder->config().family->model_type);
    if (kUnderThreadSanitizer) continue;
    const PageTraffic moved = expect_predicted(run.config());
    EXPECT_GT(moved.fetch.moves, 0);
    EXPECT_GT(moved.write_back.moves, 0);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(names, family_names(false));
}

// A frozen router only shortens its layers' state; frozen experts are read and never written.
TEST(PredictedBytes, AreThoseCountedWhereTensorsAreFrozen) {
  std::optional<PageTraffic> of_all;
  for (const std::vector<std::string>& freeze : std::vector<std::vector<std::string>>{
           {}, {"router"}, {"embed", "*.k_proj.weight"}, {"router", "experts"}}) {
    TinyRun run;
    run.config().optim.untouched = UntouchedKind::kSkip;
    run.use_minimum_budgets();
    run.config().train.freeze = freeze;
    const PageTraffic moved = expect_predicted(run.config());
    EXPECT_GT(moved.fetch.moves, 0);
    if (testing::Test::HasFailure()) return;
    if (!of_all) of_all = moved;
    if (freeze.size() < 2 || freeze[1] != "experts") continue;
    EXPECT_LT(moved.write_back.bytes, of_all->write_back.bytes / 2);
    EXPECT_LT(moved.fetch.bytes, of_all->fetch.bytes);
    std::printf("frozen experts: %lld B written, %lld B read; with all trained %lld and %lld\n",
                (long long)moved.write_back.bytes, (long long)moved.fetch.bytes,
                (long long)of_all->write_back.bytes, (long long)of_all->fetch.bytes);
  }
}

struct RecordBytes {
  int64_t weights = 0, state = 0, gradient = 0;
};

// The bytes of all experts, and of all layers' dense parts, without what pages are rounded up by.
std::pair<RecordBytes, RecordBytes> bytes_with(const std::vector<std::string>& freeze) {
  TinyRun run;
  run.config().train.freeze = freeze;
  SimStorage storage(13);
  auto trainer = Trainer::start(run.config(), false, &storage).take();
  const RunShape& shape = trainer->session().shape();
  std::pair<RecordBytes, RecordBytes> of;
  for (const RecordShape& record : shape.records) {
    if (record.layer < 0) continue;
    RecordBytes& bytes = record.expert >= 0 ? of.first : of.second;
    bytes.weights += record.num_elements * shape.dtype_bytes;
    bytes.state += record.state_bytes;
    bytes.gradient += record.trained_elements() * shape.dtype_bytes;
  }
  return of;
}

// Counted by hand: tiny_run.h's model has 24 experts in two of its layers, each of three matrices
// of 24 x 32, and routers of 24 x 32. A number has two bytes as a weight and as a gradient; as
// state it has a remainder of two and two moments of four.
TEST(PredictedBytes, WhatIsFrozenHasNoStateAndNoGradient) {
  constexpr int64_t kExperts = 2 * 24 * 3 * 24 * 32, kRouters = 2 * 24 * 32;
  const auto [experts, layers] = bytes_with({});
  EXPECT_EQ(experts.weights, 2 * kExperts);
  EXPECT_EQ(experts.state, 10 * kExperts);
  EXPECT_EQ(experts.gradient, 2 * kExperts);
  const auto [same, without_routers] = bytes_with({"router"});
  EXPECT_EQ(same.state, experts.state);
  EXPECT_EQ(layers.state - without_routers.state, 10 * kRouters);
  EXPECT_EQ(layers.gradient - without_routers.gradient, 2 * kRouters);
  EXPECT_EQ(layers.weights, without_routers.weights);
  const auto [frozen, others] = bytes_with({"experts"});
  EXPECT_EQ(frozen.weights, 2 * kExperts) << "they are read";
  EXPECT_EQ(frozen.state, 0);
  EXPECT_EQ(frozen.gradient, 0);
  EXPECT_EQ(others.state, layers.state);
}

// Weights that are read once a chunk, on devices of which one attends.
TEST(PredictedBytes, AreThoseCountedInZebrasOrder) {
  for (const char* devices : {"cpu*2", "cpu*3"}) {
    for (const char* offloaded : {"0", "5"}) {
      TinyRun run;
      run.config().train.micro_batch_tokens = run.config().data.sequence_len;
      run.config().train.chunks = 2;
      run.config().train.devices = {devices};
      run.config().parallel.layout = LayoutKind::kZebra;
      run.config().parallel.attention_devices = 1;
      run.config().parallel.offloaded = {offloaded};
      run.config().optim.untouched = UntouchedKind::kSkip;
      run.use_minimum_budgets();
      EXPECT_GT(expect_predicted(run.config()).fetch.moves, 0);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Stages of one device and of two, these also in zebra's order, in each order of stages.
TEST(PredictedBytes, AreThoseCountedInPipelines) {
  for (const PipelineOrder order : {PipelineOrder::kGpipe, PipelineOrder::kOneForwardOneBackward,
                                    PipelineOrder::kBreadthFirst}) {
    for (const auto& [devices, layout] : {std::pair{"cpu*2", LayoutKind::kPipeline},
                                          {"cpu*4", LayoutKind::kPipeline},
                                          {"cpu*4", LayoutKind::kZebra}}) {
      TinyRun run;
      run.config().train.micro_batch_tokens = run.config().data.sequence_len;
      run.config().train.chunks = 2;
      run.config().train.devices = {devices};
      run.config().parallel.layout = layout;
      run.config().parallel.stages = 2;
      run.config().parallel.order = order;
      run.config().optim.untouched = UntouchedKind::kSkip;
      run.use_minimum_budgets();
      EXPECT_GT(expect_predicted(run.config()).fetch.moves, 0);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Experts that two groups of devices have, of equal size and not.
TEST(PredictedBytes, AreThoseCountedWithCopies) {
  for (const char* devices : {"cpu*4", "cpu*5"}) {
    for (const LayoutKind layout : {LayoutKind::kZebra, LayoutKind::kExperts}) {
      TinyRun run;
      run.config().train.micro_batch_tokens = run.config().data.sequence_len / 2;
      run.config().data.sequence_len /= 2;
      run.config().train.chunks = 2;
      run.config().train.shards = run.config().train.expert_shards = 2;
      run.config().train.devices = {devices};
      run.config().parallel.layout = layout;
      run.config().parallel.copies = 2;
      run.config().optim.untouched = UntouchedKind::kSkip;
      run.use_minimum_budgets();
      EXPECT_GT(expect_predicted(run.config()).fetch.moves, 0);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(PredictedBytes, AreThoseCountedWithPinnedExperts) {
  TinyRun run;
  run.use_minimum_budgets();
  run.config().memory.device = MemorySize::of_bytes(run.config().device_bytes() + 100 * kKiB);
  std::optional<PageTraffic> of_none;
  for (const char* pin : {"off", "25%", "100%"}) {
    SCOPED_TRACE(pin);
    run.new_run();
    run.config().memory.pin = pin;
    const PageTraffic moved = expect_predicted(run.config());
    EXPECT_GT(moved.fetch.moves, 0);
    if (!of_none) {
      of_none = moved;
    } else {
      EXPECT_NE(moved, *of_none) << "what is kept changes what moves";
    }
    if (testing::Test::HasFailure()) return;
  }
}

// Evaluations between steps, which are no part of what is expected to come again.
TEST(PredictedBytes, AreThoseCountedWithEvaluations) {
  for (const bool microbatch_major : {false, true}) {
    TinyRun run;
    run.config().plan.microbatch_major = microbatch_major;
    run.use_minimum_budgets();
    SimStorage storage(13);
    auto trainer = Trainer::start(run.config(), false, &storage).take();
    Session& session = trainer->session();
    Ledger ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0));
    StepRunner runner(&session, &ledger, 1.0);
    DryRun planned = planned_run(session, false);
    Replay replay(&session.pages(), session.pager().residency());
    const auto visit = [&](const StepPiece& piece) {
      foresee(piece, replay);
      for (const Task& task : piece.tasks) replay.place(task);
    };
    session.pager().drain();
    const PageTraffic start = counted(session.pager());
    for (uint64_t step = 0; step < 6; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      const auto batch = make_batch(trainer->data(), 4 * step, 2, 2).take();
      planned.train(runner.train(batch, 1e-3).take().routing, visit);
      if (step % 3 == 1) {
        ASSERT_TRUE(runner.drain().ok());
        planned.drain(visit);
        planned.evaluate(runner.evaluate(batch).take().routing, visit);
      }
      session.pager().drain();
      const PageTraffic all = counted(session.pager()) - start;
      ASSERT_EQ(all, replay.traffic())
          << "counted " << text(all) << "\npredicted " << text(replay.traffic());
    }
    EXPECT_GT(replay.traffic().fetch.moves, 0);
  }
}

TEST(PredictedBytes, AreThoseCountedForEveryNumberOfMicrobatches) {
  for (int64_t tokens : {32, 64, 128}) {
    TinyRun run;
    run.config().train.micro_batch_tokens = tokens;
    run.use_minimum_budgets();
    EXPECT_GT(expect_predicted(run.config()).fetch.moves, 0);
    if (testing::Test::HasFailure()) return;
  }
}

Routing spread_over(const Routing& of_one, int64_t microbatches) {
  Routing routing(static_cast<size_t>(microbatches), LayerRouting(of_one[0].size()));
  for (size_t l = 0; l < of_one[0].size(); ++l) {
    const LayerRouting layer = spread(of_one[0][l], microbatches);
    for (size_t b = 0; b < routing.size(); ++b) routing[b][l] = layer[b];
  }
  return routing;
}

// Layer-major order: the same tokens in more microbatches move the same weights, gradients and
// states. (Activations and in-layer buffers are pages of a microbatch each and lie on the device
// here; the bytes that activations would move are those of the same tokens, but for the ends of
// pages.) On several devices the order of experts follows where microbatches end
// (plan/step/expert_blocks.h).
TEST(PredictedBytes, DoNotDependOnTheNumberOfMicrobatches) {
  constexpr int64_t kTokens = 960;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::optional<PageTraffic> of_one;
    for (int64_t microbatches : {1, 2, 5, 8}) {
      std::mt19937 random(seed);
      RunShape shape = random_shape(random, 1);
      shape.set_microbatches(1);
      const RunShape one = shape;
      shape.microbatches = microbatches;
      shape.microbatch_tokens = kTokens / microbatches;
      const PageTable pages(shape);
      MemoryBudget budget{kGiB, kGiB, std::vector<int64_t>(shape.devices, 0)};
      auto memory = plan_memory(shape, pages, budget, 0);
      ASSERT_TRUE(memory.ok());
      budget.device_bytes = memory->min_device_bytes;
      budget.host_bytes = memory->min_host_bytes;
      memory = plan_memory(shape, pages, budget, 0);
      ASSERT_TRUE(memory.ok());
      std::vector<SlotClass> classes = memory->classes;
      for (size_t c = 0; c < classes.size(); ++c) {
        const PageTable::Class& info = pages.classes[c];
        // The room that one microbatch would leave is not the same; it is made equal.
        for (int d = 0; d < shape.devices; ++d) {
          classes[c].device_slots[d] =
              info.of_microbatches() ? static_cast<int32_t>(info.num_pages) : 2;
        }
        classes[c].host_slots = 3;
        if (info.stays()) classes[c] = memory->classes[c];
      }
      shape.eager_adam = seed % 3 == 0;
      DryRun run(shape, pages, classes, false,
                 Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
      Replay replay(&pages, all_on_disk(shape, pages, classes));
      for (int step = 0; step < 3; ++step) {
        run.train(spread_over(random_routing(random, one), microbatches),
                  [&](const StepPiece& piece) {
                    foresee(piece, replay);
                    for (const Task& task : piece.tasks) replay.place(task);
                  });
      }
      EXPECT_GT(replay.traffic().fetch.moves, 0);
      if (!of_one) of_one = replay.traffic();
      EXPECT_EQ(replay.traffic(), *of_one)
          << microbatches << " microbatches: " << text(replay.traffic())
          << "\none: " << text(*of_one);
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace pagoda
