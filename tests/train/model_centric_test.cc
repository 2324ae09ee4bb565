// Model-centric runs (parallel.sharing = model): whoever computes the parts of experts, with
// whatever budgets and switches, and however often interrupted, a run file has one hash; its first
// step is that of whole experts within rounding; bytes are those predicted; and what leaves the run
// has whole experts.
#include <gtest/gtest.h>

#include <cmath>

#include "plan/step/replay.h"
#include "tests/testing/plan/dry_run.h"
#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using Shares = std::vector<std::string>;

constexpr int64_t kSteps = kUnderSanitizer ? 2 : 4;

void cut(RunConfig& config, const Shares& shares) {
  config.parallel.sharing = Sharing::kModel;
  config.parallel.hidden_shares = shares;
  config.train.micro_batch_tokens = 32;  // four a step, so four shards
  config.train.steps = config.train.save_steps = kSteps;
}

struct Variant {
  int64_t devices = 1, attending = 0;
  bool smallest = false;
  PlanOptions plan = {};
  int64_t stop_at = -1;
  int64_t threads = 0;
};

std::string hash_of(const Shares& shares, const Variant& v, int64_t expert_shards, ClipKind clip) {
  TinyRun run;
  RunConfig& config = run.config();
  cut(config, shares);
  config.train.expert_shards = expert_shards;
  config.optim.clip = clip;
  config.train.devices = cpus(v.devices);
  config.train.threads = v.threads;
  config.parallel.attention_devices = v.attending;
  config.plan = v.plan;
  if (v.smallest) run.use_minimum_budgets();
  SimStorage storage(static_cast<uint64_t>(v.devices));
  const Outcome outcome = run_to_end(config, &storage, v.stop_at);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  if (v.smallest) expect_paged(outcome.paging);
  return outcome.sha256;
}

// Each variant with both divisions into parts, and with one number of expert shards in each.
TEST(ModelCentric, OneHashWhoeverComputes) {
  const Variant variants[] = {
      {.devices = 1, .smallest = true},
      {.devices = 1, .threads = 1},
      {.devices = 1, .plan = {.group_blocks = 4}},
      {.devices = 2},
      {.devices = 2, .attending = 1, .smallest = true},
      {.devices = 3, .smallest = true, .stop_at = 1},
      {.devices = 4, .plan = {.group_blocks = 4}},
      {.devices = 2, .plan = {.in_place = false}},
      {.devices = 2, .smallest = true, .plan = {.microbatch_major = true}},
      {.devices = 2, .plan = {.padded_experts = true}},
      {.devices = 2, .smallest = true, .plan = {.optimizer_at_end = true}, .stop_at = 1},
  };
  for (const Shares& shares : {Shares{"2", "1"}, Shares{"1", "1", "1"}}) {
    for (const int64_t expert_shards : {1, 4}) {
      const ClipKind clip = expert_shards == 1 ? ClipKind::kGlobal : ClipKind::kNone;
      const std::string expected = hash_of(shares, {}, expert_shards, clip);
      for (size_t i = (shares.size() + (expert_shards > 1)) % 2; i < std::size(variants); i += 2) {
        SCOPED_TRACE(testing::Message() << shares.size() << " parts, " << expert_shards
                                        << " expert shards, variant " << i);
        EXPECT_EQ(hash_of(shares, variants[i], expert_shards, clip), expected);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_NE(hash_of({"2", "1"}, {}, 1, ClipKind::kGlobal),
            hash_of({"1", "2"}, {}, 1, ClipKind::kGlobal));
}

TEST(ModelCentric, OneHashOnRanks) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedTrainers run(ClipKind::kGlobal, kSteps, [](RunConfig& config) { cut(config, {"2", "1"}); });
  struct Legs {
    int ranks, devices_each, later_ranks;
    ExchangeSetting exchange = ExchangeSetting::kAuto;
  };
  for (const Legs& legs :
       {Legs{2, 1, 0}, Legs{2, 1, 1}, Legs{1, 2, 2}, Legs{3, 1, 2},
        Legs{2, 2, 0, ExchangeSetting::kHalo}, Legs{2, 2, 3, ExchangeSetting::kRounds}}) {
    SCOPED_TRACE(testing::Message() << legs.ranks << " ranks of " << legs.devices_each << ", later "
                                    << legs.later_ranks);
    run.begin();
    RunLeg leg{legs.ranks, legs.devices_each, true};
    leg.until = legs.later_ranks > 0 ? kSteps / 2 : kSteps;
    leg.configure = [&](RunConfig& config, int) { config.parallel.exchange = legs.exchange; };
    const LegOutcome outcome = run.run(leg);
    expect_ok(outcome);
    if (legs.ranks > 1) {
      EXPECT_GT(outcome.arrived.rows, 0);
      EXPECT_EQ(outcome.arrived.guest_weights + outcome.arrived.guest_sums, 0);
    }
    if (legs.later_ranks > 0) {
      leg = {legs.later_ranks, 1};
      leg.until = kSteps;
      leg.seed = 2;
      leg.resume = true;
      expect_ok(run.run(leg));
    }
    EXPECT_EQ(run.sha256(), run.expected());
    if (HasFailure()) return;
  }
}

struct FirstStep {
  double loss = 0, grad_norm = 0;
  std::vector<double> square_sums;  // [record of the model with whole experts]
};

FirstStep first_step(DType dtype, const Shares& shares) {
  TinyRun run(dtype);
  RunConfig& config = run.config();
  cut(config, shares);
  if (shares.empty()) config.parallel.sharing = Sharing::kRows;
  config.train.devices = cpus(shares.empty() ? 1 : 2);
  SimStorage storage(3);
  auto trainer = Trainer::start(config, false, &storage).take();
  const StepResult step = trainer->step().take();
  FirstStep first{step.loss, step.grad_norm, {}};
  const TensorTable& table = trainer->session().table();
  for (size_t r = 0; r < table.records.size(); ++r) {
    const RecordSpec& record = table.records[r];
    const double sum = trainer->session().executor().square_sum(static_cast<int64_t>(r));
    const bool goes_on = record.kind == RecordKind::kExpert && record.expert % record.parts > 0;
    if (goes_on) {
      first.square_sums.back() += sum;
    } else {
      first.square_sums.push_back(sum);
    }
  }
  return first;
}

// An expert's output, and the gradient of its input, are sums of f = 24 and 2 f products, here in
// another order: each is off by (2 f) u of the sum of their magnitudes at most, with u = 2^-24 in
// fp32, and these sums are no more than a few times the result. In bf16 each part's output is
// rounded to 2^-9 of itself besides. The bounds below leave out that errors of elements cancel.
TEST(ModelCentric, FirstStepIsThatOfWholeExperts) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const double bound = dtype == DType::kF32 ? 48 * 0x1p-24 : 4 * 0x1p-8;
    const FirstStep whole = first_step(dtype, {});
    for (const Shares& shares : {Shares{"2", "1"}, Shares{"1", "1", "1"}}) {
      const FirstStep parts = first_step(dtype, shares);
      EXPECT_NEAR(parts.loss, whole.loss, bound * whole.loss);
      EXPECT_NEAR(parts.grad_norm, whole.grad_norm, bound * whole.grad_norm);
      ASSERT_EQ(parts.square_sums.size(), whole.square_sums.size());
      double worst = 0;
      for (size_t r = 0; r < whole.square_sums.size(); ++r) {
        const double expected = whole.square_sums[r];
        if (expected == 0) {
          EXPECT_EQ(parts.square_sums[r], 0) << "record " << r;
        }
        if (expected == 0) continue;
        worst = std::max(worst, std::abs(parts.square_sums[r] / expected - 1));
      }
      // A square is off by twice as much as the norm. In bf16 a token may choose another expert of
      // the last layer, and then records differ by whole rows.
      if (dtype == DType::kF32) {
        EXPECT_LE(worst, 4 * bound);
      }
      std::printf("%zu parts, %s: loss off by %.1e, norm by %.1e, squares of a record by %.1e\n",
                  shares.size(), dtype_name(dtype), parts.loss / whole.loss - 1,
                  parts.grad_norm / whole.grad_norm - 1, worst);
    }
  }
}

// Every row of a token goes to the other device, there and back in both phases, and no other.
TEST(ModelCentric, AllRowsGoToAllDevices) {
  for (const int64_t devices : {2, 3}) {
    TinyRun run;
    RunConfig& config = run.config();
    cut(config, Shares(static_cast<size_t>(devices), "1"));
    config.train.devices = cpus(devices);
    run.use_minimum_budgets();
    SimStorage storage(5);
    auto trainer = Trainer::start(config, false, &storage).take();
    Session& session = trainer->session();
    DryRun planned(session.shape(), session.pages(), session.memory().classes,
                   session.memory().state_on_device,
                   Ledger(config.optim.untouched == UntouchedKind::kSkip, 0,
                          std::vector<int64_t>(session.table().records.size(), 0)));
    Replay replay(&session.pages(), session.pager().residency());
    session.pager().drain();
    const Pager::Counters start = session.pager().counters();
    int64_t rows = 0;
    while (trainer->steps_done() < kSteps) {
      const StepResult step = trainer->step().take();
      for (const std::vector<int64_t>& layer : step.tokens_per_expert) {
        EXPECT_TRUE(layer.empty() || std::ssize(layer) == 24);
        for (const int64_t tokens : layer) rows += tokens;
      }
      planned.train(step.routing, [&](const StepPiece& piece) {
        foresee(piece, replay);
        for (const Task& task : piece.tasks) replay.place(task);
      });
      session.pager().drain();
      const Pager::Counters now = session.pager().counters();
      const PageTraffic& predicted = replay.traffic();
      EXPECT_EQ(now.fetch_bytes - start.fetch_bytes, predicted.fetch.bytes);
      EXPECT_EQ(now.upload_bytes - start.upload_bytes, predicted.upload.bytes);
      EXPECT_EQ(now.download_bytes - start.download_bytes, predicted.download.bytes);
      EXPECT_EQ(now.write_back_bytes - start.write_back_bytes, predicted.write_back.bytes);
    }
    EXPECT_GT(replay.traffic().fetch.moves, 0);
    int64_t sent = 0;
    for (const auto& [pair, count] : session.link()->counts()) sent += count.rows;
    EXPECT_EQ(sent, 4 * (devices - 1) * rows);
  }
}

// What was read in parts is written as it was.
TEST(ModelCentric, ExportsWholeExperts) {
  TinyRun run(DType::kF32);
  cut(run.config(), {"2", "1"});
  run.config().train.devices = cpus(2);
  SimStorage storage(7);
  auto trainer = Trainer::start(run.config(), false, &storage).take();
  const std::string directory = run.dir().file("exported");
  const Status status = trainer->export_model(directory, "");
  ASSERT_TRUE(status.ok()) << status.message();
  const HfFolder before = HfFolder::open(run.config().model.path).take();
  const HfFolder after = HfFolder::open(directory).take();
  ASSERT_EQ(before.table().tensors.size(), after.table().tensors.size());
  for (size_t t = 0; t < before.table().tensors.size(); ++t) {
    const auto elements = static_cast<size_t>(before.table().tensors[t].num_elements());
    std::vector<float> was(elements), is(elements);
    ASSERT_TRUE(before.read_tensor(static_cast<int64_t>(t), was.data()).ok());
    ASSERT_TRUE(after.read_tensor(static_cast<int64_t>(t), is.data()).ok());
    ASSERT_EQ(was, is) << before.table().tensors[t].name;
  }
}

// A checkpoint of parts is resumed with the same ones, and by nobody else.
TEST(ModelCentric, ResumesWithItsSharesAlone) {
  TinyRun run;
  cut(run.config(), {"2", "1"});
  SimStorage storage(9);
  { auto trainer = Trainer::start(run.config(), false, &storage).take(); }
  for (const Shares& shares : {Shares{"1", "2"}, Shares{"1", "1", "1"}, Shares{}}) {
    RunConfig other = run.config();
    other.parallel.hidden_shares = shares;
    if (shares.empty()) other.parallel.sharing = Sharing::kRows;
    const auto resumed = Trainer::start(other, true, &storage);
    ASSERT_FALSE(resumed.ok());
    EXPECT_EQ(resumed.status().code(), Exit::kMismatch);
    EXPECT_NE(resumed.status().message().find("parallel.hidden_shares is"), std::string::npos)
        << resumed.status().message();
  }
  EXPECT_TRUE(Trainer::start(run.config(), true, &storage).ok());
}

}  // namespace
}  // namespace pagoda
