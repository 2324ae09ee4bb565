// The ledger against a bookkeeper that never defers: every update is applied to every record at
// once. What the ledger lets the program put off must end in the same bits.
#include "train/ledger.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "base/dtype.h"
#include "base/random.h"
#include "optim/adam.h"

namespace pagoda {
namespace {

constexpr int64_t kElements = 37;
constexpr int64_t kRecords = 6;

// One record's numbers, as the optimizer sees them.
struct Numbers {
  StateLayout layout{StateFormat::kFp32, DType::kF32, kElements};
  AdamSpan span{0, kElements, true};
  std::vector<float> weights;
  std::vector<std::byte> state;

  explicit Numbers(uint64_t seed)
      : weights(kElements), state(static_cast<size_t>(layout.bytes)) {
    std::vector<float> masters;
    for (int64_t i = 0; i < kElements; ++i) {
      masters.push_back(random_normal(seed, RandomPurpose::kTest, 1, static_cast<uint64_t>(i)));
    }
    begin_state(layout, masters.data(), weights.data(), state.data());
  }
  void apply(const Ledger::Step& step, const std::vector<float>* gradient, ThreadPool& pool) {
    const AdamStep adam{.lr = step.learning_rate, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                        .weight_decay = 0.1, .t = step.t};
    EXPECT_TRUE(adam_update(adam, {layout, {&span, 1}, weights.data(), state.data()},
                            gradient ? gradient->data() : nullptr, step.clip_factor, pool));
  }
  bool same_bits(const Numbers& other) const {
    return state == other.state &&
           std::memcmp(weights.data(), other.weights.data(), weights.size() * sizeof(float)) == 0;
  }
};

struct Update {
  double learning_rate = 0;
  float clip_factor = 1;
};

// Pays at once. With `skip` a record without a gradient is left alone.
class Eager {
 public:
  Eager(bool skip, int64_t steps_before) : skip_(skip), t_(kRecords, steps_before) {
    for (int64_t r = 0; r < kRecords; ++r) numbers.emplace_back(static_cast<uint64_t>(r));
  }
  void update(const Update& u, const std::map<int64_t, std::vector<float>>& gradients,
              ThreadPool& pool) {
    for (int64_t r = 0; r < kRecords; ++r) {
      const auto gradient = gradients.find(r);
      if (skip_ && gradient == gradients.end()) continue;
      numbers[r].apply({u.learning_rate, u.clip_factor, ++t_[r], true},
                       gradient == gradients.end() ? nullptr : &gradient->second, pool);
    }
  }
  std::vector<Numbers> numbers;
  const std::vector<int64_t>& steps_of_record() const { return t_; }

 private:
  const bool skip_;
  std::vector<int64_t> t_;
};

std::vector<float> random_gradient(uint64_t seed, int64_t update, int64_t record) {
  std::vector<float> gradient;
  for (int64_t i = 0; i < kElements; ++i) {
    gradient.push_back(random_normal(seed, RandomPurpose::kTest,
                                     static_cast<uint64_t>(100 + update * kRecords + record),
                                     static_cast<uint64_t>(i)));
  }
  return gradient;
}

// Pays as late as a seeded mood allows, but never later than the ledger says.
class Lazy {
 public:
  Lazy(bool skip, int64_t updates_before)
      : ledger(skip, updates_before, std::vector<int64_t>(kRecords, updates_before)) {
    for (int64_t r = 0; r < kRecords; ++r) numbers.emplace_back(static_cast<uint64_t>(r));
  }
  void apply(int64_t record, ThreadPool& pool) {
    if (!ledger.has_pending(record)) return;
    const bool with_gradient = ledger.has_gradient(record);
    const std::vector<Ledger::Step> steps = ledger.apply(record);
    longest_debt = std::max(longest_debt, static_cast<int64_t>(steps.size()));
    int64_t gradients = 0;
    for (const Ledger::Step& step : steps) {
      gradients += step.has_gradient;
      numbers[record].apply(step, step.has_gradient ? &waiting[record] : nullptr, pool);
    }
    EXPECT_EQ(gradients, with_gradient ? 1 : 0);
    EXPECT_FALSE(ledger.has_pending(record));
    EXPECT_FALSE(ledger.has_gradient(record));
    waiting.erase(record);
  }
  Ledger ledger;
  std::vector<Numbers> numbers;
  std::map<int64_t, std::vector<float>> waiting;
  int64_t longest_debt = 0;
};

void expect_same(const Lazy& lazy, const Eager& eager, int64_t record) {
  EXPECT_TRUE(lazy.numbers[record].same_bits(eager.numbers[record])) << "record " << record;
  EXPECT_EQ(lazy.ledger.steps_of_record()[record], eager.steps_of_record()[record]);
}

void run_trial(uint32_t seed, bool skip, int64_t updates_before, int64_t* longest_debt) {
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  ThreadPool pool(1);
  Eager eager(skip, updates_before);
  Lazy lazy(skip, updates_before);
  for (int64_t n = 1; n <= 150; ++n) {
    // Before an update: what is due, what the step needs (it will get a gradient), a few others.
    std::map<int64_t, std::vector<float>> gradients;
    for (int64_t r = 0; r < kRecords; ++r) {
      const bool touched = pick(static_cast<int>(2 + 12 * r)) == 0;  // some often, some rarely
      if (touched) gradients[r] = random_gradient(seed, n, r);
      if (touched || lazy.ledger.overdue(r) || pick(60) == 0) {
        lazy.apply(r, pool);
        expect_same(lazy, eager, r);
      }
    }
    const Update u{1e-2 / static_cast<double>(n), n % 3 == 0 ? 0.25f : 1.0f};
    eager.update(u, gradients, pool);
    lazy.ledger.begin(u.learning_rate, u.clip_factor);
    for (auto& [record, gradient] : gradients) {
      lazy.ledger.touch(record);
      lazy.waiting[record] = gradient;
      EXPECT_TRUE(lazy.ledger.has_pending(record));
    }
    EXPECT_EQ(lazy.ledger.updates(), updates_before + n);
  }
  for (int64_t r = 0; r < kRecords; ++r) {
    lazy.apply(r, pool);
    expect_same(lazy, eager, r);
  }
  *longest_debt = std::max(*longest_debt, lazy.longest_debt);
}

TEST(Ledger, LatePaymentGivesTheBitsOfPayingAtOnce) {
  int64_t longest = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run_trial(seed, false, seed % 3 == 0 ? 1000 : 0, &longest);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(longest, Ledger::kMostMissed) << "no count grew to the bound, or one grew beyond it";
}

TEST(Ledger, SkippedRecordsCountTheirOwnSteps) {
  int64_t longest = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run_trial(seed, true, seed % 3 == 0 ? 1000 : 0, &longest);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(longest, 1) << "an expert without tokens must have nothing pending";
}

TEST(Ledger, DebtIsDueAtTheBoundAndNotBefore) {
  Ledger ledger(false, 0, {0, 0});
  for (int64_t n = 1; n <= Ledger::kMostMissed; ++n) {
    EXPECT_FALSE(ledger.overdue(0)) << "after " << n - 1 << " updates";
    ledger.begin(1.0, 1.0f);
    EXPECT_TRUE(ledger.has_pending(0));
  }
  EXPECT_TRUE(ledger.overdue(0));
  EXPECT_EQ(ledger.apply(0).size(), static_cast<size_t>(Ledger::kMostMissed));
  EXPECT_FALSE(ledger.overdue(0));
  EXPECT_TRUE(ledger.overdue(1)) << "each record has its own account";
  EXPECT_TRUE(ledger.apply(0).empty());
}

TEST(Ledger, SkipModeIsNeverDue) {
  Ledger ledger(true, 0, {0});
  for (int64_t n = 0; n < 3 * Ledger::kMostMissed; ++n) ledger.begin(1.0, 1.0f);
  EXPECT_FALSE(ledger.overdue(0));
  EXPECT_FALSE(ledger.has_pending(0));
  ledger.begin(0.5, 0.25f);
  ledger.touch(0);
  const std::vector<Ledger::Step> steps = ledger.apply(0);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].t, 1);
  EXPECT_EQ(steps[0].learning_rate, 0.5);
  EXPECT_EQ(steps[0].clip_factor, 0.25f);
  EXPECT_TRUE(steps[0].has_gradient);
}

TEST(Ledger, AGradientKeepsItsPlaceAmongLaterUpdates) {
  Ledger ledger(false, 10, {4});
  ledger.begin(0.1, 1.0f);
  ledger.begin(0.2, 0.5f);
  ledger.touch(0);
  ledger.begin(0.3, 1.0f);
  const std::vector<Ledger::Step> steps = ledger.apply(0);
  ASSERT_EQ(steps.size(), 3u);
  const double rates[] = {0.1, 0.2, 0.3};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(steps[i].learning_rate, rates[i]);
    EXPECT_EQ(steps[i].t, 5 + i);
    EXPECT_EQ(steps[i].has_gradient, i == 1);
  }
  EXPECT_EQ(steps[1].clip_factor, 0.5f);
}

TEST(LedgerDeathTest, MisuseIsABug) {
  Ledger ledger(false, 0, {0});
  ledger.begin(1.0, 1.0f);
  ledger.touch(0);
  EXPECT_DEATH(ledger.touch(0), "two gradients");
  Ledger forgotten(false, 0, {0});
  for (int64_t n = 0; n <= 2 * Ledger::kMostMissed; ++n) forgotten.begin(1.0, 1.0f);
  EXPECT_DEATH(forgotten.apply(0), "history was dropped");
}

}  // namespace
}  // namespace pagoda
