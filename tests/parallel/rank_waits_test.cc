// Who holds up a rank: the chain of waits to its end, by what was heard in time and no longer.
#include "parallel/rank_waits.h"

#include <gtest/gtest.h>

namespace pagoda {
namespace {

constexpr int64_t kPeriod = 100, kLate = 1000, kLong = 500;
using Ranks = std::vector<int>;

class RankWaitsTest : public testing::Test {
 protected:
  RankWaitsTest() {
    waits_.begin_beats(kPeriod, [this](int rank) { accused_.push_back(rank); });
  }
  // The chain of rank 0, which waits for rank 1; empty: more is to be heard.
  Ranks chain(int64_t now_us = kLate + kPeriod) const {
    const auto found = waits_.chain(0, 1, kLate, now_us);
    return found ? found->ranks : Ranks();
  }

  RankWaits waits_;
  Ranks accused_;
};

TEST_F(RankWaitsTest, TheEndOfAChainIsTheCulprit) {
  waits_.note(1, {3, kLong, kLate + 1});
  waits_.note(3, {2, kLong, kLate + 2});
  waits_.note(2, {0, 0, kLate + 3});
  EXPECT_EQ(chain(), (Ranks{0, 1, 3, 2}));
  EXPECT_FALSE(waits_.chain(0, 1, kLate, kLate)->is_circle());
  EXPECT_EQ(waits_.chain(0, 1, kLate, kLate)->culprit(), 2);
}

// What was heard before the deadline passed may have changed.
TEST_F(RankWaitsTest, OldWordsDoNotCount) {
  waits_.note(1, {2, kLong, kLate});
  waits_.note(2, {0, 0, kLate + 1});
  EXPECT_EQ(chain(), Ranks());
  waits_.note(1, {2, kLong, kLate + 1});
  EXPECT_EQ(chain(), (Ranks{0, 1, 2}));
  waits_.note(2, {0, 0, kLate});
  EXPECT_EQ(chain(), Ranks());
}

// A period and a half is enough to be heard again.
TEST_F(RankWaitsTest, NobodyIsWaitedForLong) {
  waits_.note(1, {2, kLong, kLate});
  EXPECT_EQ(chain(kLate + 149), Ranks());
  EXPECT_EQ(chain(kLate + 150), (Ranks{0, 1}));
  waits_.note(1, {2, kLong, kLate + 140});
  EXPECT_EQ(chain(kLate + 149), Ranks());
  EXPECT_EQ(chain(kLate + 150), (Ranks{0, 1, 2}));
}

TEST_F(RankWaitsTest, AMomentIsNoWait) {
  waits_.note(1, {2, kPeriod - 1, kLate + 1});
  waits_.note(2, {0, 0, kLate + 1});
  EXPECT_EQ(chain(), (Ranks{0, 1}));
  waits_.note(1, {2, kPeriod, kLate + 1});
  EXPECT_EQ(chain(), (Ranks{0, 1, 2}));
}

// There is no end: the next one is named.
TEST_F(RankWaitsTest, ACircleEnds) {
  waits_.note(1, {2, kLong, kLate + 1});
  for (const int back : {0, 1}) {
    waits_.note(2, {back, kLong, kLate + 1});
    EXPECT_EQ(chain(), (Ranks{0, 1, 2, back}));
    const auto found = waits_.chain(0, 1, kLate, kLate + 1);
    EXPECT_TRUE(found->is_circle());
    EXPECT_EQ(found->culprit(), 1);
  }
}

TEST_F(RankWaitsTest, WithoutHeartbeatsNothingIsWaitedFor) {
  waits_.note(1, {2, kLong, kLate + 1});
  waits_.accuse(2);
  waits_.end_beats();
  EXPECT_EQ(chain(kLate), (Ranks{0, 1}));
  waits_.accuse(1);
  EXPECT_EQ(accused_, Ranks{2});
}

}  // namespace
}  // namespace pagoda
