// Routers that stop choosing an expert, or choose one too often.
#include "report/expert_watch.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda {
namespace {

using Step = std::vector<std::vector<int64_t>>;
using Texts = std::vector<std::string>;

TEST(ExpertWatch, TellsOfDeadExpertsOnce) {
  ExpertWatch watch(3, 0);
  const Step step = {{}, {40, 0, 41, 39}};  // a dense layer, and one with experts
  EXPECT_EQ(watch.note(step), Texts());
  EXPECT_EQ(watch.note(step), Texts());
  EXPECT_EQ(watch.note(step), Texts{"layer 1: expert 1 had no token in 3 steps"});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(watch.note(step), Texts()) << "it was told";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(watch.note({{}, {0, 50, 0, 70}}), Texts());
  EXPECT_EQ(watch.note({{}, {0, 50, 0, 70}}),
            Texts{"layer 1: experts 0 and 2 had no token in 3 steps"});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(watch.note({{}, {30, 30, 30, 30}}), Texts());
  EXPECT_EQ(watch.note({{}, {30, 30, 30, 30}}), Texts{"layer 1: all experts get tokens again"});
}

TEST(ExpertWatch, OneTokenInAWindowIsLife) {
  ExpertWatch watch(2, 0);
  watch.note({{100, 1}});
  EXPECT_EQ(watch.note({{100, 0}}), Texts());
}

TEST(ExpertWatch, TellsOfOverloadedOnes) {
  ExpertWatch watch(1, 2.5);
  EXPECT_EQ(watch.note({{250, 50, 50, 50}}), Texts()) << "exactly 2.5 times the mean";
  EXPECT_EQ(watch.note({{251, 49, 50, 50}}),
            Texts{"layer 0: expert 0 had more than 2.5 times the mean"});
  EXPECT_EQ(watch.note({{330, 0, 40, 30}}),
            Texts{"layer 0: expert 1 had no token in 1 steps; expert 0 had more than 2.5 times the "
                  "mean"});
}

TEST(ExpertWatch, FewTokensProveNothing) {
  ExpertWatch watch(1, 2);
  EXPECT_EQ(watch.note({{79, 0, 0, 0}}), Texts()) << "an even router would give 19.75 each";
  EXPECT_EQ(watch.note({{80, 0, 0, 0}}).size(), 1u);
  EXPECT_EQ(ExpertWatch(0, 2).note({{800, 0, 0, 0}}), Texts()) << "it is off";
}

// Chance alone makes no expert look dead.
TEST(ExpertWatch, AnEvenRouterIsNotWarnedOf) {
  std::mt19937_64 random(7);
  ExpertWatch watch(5, 3);
  for (int step = 0; step < 5000; ++step) {
    Step tokens(1, std::vector<int64_t>(16, 0));
    for (int i = 0; i < 70; ++i) ++tokens[0][random() % 16];
    ASSERT_EQ(watch.note(tokens), Texts()) << "step " << step;
  }
}

TEST(ExpertWatch, ManyAreCountedAndSomeNamed) {
  ExpertWatch watch(1, 0);
  Step step(1, std::vector<int64_t>(40, 0));
  for (size_t e = 0; e < 20; ++e) step[0][2 * e] = 100;
  EXPECT_EQ(watch.note(step), Texts{"layer 0: 20 experts (1, 3, 5, 7, 9, 11, 13, 15, ...) had no "
                                    "token in 1 steps"});
}

}  // namespace
}  // namespace pagoda
