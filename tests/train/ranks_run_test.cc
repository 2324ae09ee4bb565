// The root promise over ranks: the same run on several ranks, each with a session, a page file, a
// host memory, an optimizer and a ledger of its own, ends in the same bits as on one
// (tests/testing/ranks/ranked_run.h).
#include <gtest/gtest.h>

#include "tests/testing/ranks/ranked_run.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

// Half of the product: any three of ranks, devices, budgets and clippings in each combination.
TEST(RanksRun, SameBitsAsOneProcess) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RankedRun run(clip);
    uint64_t seed = 0;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const int devices : {1, 2}) {
        for (const bool smallest : {false, true}) {
          ++seed;
          if ((ranks + devices + smallest + (clip == ClipKind::kGlobal)) % 2 != 0) continue;
          RankedCase c{ranks, devices, smallest};
          c.place = seed % 3 == 0 ? PlaceKind::kHome : PlaceKind::kStep;
          c.clip = clip;
          c.seed = seed;
          SCOPED_TRACE(text_of(c));
          const RankedOutcome outcome = run.on(c);
          expect_alike(outcome);
          EXPECT_EQ(outcome.sha256(), run.sha256());
          if (ranks > 1) {
            EXPECT_GT(outcome.arrived.rows, 0);
            EXPECT_GT(outcome.arrived.other_bytes, 0);
          }
          for (const Paging& paging : outcome.paging) {
            if (smallest) expect_paged(paging);
          }
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

class RanksLook : public testing::TestWithParam<Sharing> {};

TEST_P(RanksLook, SameLossesAndTokensBetweenSteps) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  RankedRun run(ClipKind::kGlobal, DType::kBF16, kTinyConfig, 32, 6, GetParam());
  RankedCase one;
  one.looks = true;
  const RankedOutcome alone = run.on(one);
  expect_alike(alone);
  ASSERT_FALSE(alone.generated[0].empty());
  for (const int ranks : {2, 3}) {
    for (const bool smallest : {false, true}) {
      RankedCase c{ranks, ranks == 2 ? 2 : 1, smallest};
      c.looks = true;
      c.seed = 40 + static_cast<uint64_t>(ranks);
      SCOPED_TRACE(text_of(c));
      const RankedOutcome outcome = run.on(c);
      expect_alike(outcome);
      EXPECT_EQ(outcome.generated[0], alone.generated[0]);
      EXPECT_EQ(outcome.sha256(), alone.sha256());
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sharing, RanksLook, testing::Values(Sharing::kRows, Sharing::kData));

// Switches of the plan, and attention on fewer devices than there are.
TEST(RanksRun, SameBitsForOtherPlans) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  RankedRun run(ClipKind::kGlobal);
  const PlanOptions plans[] = {{.prefetch = false},      {.optimizer_at_end = true},
                               {.whole_layers = true},   {.microbatch_major = true},
                               {.padded_experts = true}, {.group_blocks = 4},
                               {.waves_in_flight = 5}};
  uint64_t seed = 60;
  for (const PlanOptions& plan : plans) {
    RankedCase c{seed % 2 == 0 ? 2 : 3, 1, true};
    c.plan = plan;
    c.seed = seed++;
    c.attending = seed % 3 == 0 ? 1 : 0;
    SCOPED_TRACE(text_of(c));
    const RankedOutcome outcome = run.on(c);
    expect_alike(outcome);
    EXPECT_EQ(outcome.sha256(), run.sha256());
    if (testing::Test::HasFailure()) return;
  }
}

// Plans a run on two ranks with these memory.device.
std::vector<Result<MemoryPlan>> plans_of_two(const TinyRun& tiny, int64_t first, int64_t second) {
  const HfFolder folder = HfFolder::open(tiny.config().model.path).take();
  std::vector<Result<MemoryPlan>> plans(2, Status(Exit::kIoError, "not planned"));
  RankThreads threads(2, {0, 1, 0, 1});
  threads.run([&](RankGroup& group) {
    SessionOptions options = session_options(tiny.config());
    options.ranks = &group;
    CHECK(join_ranks(tiny.config(), group, options).ok());
    options.device_bytes = group.rank() == 0 ? first : second;
    plans[static_cast<size_t>(group.rank())] = Session::plan(folder.config(), options);
  });
  return plans;
}

// A rank that could have larger groups and more waves has those of one that cannot. What it says of
// its own least budget does not depend on the other.
TEST(RanksRun, LeastBudgetsAreThoseOfFewGroupsWhateverOthersHave) {
  const TinyRun tiny;
  const auto least = [&](int64_t first, int64_t second, size_t rank) {
    return plans_of_two(tiny, first, second)[rank]->min_device_bytes;
  };
  auto roomy = plans_of_two(tiny, kGiB, kGiB);
  ASSERT_GT(roomy[0]->waves_in_flight, kLeastWaves);
  ASSERT_GT(roomy[0]->group_bytes[0], 0);
  const int64_t of_first = roomy[0]->min_device_bytes, of_second = roomy[1]->min_device_bytes;
  auto mixed = plans_of_two(tiny, kGiB, of_second);
  EXPECT_EQ(mixed[0]->waves_in_flight, kLeastWaves);
  EXPECT_EQ(mixed[0]->group_blocks, 1);
  EXPECT_EQ(mixed[0]->group_bytes, std::vector<int64_t>{0});
  EXPECT_EQ(mixed[0]->min_device_bytes, of_first);
  EXPECT_EQ(mixed[1]->min_device_bytes, of_second);
  EXPECT_EQ(least(of_first, kGiB, 1), of_second);
  EXPECT_EQ(plans_of_two(tiny, of_first - 1, kGiB)[0].status().code(), Exit::kDeviceMemory);
  EXPECT_EQ(plans_of_two(tiny, kGiB, of_second - 1)[1].status().code(), Exit::kDeviceMemory);
}

// Two layers, two steps.
constexpr const char* kTwoLayers = R"({
  "num_hidden_layers": 2, "num_experts": 6, "mlp_only_layers": []})";

// One transfer in three fails.
TEST(RanksRun, TransfersFailOnce) {
  const Watchdog watchdog("ranks", std::chrono::seconds(600));
  RankedRun run(ClipKind::kGlobal, DType::kBF16, tiny_with(kTwoLayers).c_str(), 32, 2);
  RankedCase c{3, 1, true};
  const RankedOutcome good = run.on(c);
  expect_alike(good);
  EXPECT_EQ(good.sha256(), run.sha256());
  const size_t stride = kUnderSanitizer ? 17 : 3;
  for (size_t i = 0; i < good.sent.size(); i += stride) {
    c.fails = good.sent[i];
    c.seed = i;
    const auto& [from, to, number] = good.sent[i];
    SCOPED_TRACE(testing::Message() << "transfer " << number << " from " << from << " to " << to);
    const int receiver = to < 3 ? to : to - 3;
    expect_ended(run.on(c), Exit::kStopped, strf("rank %d: ", receiver));
    if (testing::Test::HasFailure()) return;
  }
}

// One rank cannot read its pages.
TEST(RanksRun, AnErrorOfOneRankEndsAll) {
  const Watchdog watchdog("ranks", std::chrono::seconds(300));
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RankedRun run(clip);
    RankedCase c{3, 1, true};
    c.clip = clip;
    for (int rank = 0; rank < 3; ++rank) {
      for (const int64_t at : {1, 7, 20, 45, 90}) {
        c.faulty = rank;
        c.fault_at = at;
        c.seed = static_cast<uint64_t>(at);
        SCOPED_TRACE(testing::Message() << "read " << at << " of rank " << rank);
        expect_ended(run.on(c), Exit::kIoError, strf("rank %d: ", rank));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// What a rank tells of its sums is looked at before it is believed.
TEST(RanksRun, SumsOfAnotherLengthAreRefused) {
  RunShape shape;
  shape.microbatches = 4;
  shape.sums.shards = 2;
  shape.devices = 2;
  shape.shard_device = {0, 1};
  shape.device_rank = {0, 1};
  shape.records = {{.device = 0}, {.device = 1}, {.device = 1}};
  shape.rank = 1;
  const std::vector<int64_t> touched = {0, 2};
  const StepSums sums{{1, 2, 3, 4}, {10, 20}};
  const std::string told = own_sums(shape, touched, sums);
  EXPECT_EQ(told.size(), 3 * sizeof(double)) << "two microbatches and a record";
  StepSums others{{5, 6, 7, 8}, {30, 40}};
  ASSERT_TRUE(take_sums(shape, 1, touched, told, others));
  EXPECT_EQ(others.loss_sums, (std::vector<double>{5, 6, 3, 4}));
  EXPECT_EQ(others.square_sums, (std::vector<double>{30, 20}));
  EXPECT_FALSE(take_sums(shape, 1, touched, told.substr(1), others));
  EXPECT_FALSE(take_sums(shape, 1, touched, told + "x", others));
  EXPECT_FALSE(take_sums(shape, 0, touched, told.substr(8) + told.substr(8), others));
}

}  // namespace
}  // namespace pagoda
