// `pagoda eval`, as the built program: how much of the text it takes, and which options it minds.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

class EvalTest : public RunTest {
 protected:
  Words eval(const Words& more) const {
    return Words{"eval",
                 "--model.path",
                 dir_.file("model"),
                 "--data.eval_path",
                 dir_.file("text.jsonl"),
                 "--train.threads",
                 "2",
                 "--memory.disk",
                 dir_.path()} +
           more;
  }
  nlohmann::json json_of(const Words& more) {
    const ProcessResult result = run(eval(more + Words{"--json"}));
    EXPECT_EQ(result.code, 0) << result.err;
    const auto object = nlohmann::json::parse(result.out, nullptr, false);
    EXPECT_TRUE(object.is_object()) << result.out;
    return object;
  }
};

// 200 rows of text; a byte is a token and each row ends with one.
TEST_F(EvalTest, TakesTheWholeTextUnlessToldOtherwise) {
  const Words shape = {"--data.sequence_len", "128", "--train.micro_batch_tokens", "256"};
  const auto all = json_of(shape);
  EXPECT_EQ(all["rows"], all["rows_of_text"]);
  EXPECT_GT(all["rows"].get<int>(), 8 * 2) << "not more than the 8 microbatches that train takes";
  const auto part = json_of(shape + Words{"--train.eval_batches", "3"});
  EXPECT_EQ(part["rows"], 3 * 2);
  EXPECT_EQ(part["rows_of_text"], all["rows"]);
  EXPECT_LT(part["tokens"].get<int>(), all["tokens"].get<int>());
  const ProcessResult told = run(eval(shape + Words{"--train.eval_batches", "3"}));
  EXPECT_NE(told.out.find("; the first 6 of the text's "), std::string::npos) << told.out;
  EXPECT_EQ(run(eval(shape)).out.find("the first"), std::string::npos);
}

TEST_F(EvalTest, ALengthAloneIsEnough) {
  const auto all = json_of({"--data.sequence_len", "100"});
  EXPECT_EQ(all["rows"], all["rows_of_text"]);
  // What was asked for must still fit.
  expect_refused(run(eval({"--data.sequence_len", "100", "--train.micro_batch_tokens", "128"})), 2,
                 {"train.micro_batch_tokens = 128", "multiple of data.sequence_len = 100"});
}

// Only the options that the command reads count in a run file.
TEST_F(EvalTest, MindsNoOptionOfTraining) {
  put_file(dir_.file("run.toml"),
           "[train]\ntokens_per_step = 7\nsteps = 5\nsave_steps = -3\noptimizer_threads = 99999\n"
           "[optim]\nwarmup_steps = 50\nbeta1 = 3.0\n[sample]\nprompts = [\"\"]\n");
  const Words file = {dir_.file("run.toml")};
  EXPECT_EQ(json_of(Words{"--data.sequence_len", "32"} + file),
            json_of({"--data.sequence_len", "32"}));
  const ProcessResult generated =
      run(Words{"generate", "--model.path", dir_.file("model"), "--memory.disk", dir_.path(),
                "--max_new_tokens", "2", "--prompt", "a"} +
          file);
  EXPECT_EQ(generated.code, 0) << generated.err;
}

}  // namespace
}  // namespace pagoda
