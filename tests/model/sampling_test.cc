// Choosing the next token: greedy, temperature, nucleus.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "model/sampling.h"

namespace pagoda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t greedy(const std::vector<float>& logits) { return sample_token(logits, {}, 0, 0); }

std::map<int32_t, int> draws(const std::vector<float>& logits, const SamplingSettings& settings,
                             int count) {
  std::map<int32_t, int> seen;
  for (int i = 0; i < count; ++i) {
    ++seen[sample_token(logits, settings, static_cast<uint64_t>(i % 7),
                        static_cast<uint64_t>(i / 7))];
  }
  return seen;
}

TEST(Sampling, GreedyTakesTheLargestAndOfTiesTheFirst) {
  EXPECT_EQ(greedy({0.5f, 2.0f, -1.0f}), 1);
  EXPECT_EQ(greedy({0.5f, 2.0f, 2.0f}), 1);
  EXPECT_EQ(greedy({-kInf, -3.0f}), 1);
  EXPECT_EQ(greedy({1.0f, kInf, kInf}), 1);
}

TEST(Sampling, NothingToChooseFrom) {
  EXPECT_EQ(greedy({}), -1);
  EXPECT_EQ(greedy({-kInf, -kInf}), -1);
  EXPECT_EQ(greedy({1.0f, std::nanf(""), 2.0f}), -1);
  EXPECT_EQ(sample_token(std::vector<float>{std::nanf("")}, {.temperature = 1}, 0, 0), -1);
}

// 20000 draws against softmax(logits / temperature): chi-square with 7 degrees of freedom is above
// 24.3 once in a thousand seeds; this seed is fixed.
TEST(Sampling, FrequenciesFollowProbabilities) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, -0.5f, 1.5f, 0.25f};
  for (const double temperature : {0.7, 1.0, 2.0}) {
    constexpr int kDraws = 20000;
    const auto seen = draws(logits, {.temperature = temperature, .seed = 17}, kDraws);
    double total = 0, chi_square = 0;
    for (float x : logits) total += std::exp(x / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = kDraws * std::exp(logits[i] / temperature) / total;
      const auto found = seen.find(static_cast<int32_t>(i));
      const double count = found == seen.end() ? 0 : found->second;
      chi_square += (count - expected) * (count - expected) / expected;
    }
    EXPECT_LT(chi_square, 24.3) << "temperature " << temperature << ", seed 17";
  }
}

// Probabilities 0.4, 0.3, 0.2, 0.1: the fewest that reach top_p.
TEST(Sampling, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                     std::log(0.3f)};
  const auto kept = [&](double top_p) {
    std::vector<int32_t> tokens;
    for (const auto& [token, count] :
         draws(logits, {.temperature = 1, .top_p = top_p, .seed = 3}, 2000)) {
      tokens.push_back(token);
    }
    return tokens;
  };
  EXPECT_EQ(kept(0.05), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.39), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.41), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(kept(0.69), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(kept(0.71), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(kept(1.0), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Sampling, TopPBreaksTiesByTheLowestToken) {
  const std::vector<float> logits(8, 1.0f);
  std::vector<int32_t> tokens;
  for (const auto& [token, count] :
       draws(logits, {.temperature = 1, .top_p = 0.37, .seed = 4}, 2000)) {
    tokens.push_back(token);
  }
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2})) << "three eighths reach 0.37";
}

TEST(Sampling, TheSameCountersDrawTheSameToken) {
  const std::vector<float> logits(50, 0.0f);
  const SamplingSettings settings{.temperature = 1, .seed = 9};
  std::map<int32_t, int> seen;
  for (uint64_t i = 0; i < 50; ++i) {
    const int32_t token = sample_token(logits, settings, 2, i);
    EXPECT_EQ(token, sample_token(logits, settings, 2, i));
    ++seen[token];
  }
  EXPECT_GT(seen.size(), 10u) << "positions should draw anew";
}

// Far below the best, at a low temperature, nothing overflows and nothing else is drawn.
TEST(Sampling, LowTemperatureIsGreedy) {
  const std::vector<float> logits = {1000.0f, 990.0f, -1000.0f, -kInf};
  EXPECT_EQ(draws(logits, {.temperature = 0.01, .seed = 5}, 500).size(), 1u);
  EXPECT_EQ(sample_token(std::vector<float>{0.0f, kInf}, {.temperature = 1}, 0, 0), 1);
}

}  // namespace
}  // namespace pagoda
