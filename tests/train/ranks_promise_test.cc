// The root promise over ranks: a run file has one hash, on however many ranks and devices it begins
// and goes on, with budgets of which some page and some do not, with transfers that are late, and
// in each exchange of rows. Rows have every pair of these; started with --full-product, the program
// runs every combination.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/testing/ranks/ranked_trainers.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/watchdog.h"
#include "tests/train/pairwise.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = 4;

// The first leg, and the second one, on as many ranks less one; on 0 there is none.
enum Factor {
  kRanks,
  kDevices,
  kBudget,
  kLaterRanks,
  kLaterDevices,
  kLaterBudget,
  kClip,
  kExchange
};
const Levels kCounts = {4, 2, 3, 5, 2, 3, 2, 3};
constexpr ExchangeSetting kExchanges[] = {ExchangeSetting::kAuto, ExchangeSetting::kRounds,
                                          ExchangeSetting::kHalo};
enum Budget { kAmple, kSmallest, kSmallestButOne };

bool is_valid(const Levels& row) {
  // Two nodes of two devices, wherever it matters.
  if (row[kExchange] > 0 && (row[kRanks] != 1 || row[kDevices] != 1)) return false;
  if (row[kLaterRanks] == 0 && (row[kLaterDevices] > 0 || row[kLaterBudget] > 0)) return false;
  const auto some_page = [&](Factor budget, int ranks) {
    return row[budget] != kSmallestButOne || ranks > 1;
  };
  return some_page(kBudget, row[kRanks] + 1) && some_page(kLaterBudget, row[kLaterRanks]);
}

std::string text_of(const Levels& row) {
  std::string text = "ranks, devices, budget, later ranks, devices, budget, clip, exchange:";
  for (const int level : row) text += strf(" %d", level);
  return text;
}

RankedTrainers& trainers(const Levels& row) {
  static std::map<int, std::unique_ptr<RankedTrainers>> known;
  auto& run = known[row[kClip]];
  if (!run) {
    run = std::make_unique<RankedTrainers>(
        row[kClip] == 0 ? ClipKind::kGlobal : ClipKind::kPerExpert, kSteps);
  }
  return *run;
}

void run_leg(RankedTrainers& run, RunLeg leg, int budget, ExchangeSetting exchange) {
  leg.configure = [exchange](RunConfig& config, int) { config.parallel.exchange = exchange; };
  leg.smallest = budget != kAmple;
  leg.ample_rank = budget == kSmallestButOne ? leg.ranks - 1 : -1;
  const LegOutcome outcome = run.run(leg);
  for (const Status& status : outcome.statuses) ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(outcome.saved_step, leg.until);
  if (leg.ranks > 1) {
    EXPECT_GT(outcome.arrived.rows, 0) << "nothing travelled";
  }
  for (int rank = 0; rank < leg.ranks; ++rank) {
    if (leg.smallest && rank != leg.ample_rank) {
      expect_paged(outcome.paging[static_cast<size_t>(rank)]);
    }
  }
}

void expect_promise(const Levels& row, uint64_t number) {
  SCOPED_TRACE(text_of(row));
  const bool resumes = row[kLaterRanks] > 0;
  const ExchangeSetting exchange = kExchanges[row[kExchange]];
  RankedTrainers& run = trainers(row);
  run.begin();
  RunLeg leg{row[kRanks] + 1, row[kDevices] + 1};
  leg.until = resumes ? kSteps / 2 : kSteps;
  leg.seed = 2 * number + 1;
  run_leg(run, leg, row[kBudget], exchange);
  if (resumes && !testing::Test::HasFailure()) {
    leg = {row[kLaterRanks], row[kLaterDevices] + 1};
    leg.until = kSteps;
    leg.seed = 2 * number + 2;
    leg.resume = true;
    run_leg(run, leg, row[kLaterBudget], exchange);
  }
  EXPECT_EQ(run.sha256(), run.expected());
}

TEST(RanksPromise, OneHash) {
  const Watchdog watchdog("ranks", std::chrono::seconds(all_combinations ? 7200 : 600));
  const std::vector<Levels> rows = rows_of_table(kCounts, is_valid);
  run_rows(rows, kUnderSanitizer ? 4 : 1, expect_promise);
}

}  // namespace

}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_table(argc, argv); }
