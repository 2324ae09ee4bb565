// Each rank of a run moves exactly the bytes that its part of the resolved plan predicts, whether
// rows travel to experts or their weights to rows, and as many rows, weights and sums travel
// between ranks as counted by hand.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "plan/step/replay.h"
#include "tests/testing/plan/dry_run.h"
#include "tests/testing/ranks/ranked_run.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

int64_t dense_elements(const TensorTable& table) {
  int64_t elements = 0;
  for (const RecordSpec& record : table.records) {
    elements += record.kind == RecordKind::kExpert ? 0 : record.num_elements;
  }
  return elements;
}

PageTraffic counted_by(Pager& pager) {
  pager.drain();
  const Pager::Counters& c = pager.counters();
  return {{c.fetches, c.fetch_bytes},
          {c.uploads, c.upload_bytes},
          {c.downloads, c.download_bytes},
          {c.write_backs, c.write_back_bytes}};
}

// What a rank plans beside its run, from the routings alone.
struct RankPrediction {
  explicit RankPrediction(Session& session)
      : replay(&session.pages(), session.pager().residency()),
        planned(session.shape(), session.pages(), session.memory().classes,
                session.memory().state_on_device,
                Ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0))),
        start(counted_by(session.pager())) {}

  void step(const Routing& routing) {
    planned.train(routing, [this](const StepPiece& piece) {
      foresee(piece, replay);
      for (const Task& task : piece.tasks) replay.place(task);
    });
  }

  Replay replay;
  DryRun planned;
  PageTraffic start;
};

class RanksBytesPredicted : public testing::TestWithParam<Sharing> {};

TEST_P(RanksBytesPredicted, AreThoseOfEachRank) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RankedRun run(clip, DType::kBF16, kTinyConfig, 32, 6, GetParam());
    for (int ranks = 2; ranks <= 4; ++ranks) {
      for (const int64_t more : {int64_t{0}, 150 * kKiB, 800 * kKiB, 8 * kMiB}) {
        if (kUnderThreadSanitizer && more % 3 != 0) continue;
        RankedCase c{ranks, ranks == 2 ? 2 : 1, true};
        c.clip = clip;
        c.more_bytes = more;
        c.seed = static_cast<uint64_t>(ranks);
        c.attending = more == 0 ? 1 : 0;
        SCOPED_TRACE(text_of(c));
        std::vector<std::unique_ptr<RankPrediction>> predictions(static_cast<size_t>(ranks));
        std::vector<PageTraffic> moved(static_cast<size_t>(ranks));
        c.loaded = [&](Session& session) {
          predictions[static_cast<size_t>(session.shape().rank)] =
              std::make_unique<RankPrediction>(session);
        };
        c.stepped = [&](Session& session, const StepResult& step) {
          const auto rank = static_cast<size_t>(session.shape().rank);
          RankPrediction& prediction = *predictions[rank];
          prediction.step(step.routing);
          moved[rank] = counted_by(session.pager()) - prediction.start;
          const PageTraffic& predicted = prediction.replay.traffic();
          EXPECT_EQ(moved[rank], predicted)
              << "rank " << rank << " fetched " << moved[rank].fetch.bytes << ", predicted "
              << predicted.fetch.bytes << "; wrote " << moved[rank].write_back.bytes
              << ", predicted " << predicted.write_back.bytes;
        };
        expect_alike(run.on(c));
        for (const PageTraffic& traffic : moved) {
          if (more > 0) continue;
          EXPECT_GT(traffic.fetch.moves, 0);
          EXPECT_GT(traffic.write_back.moves, 0);
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sharing, RanksBytesPredicted,
                         testing::Values(Sharing::kRows, Sharing::kData));

// Two ranks of a device each, which attend to two of four microbatches each. Experts are at home by
// turns, layers too; embedding and head are rank 0's.
void expect_row_bytes(int64_t kept_rows, int64_t values_of_row) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  constexpr int64_t kWidth = 32, kValue = 2, kFloat = 4, kSteps = 2;
  constexpr int64_t kMicrobatches = 4, kExperts = 24, kMoeLayers = 2;
  RankedRun run(ClipKind::kGlobal, DType::kBF16, kTinyConfig, 32, kSteps);
  RankedCase c{2, 1, true};
  c.place = PlaceKind::kHome;
  c.kept_rows = kept_rows;
  int64_t rows = 0, elements = 0;  // rows that are computed away; elements of dense records
  c.stepped = [&](Session& session, const StepResult& step) {
    if (session.shape().rank != 0) return;
    for (size_t b = 0; b < step.routing.size(); ++b) {
      const size_t rank = b / 2;
      for (const auto& layer : step.routing[b]) {
        for (size_t e = 0; e < layer.size(); ++e) rows += e % 2 != rank ? layer[e] : 0;
      }
    }
    elements = dense_elements(session.table());
  };
  const RankedOutcome outcome = run.on(c);
  expect_alike(outcome);
  ASSERT_GT(rows, 0);
  // There and back, in the forward and in the backward.
  EXPECT_EQ(outcome.arrived.rows, 4 * rows);
  // Weights of each dense record go to the other rank in each step, since each has an update; and a
  // sum of its gradient comes back. Each microbatch's routing goes to the other rank in the
  // forward: for each expert a count and a sum of probabilities, and one sum of the z-loss.
  EXPECT_EQ(outcome.arrived.other_bytes,
            kSteps * (elements * (kValue + kFloat) +
                      kMicrobatches * kMoeLayers * (kExperts * (kFloat + 8) + 8)));
  EXPECT_EQ(outcome.arrived.row_bytes, rows * (values_of_row * kWidth * kValue + 2 * kFloat));
}

// Rows: inputs; inputs, output gradients and routing weights; outputs; input gradients and those of
// the routing weights.
TEST(RanksBytes, AreThoseOfRowsWeightsSumsAndRouting) { expect_row_bytes(0, 5); }

// The inputs come once.
TEST(RanksBytes, AreThoseOfRowsOfWhichAllStay) { expect_row_bytes(100'000, 4); }

// Weights travel in place of rows: those of an expert in each phase to the rank that is not its
// home, if that attends to rows of it, and the sum of its part of the gradient back.
TEST(RanksBytes, AreThoseOfGuestsWeightsAndSums) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  constexpr int64_t kExpert = 3 * 24 * 32, kValue = 2, kFloat = 4;
  RankedRun run(ClipKind::kGlobal, DType::kBF16, kTinyConfig, 32, 2, Sharing::kData);
  RankedCase c{2, 1, true};
  c.place = PlaceKind::kHome;
  int64_t guests = 0;
  c.stepped = [&](Session& session, const StepResult& step) {
    if (session.shape().rank != 0) return;
    EXPECT_TRUE(session.shape().has_guests());
    for (size_t l = 0; l < step.routing[0].size(); ++l) {
      for (size_t e = 0; e < step.routing[0][l].size(); ++e) {
        const size_t away = e % 2 == 0 ? 2 : 0;  // the first microbatch of the other rank
        guests += step.routing[away][l][e] + step.routing[away + 1][l][e] > 0;
      }
    }
  };
  const RankedOutcome outcome = run.on(c);
  expect_alike(outcome);
  ASSERT_GT(guests, 0);
  EXPECT_EQ(outcome.arrived.rows, 0);
  EXPECT_EQ(outcome.arrived.guest_weights, guests * 2 * kExpert * kValue);
  EXPECT_EQ(outcome.arrived.guest_sums, guests * kExpert * kFloat);
  EXPECT_EQ(outcome.sha256(), run.sha256());
}

// Each rank has a copy of all experts: no row goes to another. Their weights do once, and again in
// the second step where they have had an update; and the sum of the part of a rank that is not the
// home. Dense records and routing are as in expect_row_bytes().
TEST(RanksBytes, AreThoseOfCopiesWeightsAndSums) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  constexpr int64_t kExpert = 3 * 24 * 32, kValue = 2, kFloat = 4, kSteps = 2;
  constexpr int64_t kMicrobatches = 4, kExperts = 24, kMoeLayers = 2;
  RankedRun run(ClipKind::kGlobal, DType::kBF16, kTinyConfig, 32, kSteps, Sharing::kData);
  run.tiny().config().parallel.sharing = Sharing::kRows;
  run.tiny().config().parallel.copies = 2;
  RankedCase c{2, 1, true};
  int64_t sums = 0, elements = 0;
  std::set<std::pair<size_t, size_t>> updated;  // [layer, expert]
  c.stepped = [&](Session& session, const StepResult& step) {
    if (session.shape().rank != 0) return;
    for (size_t l = 0; l < step.routing[0].size(); ++l) {
      for (size_t e = 0; e < step.routing[0][l].size(); ++e) {
        const auto rows_of = [&](size_t rank) {
          return step.routing[2 * rank][l][e] + step.routing[2 * rank + 1][l][e];
        };
        sums += rows_of(e < kExperts / 2 ? 1 : 0) > 0;
        if (rows_of(0) + rows_of(1) > 0) updated.insert({l, e});
      }
    }
    elements = dense_elements(session.table());
  };
  const RankedOutcome outcome = run.on(c);
  expect_alike(outcome);
  ASSERT_GT(sums, 0);
  EXPECT_EQ(outcome.arrived.rows, 0);
  EXPECT_EQ(outcome.arrived.guest_weights, 0);
  EXPECT_EQ(outcome.arrived.guest_sums, sums * kExpert * kFloat);
  const int64_t weights = kMoeLayers * kExperts + std::ssize(updated);
  EXPECT_EQ(outcome.arrived.other_bytes,
            kSteps * (elements * (kValue + kFloat) +
                      kMicrobatches * kMoeLayers * (kExperts * (kFloat + 8) + 8)) +
                weights * kExpert * kValue + sums * kExpert * kFloat);
  EXPECT_EQ(outcome.sha256(), run.sha256());
}

}  // namespace
}  // namespace pagoda
