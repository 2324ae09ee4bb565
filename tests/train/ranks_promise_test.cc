// The root promise over ranks: a run file has one hash, on however many ranks and devices it begins
// and goes on, with budgets of which some page and some do not, with transfers that are late,
// whether rows travel to experts or experts' weights to rows, when these are due or a layer ahead,
// in each exchange of rows (in rounds, with network cards of unequal rates), whether experts read
// rows in place or copies, and whether homes of experts stay or move behind each step.
// Rows have every pair of these; started with --full-product, the program runs every combination.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <tuple>

#include "plan/exchange/home_moves.h"
#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/watchdog.h"
#include "tests/train/pairwise.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = 4;

// The first leg, and the second one, on as many ranks less one; on 0 there is none. If experts of
// the first one read rows in place, those of the second one read copies, and the other way round.
enum Factor {
  kRanks,
  kDevices,
  kBudget,
  kLaterRanks,
  kLaterDevices,
  kLaterBudget,
  kClip,
  kExchange,
  kExpertShards,
  kSharing,
  kLaterSharing,
  kCopies,
  kMoves
};
const Levels kCounts = {4, 2, 4, 5, 2, 4, 2, 3, 2, 3, 3, 2, 2};
constexpr ExchangeSetting kExchanges[] = {ExchangeSetting::kAuto, ExchangeSetting::kRounds,
                                          ExchangeSetting::kHalo};
constexpr Sharing kSharings[] = {Sharing::kRows, Sharing::kData, Sharing::kAuto};
enum Budget { kAmple, kSmallest, kSmallestButOne, kForGuests };
// What kForGuests has beyond the smallest budgets. An expert's weights have a page of 8 KiB. Where
// three of four experts are another rank's, both layers' guests take 36 pages, of which there are
// two in any case. A third of it has room for the others.
constexpr int64_t kRoomForGuests = 3 * 34 * 8 * kKiB;

bool is_valid(const Levels& row) {
  // Two nodes of two devices, wherever it matters.
  if (row[kExchange] > 0 && (row[kRanks] != 1 || row[kDevices] != 1)) return false;
  if (row[kLaterRanks] == 0 && (row[kLaterDevices] > 0 || row[kLaterBudget] > 0)) return false;
  // Weights travel where experts are summed by shards, whoever goes on with the run.
  if (row[kExpertShards] == 0 && (row[kSharing] > 0 || row[kLaterSharing] > 0)) return false;
  if (row[kLaterRanks] == 0 && row[kLaterSharing] > 0) return false;
  const auto some_page = [&](Factor budget, int ranks) {
    return row[budget] != kSmallestButOne || ranks > 1;
  };
  return some_page(kBudget, row[kRanks] + 1) && some_page(kLaterBudget, row[kLaterRanks]);
}

std::string text_of(const Levels& row) {
  std::string text =
      "ranks, devices, budget, later ranks, devices, budget, clip, exchange, "
      "expert shards, sharing, later sharing, copies, moves:";
  for (const int level : row) text += strf(" %d", level);
  return text;
}

// Routing of a rank that favours every fourth expert, in each step those from another one on: on
// two or four ranks, most rows of a step are those of one or two. Other experts have a few.
class SkewedRouting {
 public:
  // The trainer's next step takes it.
  void impose(Trainer& trainer) {
    const RunShape& shape = trainer.session().shape();
    const int64_t experts = shape.num_experts;
    choices_.assign(static_cast<size_t>(shape.num_layers), {});
    for (size_t l = 0; l < choices_.size(); ++l) {
      if (!shape.is_moe[l]) continue;
      for (int64_t t = 0; t < shape.microbatches * shape.microbatch_tokens; ++t) {
        const int64_t first = (trainer.steps_done() + 4 * t) % experts;
        const int64_t to_second = t % 4 == 0 ? 1 + t / 4 % (experts - 1) : 4;
        choices_[l].push_back(static_cast<int32_t>(first));
        choices_[l].push_back(static_cast<int32_t>((first + to_second) % experts));
      }
    }
    trainer.session().executor().impose_routing(&choices_);
  }

 private:
  std::vector<std::vector<int32_t>> choices_;  // [layer] (N, k)
};

// Experts that exchanged ranks, and legs whose weights came ahead, in all runs.
int64_t crossed = 0, legs_ahead = 0;

// Experts of two ranks, others in each step; none with one rank.
std::vector<HomeSwap> crossing_swap(const RunShape& shape, int64_t step) {
  std::vector<HomeSwap> found;
  for (int64_t a = 0; a < std::ssize(shape.records); ++a) {
    for (int64_t b = a + 1; b < std::ssize(shape.records); ++b) {
      const HomeSwap swap{a, b};
      if (may_exchange(shape, swap) && shape.home_rank(a) != shape.home_rank(b)) {
        found.push_back(swap);
      }
    }
  }
  if (found.empty()) return {};
  return {found[static_cast<size_t>(step) % found.size()]};
}

// Imposes skewed routing on a leg. Experts move behind each step: where the clock says that it
// pays, and two more, whatever it says.
class SkewedLeg {
 public:
  void configure(RunLeg& leg) {
    leg.started = [this](Trainer& trainer, RankGroup& group) {
      routing_[static_cast<size_t>(group.rank())].impose(trainer);
      return Status();
    };
    leg.stepped = [this](Trainer& trainer, RankGroup& group) {
      RETURN_IF_ERROR(trainer.balance_homes().status());
      const RunShape& shape = trainer.session().shape();
      const std::vector<HomeSwap> swaps = crossing_swap(shape, trainer.steps_done());
      if (!swaps.empty()) {
        const int64_t a = swaps.front().a;
        const int before = shape.home_rank(a);
        RETURN_IF_ERROR(trainer.exchange_homes(swaps));
        const int after = trainer.session().shape().home_rank(a);
        if (group.rank() == 0) crossed += before != after;
      }
      routing_[static_cast<size_t>(group.rank())].impose(trainer);
      return Status();
    };
  }

 private:
  std::array<SkewedRouting, 4> routing_;  // [rank]
};

// A run file, and its hash on one process.
struct Run {
  explicit Run(const Levels& row)
      : trainers(row[kClip] == 0 ? ClipKind::kGlobal : ClipKind::kPerExpert, kSteps,
                 [&](RunConfig& config) {
                   config.train.expert_shards = row[kExpertShards] == 0 ? 1 : 4;
                 }),
        expected(trainers.expected()) {
    if (row[kMoves] == 0) return;
    RunLeg leg{1, 1};
    leg.until = kSteps;
    SkewedLeg skewed;
    skewed.configure(leg);
    expect_ok(trainers.run(leg));
    EXPECT_NE(trainers.sha256(), expected) << "the routing is the model's own";
    expected = trainers.sha256();
  }

  RankedTrainers trainers;
  std::string expected;
};

Run& run_of(const Levels& row) {
  static std::map<std::tuple<int, int, int>, std::unique_ptr<Run>> known;
  std::unique_ptr<Run>& run = known[{row[kClip], row[kExpertShards], row[kMoves]}];
  if (!run) run = std::make_unique<Run>(row);
  return *run;
}

struct LegKind {
  int budget = kAmple;
  ExchangeSetting exchange = ExchangeSetting::kAuto;
  Sharing sharing = Sharing::kRows;
  bool in_place = true;
  bool moves = false;
};

// Network cards of so many ranks, of unequal rates.
std::vector<std::string> cards(int ranks) {
  std::vector<std::string> rates;
  for (int r = 0; r < ranks; ++r) rates.push_back(r % 2 == 0 ? "10" : "27.5");
  return rates;
}

void expect_rows(const LegOutcome& outcome, const LegKind& kind) {
  int64_t in_place = 0, copied = 0;
  for (const Executor::RowBytes& bytes : outcome.row_bytes) {
    in_place += bytes.in_place;
    copied += bytes.copied;
  }
  if (!kind.in_place) {
    EXPECT_EQ(in_place, 0);
    EXPECT_GT(copied, 0);
  } else if (kind.budget == kAmple) {
    EXPECT_GT(in_place, 0) << "no row was read where it was";
  }
}

void run_leg(RankedTrainers& run, RunLeg leg, const LegKind& kind) {
  SkewedLeg skewed;
  if (kind.moves) skewed.configure(leg);
  leg.configure = [kind, ranks = leg.ranks](RunConfig& config, int) {
    config.parallel.exchange = kind.exchange;
    if (kind.exchange == ExchangeSetting::kRounds) config.parallel.network_gb_s = cards(ranks);
    config.parallel.sharing = kind.sharing;
    config.parallel.migrate_steps = kind.moves ? 1 : 0;
    config.plan.in_place = kind.in_place;
  };
  leg.smallest = kind.budget != kAmple;
  leg.more_bytes = kind.budget == kForGuests ? kRoomForGuests : 0;
  leg.ample_rank = kind.budget == kSmallestButOne ? leg.ranks - 1 : -1;
  RunShape shape;  // rank 0's
  leg.started = [&shape, started = leg.started](Trainer& trainer, RankGroup& group) {
    if (group.rank() == 0) shape = trainer.session().shape();
    return started ? started(trainer, group) : Status();
  };
  const LegOutcome outcome = run.run(leg);
  for (const Status& status : outcome.statuses) ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(outcome.saved_step, leg.until);
  expect_rows(outcome, kind);
  if (leg.ranks > 1 && kind.sharing != Sharing::kAuto) {
    // Where all stays on the devices, and there is no more room, so do experts.
    const bool weights = shape.weights_travel();
    const bool data = kind.sharing == Sharing::kData;
    EXPECT_TRUE(weights == data || (data && kind.budget == kForGuests));
    EXPECT_EQ(outcome.arrived.rows > 0, !weights) << "weights travel in place of rows";
    EXPECT_EQ(outcome.arrived.guest_weights > 0, weights) << "weights of guests";
    EXPECT_EQ(outcome.arrived.guest_sums > 0, weights) << "their gradients";
    legs_ahead += weights && shape.guest_layers > 0;
  }
  for (int rank = 0; rank < leg.ranks; ++rank) {
    if (leg.smallest && leg.more_bytes == 0 && rank != leg.ample_rank) {
      expect_paged(outcome.paging[static_cast<size_t>(rank)]);
    }
  }
}

void expect_promise(const Levels& row, uint64_t number) {
  SCOPED_TRACE(text_of(row));
  const bool resumes = row[kLaterRanks] > 0;
  const ExchangeSetting exchange = kExchanges[row[kExchange]];
  const bool in_place = row[kCopies] == 0, moves = row[kMoves] == 1;
  Run& of_row = run_of(row);
  RankedTrainers& run = of_row.trainers;
  run.begin();
  RunLeg leg{row[kRanks] + 1, row[kDevices] + 1};
  leg.until = resumes ? kSteps / 2 : kSteps;
  leg.seed = 2 * number + 1;
  run_leg(run, leg, {row[kBudget], exchange, kSharings[row[kSharing]], in_place, moves});
  if (resumes && !testing::Test::HasFailure()) {
    leg = {row[kLaterRanks], row[kLaterDevices] + 1};
    leg.until = kSteps;
    leg.seed = 2 * number + 2;
    leg.resume = true;
    run_leg(run, leg,
            {row[kLaterBudget], exchange, kSharings[row[kLaterSharing]], !in_place, moves});
  }
  EXPECT_EQ(run.sha256(), of_row.expected);
}

// Rows of some experts travel, and weights of others, as the counts of each expert and device say:
// here one has about 32 rows on either of two devices, and its weights as many bytes as 18.7 rows.
TEST(RanksPromise, WeightsOrRowsInEachExchange) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  RankedTrainers run(
      ClipKind::kGlobal, kSteps, [](RunConfig& config) { config.train.expert_shards = 4; },
      R"({"num_experts": 4, "moe_intermediate_size": 8})");
  for (const ExchangeSetting exchange : kExchanges) {
    for (const int ranks : {2, 4}) {
      RankThreads::Arrived arrived[3];
      for (const Sharing sharing : kSharings) {
        SCOPED_TRACE(testing::Message()
                     << ranks << " ranks, exchange " << static_cast<int>(exchange) << ", sharing "
                     << static_cast<int>(sharing));
        run.begin();
        RunLeg leg{ranks, 4 / ranks, true};
        leg.until = kSteps;
        leg.configure = [&](RunConfig& config, int) {
          config.parallel.exchange = exchange;
          config.parallel.sharing = sharing;
        };
        const LegOutcome outcome = run.run(leg);
        for (const Status& status : outcome.statuses) ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(run.sha256(), run.expected());
        arrived[static_cast<size_t>(sharing)] = outcome.arrived;
      }
      const auto of = [&](Sharing sharing) { return arrived[static_cast<size_t>(sharing)]; };
      EXPECT_EQ(of(Sharing::kRows).guest_weights + of(Sharing::kRows).guest_sums, 0);
      EXPECT_EQ(of(Sharing::kData).rows, 0);
      EXPECT_GT(of(Sharing::kAuto).rows, 0);
      EXPECT_LT(of(Sharing::kAuto).rows, of(Sharing::kRows).rows);
      EXPECT_GT(of(Sharing::kAuto).guest_weights, 0);
      EXPECT_LT(of(Sharing::kAuto).guest_weights, of(Sharing::kData).guest_weights);
      EXPECT_GT(of(Sharing::kAuto).guest_sums, 0);
      EXPECT_LT(of(Sharing::kAuto).guest_sums, of(Sharing::kData).guest_sums);
      // Each choice has the fewest bytes.
      const auto bytes = [&](Sharing sharing) {
        return of(sharing).row_bytes + of(sharing).other_bytes;
      };
      EXPECT_LT(bytes(Sharing::kAuto), bytes(Sharing::kRows));
      EXPECT_LT(bytes(Sharing::kAuto), bytes(Sharing::kData));
    }
  }
}

// In zebra on three ranks two attend, and the third has all experts. Where its network card is as
// fast as both others together, it takes rows of both by a lane each. Else what comes in rounds
// comes in turn, by two lanes alternately; in flat order all comes by one.
TEST(RanksPromise, AFastCardTakesRowsOfSeveralAtATime) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, kSteps, [](RunConfig& config) { config.train.chunks = 2; });
  const auto arrived_by = [&](ExchangeSetting exchange, const std::vector<std::string>& rates) {
    SCOPED_TRACE(testing::Message()
                 << "exchange " << static_cast<int>(exchange) << ", " << rates.size() << " rates");
    run.begin();
    RunLeg leg{3, 1};
    leg.until = kSteps;
    leg.configure = [&](RunConfig& config, int) {
      config.parallel.layout = LayoutKind::kZebra;
      config.parallel.attention_devices = 2;
      config.parallel.offloaded = {"0"};
      config.parallel.exchange = exchange;
      config.parallel.network_gb_s = rates;
    };
    const LegOutcome outcome = run.run(leg);
    expect_ok(outcome);
    EXPECT_EQ(run.sha256(), run.expected());
    EXPECT_GT(outcome.arrived.rows, 0);
    return outcome.arrived;
  };
  RankThreads::Arrived arrived = arrived_by(ExchangeSetting::kRounds, {"10", "10", "20"});
  EXPECT_EQ(arrived.lanes, 2);
  EXPECT_GT(arrived.out_of_turn, 0);
  EXPECT_EQ(arrived.in_turn, 0);
  for (const std::vector<std::string>& rates : {{}, std::vector<std::string>(3, "10")}) {
    arrived = arrived_by(ExchangeSetting::kRounds, rates);
    EXPECT_EQ(arrived.lanes, 2);
    EXPECT_GT(arrived.in_turn, 0);
    EXPECT_EQ(arrived.out_of_turn, 0);
  }
  arrived = arrived_by(ExchangeSetting::kFlat, {"10", "10", "20"});
  EXPECT_EQ(arrived.lanes, 1);
  EXPECT_EQ(arrived.in_turn, 0);
}

// Three ranks of two devices have three network cards, which rounds go by: a card's devices count
// as one, and send other parts of their rows than each by itself would.
TEST(RanksPromise, RoundsAreThoseOfCards) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  RankedTrainers run(ClipKind::kGlobal, kSteps);
  run.begin();
  RunLeg leg{3, 2};
  leg.until = kSteps;
  leg.configure = [](RunConfig& config, int) {
    config.parallel.exchange = ExchangeSetting::kRounds;
  };
  leg.started = [](Trainer& trainer, RankGroup&) {
    const RunShape& shape = trainer.session().shape();
    const ExchangeNodes nodes = shape.exchange_nodes();
    EXPECT_EQ(std::vector(nodes.cards().begin(), nodes.cards().end()),
              (std::vector<int>{0, 0, 1, 1, 2, 2}));
    return Status();
  };
  const LegOutcome outcome = run.run(leg);
  expect_ok(outcome);
  EXPECT_GT(outcome.arrived.rows, 0);
  EXPECT_GT(outcome.arrived.in_turn, 0);
  EXPECT_EQ(outcome.arrived.out_of_turn, 0);
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksPromise, NetworkCardsAreOfAllRanks) {
  RankedTrainers run(ClipKind::kGlobal, kSteps);
  RunLeg leg{3, 1};
  leg.until = kSteps;
  leg.configure = [](RunConfig& config, int) { config.parallel.network_gb_s = {"10", "20"}; };
  expect_all_ended(run.run(leg), Exit::kUsage,
                   "parallel.network_gb_s has 2 numbers, and there are 3 ranks");
  // One process sends nothing by a network.
  leg = {1, 2};
  leg.until = kSteps;
  leg.configure = [](RunConfig& config, int) { config.parallel.network_gb_s = {"10", "20"}; };
  run.begin();
  expect_ok(run.run(leg));
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksPromise, OneHash) {
  const Watchdog watchdog("ranks", std::chrono::seconds(all_combinations ? 7200 : 600));
  const std::vector<Levels> rows = rows_of_table(kCounts, is_valid);
  if (!all_combinations) {
    EXPECT_LE(rows.size(), 60u);
  }
  crossed = legs_ahead = 0;
  run_rows(rows, kUnderSanitizer ? 4 : 1, expect_promise);
  if (!kUnderSanitizer) {  // most rows are left out there
    EXPECT_GT(crossed, 0) << "no expert went to another rank";
    EXPECT_GT(legs_ahead, 0) << "no weights came ahead";
  }
}

}  // namespace

}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_table(argc, argv); }
