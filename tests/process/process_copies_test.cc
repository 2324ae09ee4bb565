// Copies of a run's model, its early end, and what is told of experts, as the built program does
// them.
#include <algorithm>
#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

const std::string kCard = "README.md";

class CopiesTest : public RunTest {
 protected:
  // Eight steps that learn; an evaluation every second step.
  Flags learning(const std::string& name) const {
    Flags f = flags(name);
    f["train.steps"] = "8";
    f["train.save_steps"] = "2";
    f["train.eval_steps"] = "2";
    f["data.eval_path"] = dir_.file("text.jsonl");
    return f;
  }
  // All of a folder's weights.
  static std::string weights_in(const std::string& folder) {
    std::string all;
    for (const std::string& name : files_in(folder)) {
      if (name.ends_with(".safetensors")) all += get_file(folder + "/" + name);
    }
    return all;
  }
};

TEST_F(CopiesTest, NewestCheckpointsAreFoldersOfTheirOwn) {
  const std::string out = dir_.file("run");
  Flags f = learning("run");
  f["train.keep_copies"] = "2";
  const ProcessResult result = run(train(f));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(files_in(out + "/copies"), (Words{"6", "8"}));
  EXPECT_NE(result.err.find("copies of the model: at most 3 at a time"), std::string::npos)
      << result.err;
  EXPECT_FALSE(fs::exists(out + "/copies.room")) << "nothing is to come";
  EXPECT_EQ(weights_in(out + "/copies/8") == exported("run"), true) << "as export writes it";
  const std::string card = get_file(out + "/copies/8/" + kCard);
  EXPECT_NE(card.find("Step 8 of a run that trained every parameter"), std::string::npos) << card;
  EXPECT_NE(card.find("| data | `text.jsonl` |"), std::string::npos) << card;
  EXPECT_NE(card.find("[optim]\nlearning_rate = "), std::string::npos) << card;
  EXPECT_EQ(card.find(dir_.path()), std::string::npos) << "no folders of this machine";
}

// The loss that the copy has is the lowest of all.
TEST_F(CopiesTest, TheBestEvaluationIsKept) {
  const std::string out = dir_.file("run");
  Flags f = learning("run");
  f["train.keep_best"] = "true";
  f["optim.learning_rate"] = "0.05";  // so large that the loss falls, and rises again
  f["train.steps"] = "16";
  ASSERT_EQ(run(train(f)).code, 0);
  const auto losses = evals("run");
  const auto best =
      std::min_element(losses.begin(), losses.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::string card = get_file(out + "/best/" + kCard);
  EXPECT_NE(card.find("Step " + std::to_string(best->first) + " of a run"), std::string::npos)
      << card;
  EXPECT_FALSE(fs::exists(out + "/best.old"));
  EXPECT_FALSE(fs::exists(out + "/best.partial"));
}

// An interrupted run writes what it would have written, and one that was killed while it renamed
// has its best back.
TEST_F(CopiesTest, AResumedRunHasTheSameCopies) {
  const std::string out = dir_.file("run"), other = dir_.file("other");
  Flags f = learning("run");
  f["train.keep_best"] = "true";
  f["train.keep_copies"] = "3";
  ASSERT_EQ(run(train(f)).code, 0);
  f["train.output_dir"] = other;
  f["train.steps"] = "4";
  f["optim.schedule"] = "constant";
  ASSERT_EQ(run(train(f)).code, 0);
  fs::rename(other + "/best", other + "/best.old");
  fs::create_directory(other + "/best.partial");
  f["train.steps"] = "8";
  ASSERT_EQ(run(train(f, {"--resume"})).code, 0);
  f["train.output_dir"] = dir_.file("third");
  ASSERT_EQ(run(train(f)).code, 0);
  EXPECT_EQ(files_in(other + "/copies"), files_in(dir_.file("third") + "/copies"));
  EXPECT_EQ(weights_in(other + "/copies/6"), weights_in(dir_.file("third") + "/copies/6"));
  EXPECT_EQ(weights_in(other + "/best"), weights_in(dir_.file("third") + "/best"));
  EXPECT_FALSE(fs::exists(other + "/best.old"));
  EXPECT_FALSE(fs::exists(other + "/best.partial"));
}

TEST_F(CopiesTest, ARunThatLearnsNoMoreEndsEarly) {
  const std::string out = dir_.file("run");
  Flags f = learning("run");
  f["train.steps"] = "40";
  f["train.save_steps"] = "40";
  f["train.early_stop"] = "3";
  f["optim.learning_rate"] = "1e-30";  // nothing is ever better than the first
  const ProcessResult result = run(train(f));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("ended early: 3 evaluations in a row gave no lower loss"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(evals("run").size(), 4u);
  EXPECT_EQ(losses("run").size(), 6u);
  EXPECT_EQ(checkpoints("run").rbegin()->first, 6) << "what was trained is saved";
  EXPECT_EQ(run(train(f, {"--resume"})).code, 0);
  EXPECT_EQ(losses("run").size(), 6u) << "it has ended";
}

TEST_F(CopiesTest, WhatTheyNeedIsAskedFor) {
  Flags f = flags("run");
  f["train.early_stop"] = "3";
  expect_refused(run(train(f)), 2, {"train.early_stop = 3", "data.eval_path"});
  f = flags("run");
  f["train.keep_best"] = "true";
  expect_refused(run(train(f)), 2, {"train.keep_best", "data.eval_path"});
  f = flags("run");
  f["train.keep_copies"] = "1";
  f["train.save_steps"] = "0";
  expect_refused(run(train(f)), 2, {"train.keep_copies = 1", "train.save_steps"});
  f["train.keep_copies"] = "-1";
  expect_refused(run(train(f)), 2, {"train.keep_copies = -1"});
  EXPECT_FALSE(fs::exists(dir_.file("run")));
}

}  // namespace
}  // namespace pagoda
