// `pagoda eval` and `pagoda generate` on several devices, and as several processes that mpirun
// starts on this machine: what one device says, once, and ends that are alike.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/terminal_text.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/mpi_run_test.h"

namespace pagoda {
namespace {

class ServeTest : public MpiRunTest {
 protected:
  Words eval(const Words& more) const {
    return Words{"eval",
                 "--data.eval_path",
                 dir_.file("text.jsonl"),
                 "--data.sequence_len",
                 "64",
                 "--train.micro_batch_tokens",
                 "128"} +
           common() + more;
  }
  Words generate(const Words& more) const {
    return Words{"generate", "--max_new_tokens", "8"} + common() + more;
  }
  Words common() const {
    return {"--train.threads", "1",     "--memory.disk", dir_.path(),
            "--memory.device", "16MiB", "--memory.host", "16MiB"};
  }
  Words model() const { return {"--model.path", dir_.file("model")}; }
  std::string out_of(const ProcessResult& result) {
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  // Without what a run took.
  nlohmann::json json_of(const ProcessResult& result) {
    auto object = nlohmann::json::parse(out_of(result), nullptr, false);
    EXPECT_TRUE(object.is_object()) << result.out;
    for (const char* key : {"seconds", "tokens_per_s", "fetch_bytes", "upload_bytes"}) {
      if (object.is_object()) object.erase(key);
    }
    return object;
  }
  // In one process and in several, each with so many devices.
  void expect_everywhere(const Words& words, const nlohmann::json& expected) {
    for (const char* devices : {"cpu*2", "cpu/2:6,cpu/2:2,cpu"}) {
      EXPECT_EQ(json_of(run(words + Words{"--train.devices", devices})), expected) << devices;
    }
    for (const int processes : {2, 3}) {
      const char* exchange = processes == 2 ? "auto" : "rounds";
      EXPECT_EQ(json_of(mpirun(processes, words + Words{"--parallel.exchange", exchange})),
                expected)
          << processes << " processes";
    }
    put_file(dir_.file("run.toml"),
             "[rank.0.train]\ndevices = [\"cpu/2\"]\n[rank.1.train]\ndevices = [\"cpu*2\"]\n");
    const Words unequal = {dir_.file("run.toml"), "--parallel.exchange", "halo"};
    EXPECT_EQ(json_of(mpirun(2, words + unequal)), expected);
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      EXPECT_EQ(entry.path().filename().string().find("pagoda-scratch"), std::string::npos);
    }
  }
};

TEST_F(ServeTest, OneLoss) {
  const Words words = eval(model() + Words{"--json"});
  const nlohmann::json expected = json_of(run(words));
  EXPECT_GT(expected.value("loss", 0.0), 1);
  expect_everywhere(words, expected);
  const std::string line = out_of(run(eval(model())));
  EXPECT_EQ(out_of(mpirun(2, eval(model()))), line);
}

TEST_F(ServeTest, OneContinuation) {
  Words prompts;
  for (const char* text : {"row 1", "row 2 ccc", "r", "row 77 with more of it"}) {
    prompts = prompts + Words{"--prompt", text};
  }
  const Words drawn = {"--temperature", "1", "--top_p", "0.9", "--seed", "5", "--json"};
  const Words words = generate(model() + prompts + drawn);
  const nlohmann::json expected = json_of(run(words));
  ASSERT_EQ(expected["generated"].size(), 4u);
  expect_everywhere(words, expected);
  // A single one is streamed, by rank 0. A launcher may have its own terminal between.
  const Words single = generate(model() + Words{"--prompt", "row 2 ccc"});
  const std::string text = out_of(run(single)), streamed = out_of(mpirun(2, single));
  EXPECT_TRUE(streamed == text || streamed == terminal_text(text)) << streamed << text;
}

// A run of two processes, in whose stores the weights are.
TEST_F(ServeTest, ARunsCheckpoint) {
  Flags flags = flags_of("run", 4);
  flags["data.eval_path"] = dir_.file("text.jsonl");
  flags["train.eval_steps"] = "4";
  ASSERT_EQ(mpirun(2, train(flags)).code, 0);
  const Words of_run = Words{"eval", "--checkpoint", dir_.file("run"), "--json"} + common();
  EXPECT_EQ(json_of(mpirun(2, of_run)), json_of(run(of_run)));
  const Words part = of_run + Words{"--train.eval_batches", "8"};
  EXPECT_EQ(json_of(mpirun(3, part)).value("loss", 0.0), evals("run").at(4)) << "as the run says";
  const Words continued =
      generate({"--checkpoint", dir_.file("run"), "--prompt", "row 3", "--json"});
  EXPECT_EQ(json_of(mpirun(2, continued)), json_of(run(continued)));
}

TEST_F(ServeTest, EndsAlike) {
  put_file(dir_.file("small.toml"), "[rank.1.memory]\ndevice = [\"1KiB\"]\n");
  Words words = {"eval",
                 "--data.eval_path",
                 dir_.file("text.jsonl"),
                 "--data.sequence_len",
                 "64",
                 "--memory.disk",
                 dir_.path(),
                 "--memory.host",
                 "16MiB"};
  expect_ended(mpirun(2, words + model() + Words{dir_.file("small.toml")}), 72,
               "rank 1: memory.device is 1024 B");
  expect_ended(mpirun(2, eval({"--model.path", dir_.file("none")})), 66, dir_.file("none"));
  expect_ended(mpirun(2, generate(model())), 2, "nothing to continue");
  const Words a = generate(model() + Words{"--prompt", "a"});
  const Words b = generate(model() + Words{"--prompt", "b"});
  const Words beside = Words{PAGODA_BINARY} + a + Words{":", "-n", "1", PAGODA_BINARY} + b;
  expect_ended(Process(mpirun_words(1) + beside, dir_.file("beside")).wait(), 2,
               "start all with the same options");
}

}  // namespace
}  // namespace pagoda
