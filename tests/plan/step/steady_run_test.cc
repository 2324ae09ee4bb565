// Compares the prediction of a run with the run's plan, and with a run in which every token takes
// every expert, byte for byte.
#include "plan/step/steady_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "plan/memory/memory_plan.h"
#include "report/traffic_report.h"
#include "tests/testing/plan/random_plan.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

std::string text(const PageTraffic& t) {
  return strf("fetch %lld B, upload %lld B, download %lld B, write back %lld B",
              (long long)t.fetch.bytes, (long long)t.upload.bytes, (long long)t.download.bytes,
              (long long)t.write_back.bytes);
}

constexpr const char* kEveryExpert = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
  "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 6,
  "num_experts_per_tok": 6, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.1, "max_position_embeddings": 256, "mlp_only_layers": [1],
  "decoder_sparse_step": 1, "attention_bias": false})";

PageTraffic counted(Session& session) {
  session.pager().drain();
  const Pager::Counters& c = session.pager().counters();
  return {{c.fetches, c.fetch_bytes},
          {c.uploads, c.upload_bytes},
          {c.downloads, c.download_bytes},
          {c.write_backs, c.write_back_bytes}};
}

// Steps until the run has settled, one more, a checkpoint and a step after it.
void expect_predicted(const RunConfig& config) {
  SimStorage storage(17);
  auto started = Trainer::start(config, false, &storage);
  ASSERT_TRUE(started.ok()) << started.status().message();
  Trainer& trainer = **started;
  Session& session = trainer.session();
  const SteadyTraffic predicted =
      predict_traffic(session.shape(), session.pages(), session.memory());
  const auto step = [&] {
    auto result = trainer.step();
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_FALSE(result->skipped);
  };
  for (int i = 0; i < 3; ++i) step();
  PageTraffic before = counted(session);
  step();
  const PageTraffic moved = counted(session) - before;
  EXPECT_EQ(moved, predicted.step) << text(moved) << "\npredicted " << text(predicted.step);
  before = counted(session);
  ASSERT_TRUE(trainer.save().ok());
  step();
  const PageTraffic saved = counted(session) - before - predicted.step;
  EXPECT_EQ(saved, predicted.checkpoint) << text(saved) << "\npredicted "
                                         << text(predicted.checkpoint);
}

TEST(SteadyRun, IsWhatARunThatUsesEveryExpertMoves) {
  TinyRun run(DType::kBF16, kEveryExpert);
  for (const auto& [more_device, more_host] :
       {std::pair{int64_t{0}, int64_t{0}}, {100 * kKiB, 200 * kKiB}, {int64_t{0}, 600 * kKiB},
        {40 * kMiB, 40 * kMiB}}) {
    for (ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
      for (const int64_t devices : {1, 2}) {
        SCOPED_TRACE(testing::Message()
                     << more_device << " B more on the device, " << more_host
                     << " B more in host memory, clip " << static_cast<int>(clip) << ", "
                     << devices << " devices");
        run.new_run();
        run.config().optim.clip = clip;
        run.config().train.devices = cpus(devices);
        run.config().memory.device = run.config().memory.host = MemorySize::of_bytes(64 * kMiB);
        run.use_minimum_budgets();
        run.config().memory.device =
            MemorySize::of_bytes(run.config().device_bytes() + more_device);
        run.config().memory.host = MemorySize::of_bytes(run.config().host_bytes() + more_host);
        expect_predicted(run.config());
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Pins and padding, where the device has room for some experts.
TEST(SteadyRun, KnowsPinnedAndPaddedExperts) {
  TinyRun run(DType::kBF16, kEveryExpert);
  run.use_minimum_budgets();
  run.config().memory.device = MemorySize::of_bytes(run.config().device_bytes() + 60 * kKiB);
  run.config().memory.host = MemorySize::of_bytes(run.config().host_bytes() + 200 * kKiB);
  for (const char* pin : {"off", "50%", "100%"}) {
    for (const bool padded : {false, true}) {
      for (ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
        SCOPED_TRACE(testing::Message() << "pin " << pin << ", padded " << padded << ", clip "
                                        << static_cast<int>(clip));
        run.new_run();
        run.config().memory.pin = pin;
        run.config().plan.padded_experts = padded;
        run.config().optim.clip = clip;
        expect_predicted(run.config());
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

struct Pieces {
  std::vector<StepPiece> pieces;
  void step(SteadyRun& run) {
    pieces.clear();
    run.step([this](const StepPiece& piece) { pieces.push_back(piece); });
  }
};

// Pieces of a run that skips its first step are those of one that does not.
TEST(SteadyRun, SkipsItsFirstStep) {
  int64_t sent = 0, updated = 0, with_copies = 0;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int devices = 1 + static_cast<int>(random() % 4);
    RunShape shape = random_shape(random, devices, {.most = 2});
    const int ranks = 1 + static_cast<int>(random() % std::min(3, devices));
    if (ranks > 1) divide_into_ranks(random, ranks, shape);
    shape.rank = static_cast<int>(random() % ranks);
    shape.eager_adam = random() % 2 == 0;
    shape.options.optimizer_at_end = random() % 3 == 0;
    const bool trains = random() % 4 != 0;
    for (RecordShape& record : shape.records) {
      if (random() % 4 == 0) record.frozen_elements = record.num_elements;
    }
    if (shape.sums.shards > 1 && devices / shape.stages.count > 1 && random() % 2 == 0) {
      shape.sums.expert_shards = shape.sums.shards;
      divide_into_copies(2, shape);
      ++with_copies;
    }
    const StepPlan plan(shape, PageTable(shape), {.training = trains});
    SteadyRun whole(&plan, SteadyRun::Tokens::kOne), cut(&plan, SteadyRun::Tokens::kOne);
    Pieces expected, got;
    expected.step(whole);
    cut.skip_first();
    for (int step = 0; step < 2; ++step) {
      expected.step(whole);
      got.step(cut);
      ASSERT_EQ(got.pieces.size(), expected.pieces.size());
      for (size_t i = 0; i < got.pieces.size(); ++i) {
        ASSERT_EQ(got.pieces[i].tasks, expected.pieces[i].tasks) << i;
        ASSERT_EQ(got.pieces[i].others, expected.pieces[i].others) << i;
      }
    }
    for (const StepPiece& piece : got.pieces) {
      for (const Task& task : piece.all_tasks()) {
        sent += task.kind == TaskKind::kSendPage;
        updated += task.kind == TaskKind::kAdam;
      }
    }
  }
  EXPECT_GT(sent, 100);
  EXPECT_GT(updated, 100);
  EXPECT_GT(with_copies, 10);
}

int64_t layer_buffers_bytes(const PageTable& pages) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : pages.classes) {
    if (c.kind == PageKind::kLayerBuffer) bytes += c.total_bytes();
  }
  return bytes;
}

// Planning runs through as many experts' tasks whatever the number of microbatches.
TEST(SteadyRun, HasNoMoreBlocksWithMoreMicrobatches) {
  std::mt19937 random(1);
  RunShape shape = random_shape(random, 1);
  std::optional<int64_t> of_one;
  for (int64_t microbatches : {1, 16}) {
    shape.microbatches = microbatches;
    shape.sums = SumShape();
    const StepPlan plan(shape, PageTable(shape), {});
    int64_t tasks = 0;
    SteadyRun run(&plan, SteadyRun::Tokens::kOne);
    run.step([&](const StepPiece& piece) {
      for (const Task& task : piece.tasks) tasks += task.expert >= 0;
    });
    if (!of_one) of_one = tasks;
    EXPECT_EQ(tasks, *of_one);
    EXPECT_GT(tasks, 0);
  }
}

// Every token's choices are rows of some expert, also where experts do not divide them.
TEST(SteadyRun, HasTheRowsOfAllTokens) {
  std::mt19937 random(3);
  int uneven = 0;
  for (int i = 0; i < 20; ++i) {
    RunShape shape = random_shape(random, 1);
    const int64_t chosen = shape.microbatch_tokens * shape.experts_per_token;
    const int64_t layers = std::count(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1});
    if (layers == 0 || chosen < shape.num_experts) continue;
    uneven += chosen % shape.num_experts != 0;
    const StepPlan plan(shape, PageTable(shape), {});
    for (const auto tokens : {SteadyRun::Tokens::kEven, SteadyRun::Tokens::kGathered}) {
      int64_t rows = 0;
      SteadyRun run(&plan, tokens);
      run.step([&](const StepPiece& piece) {
        for (const Task& task : piece.tasks) rows += task.kind == TaskKind::kExpert ? task.rows : 0;
      });
      EXPECT_EQ(rows, layers * shape.microbatches * chosen) << i;
    }
  }
  EXPECT_GT(uneven, 3);
}

// The same with every switch of the plan, against the run's plan.
TEST(SteadyRun, IsThePlanOfEvenRouting) {
  int changed_by_pins = 0, compared = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    RunShape shape = random_shape(random, 1);
    shape.options.microbatch_major = random() % 3 == 0;
    shape.options.whole_layers = random() % 3 == 0;
    shape.options.optimizer_at_end = random() % 3 == 0;
    shape.options.prefetch = random() % 3 != 0;
    shape.options.padded_experts = random() % 3 == 0;
    shape.pinned_share = random() % 3 == 0 ? 0.5 : 0;
    shape.eager_adam = random() % 2 == 0;
    const PageTable pages(shape);
    MemoryBudget budget{kGiB, kGiB, {0}};
    auto roomy = plan_memory(shape, pages, budget, 0);
    ASSERT_TRUE(roomy.ok());
    budget.device_bytes = roomy->min_device_bytes + static_cast<int64_t>(random() % 200000);
    budget.host_bytes = roomy->min_host_bytes + static_cast<int64_t>(random() % 400000);
    auto memory = plan_memory(shape, pages, budget, 0);
    ASSERT_TRUE(memory.ok());
    DryRun run(shape, pages, memory->classes, memory->state_on_device,
               Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
    Replay replay(&pages, all_on_disk(shape, pages, memory->classes));
    std::vector<std::vector<int64_t>> routing(shape.num_layers);
    // Several blocks of an expert take its pages up again. That changes nothing once a run has
    // settled, but where microbatches come one after another some take more steps until then.
    // In-layer buffers that come and go do so more often: there it takes the run's own tokens,
    // where each expert has as many.
    const bool layer_buffers_stay =
        memory->on_devices(pages, PageKind::kLayerBuffer) == layer_buffers_bytes(pages);
    int64_t tokens = shape.options.microbatch_major ? 1 : 3 * shape.row_block - 1;
    if (!layer_buffers_stay && shape.num_experts > 0) {
      const int64_t chosen = shape.microbatch_tokens * shape.experts_per_token;
      if (chosen % shape.num_experts != 0) continue;
      tokens = chosen / shape.num_experts;
    }
    ++compared;
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (shape.is_moe[l]) routing[l].assign(shape.num_experts, tokens);
    }
    const Routing turns(static_cast<size_t>(shape.microbatches), routing);
    PageTraffic before;
    for (int step = 0; step < 4; ++step) {
      before = replay.traffic();
      run.train(turns, [&](const StepPiece& piece) {
        foresee(piece, replay);
        for (const Task& task : piece.tasks) replay.place(task);
      });
    }
    const PageTraffic moved = replay.traffic() - before;
    const StepPlan plan(shape, pages, {.state_on_device = memory->state_on_device});
    const PageTraffic predicted = steady_traffic(plan, memory->classes).step;
    ASSERT_EQ(moved, predicted) << text(moved) << "\npredicted " << text(predicted);
    changed_by_pins += !(predicted == steady_step(plan, memory->classes));
  }
  EXPECT_GT(changed_by_pins, 3);
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace pagoda
