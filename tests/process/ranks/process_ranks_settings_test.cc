// Settings of runs of several processes that mpirun starts on this machine: what one rank may have
// of its own, what all take from the machine with the least room, and how many ranks a model takes.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

using RanksTest = MpiRunTest;

TEST_F(RanksTest, RanksHaveSettingsOfTheirOwn) {
  Flags flags = flags_of("own", 2);
  flags.erase("memory.host");
  std::string file = "[memory]\nhost = \"16MiB\"\n[rank.1.memory]\nhost = \"1KiB\"\n";
  put_file(dir_.file("run.toml"), file);
  expect_ended(mpirun(2, train(flags, {dir_.file("run.toml")})), 71,
               "rank 1: memory.host is 1024 B");
  file = "[rank.1.memory]\nhost = \"16MiB\"\ndisk = [\"" + dir_.file("disk-{rank}") + "\"]\n";
  put_file(dir_.file("run.toml"), file);
  flags["memory.host"] = "16MiB";
  const ProcessResult result = mpirun(2, train(flags, {dir_.file("run.toml")}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_directory(dir_.file("disk-1")));
  put_file(dir_.file("run.toml"), "[rank.1.optim]\nlearning_rate = 1.0\n");
  expect_ended(mpirun(2, train(flags_of("none", 2), {dir_.file("run.toml")})), 2,
               "optim.learning_rate is the same for all ranks");
  // Other settings on one rank: rank 0's count, with one warning.
  const Words one = train(flags_of("first", 2), {"-q"});
  Flags changed = flags_of("first", 2);
  changed["optim.learning_rate"] = "0.5";
  const Words other = train(changed, {"-q"});
  const Words both = on(1, one) + Words{":", "-n", "1", PAGODA_BINARY} + other;
  const ProcessResult differing = Process(both, dir_.file("ranks")).wait();
  EXPECT_EQ(differing.code, 0) << differing.err;
  EXPECT_NE(differing.err.find("rank 1 was given other settings than rank 0 "
                               "(optim.learning_rate = 0.5 there)"),
            std::string::npos)
      << differing.err;
}

// A microbatch is what the machine with the least room plans for ranks like itself, which need more
// room than one alone.
TEST_F(RanksTest, TheMicrobatchFitsAllRanks) {
  Flags flags = flags_of("ample", 2);
  flags["train.micro_batch_tokens"] = "auto";
  flags["train.tokens_per_step"] = "2048";
  flags["memory.device"] = "64MiB";
  const auto chosen = [&](const std::string& folder) {
    const std::string text = get_file(dir_.file(folder + "/resolved.toml"));
    const std::string key = "micro_batch_tokens = ";
    return std::stoll(text.substr(text.find(key) + key.size()));
  };
  ASSERT_EQ(run(train(flags)).code, 0);
  flags["train.output_dir"] = dir_.file("narrow");
  flags["memory.device"] = "1MiB";
  ASSERT_EQ(run(train(flags)).code, 0);
  ASSERT_LT(chosen("narrow"), chosen("ample"));
  for (const int narrow : {0, 1}) {
    const std::string folder = strf("ranks-%d", narrow);
    put_file(dir_.file("run.toml"), strf("[memory]\ndevice = \"64MiB\"\n"
                                         "[rank.%d.memory]\ndevice = \"1MiB\"\n",
                                         narrow));
    flags["train.output_dir"] = dir_.file(folder);
    flags.erase("memory.device");
    const ProcessResult result = mpirun(2, train(flags, {dir_.file("run.toml")}));
    EXPECT_EQ(result.code, 0) << result.err;
    const int64_t tokens = chosen(folder);
    EXPECT_LE(tokens, chosen("narrow")) << result.err;
    EXPECT_EQ(tokens, chosen("ranks-0")) << "whichever of them it is";
    flags["train.steps"] = "3";  // a resumed run keeps it, wherever there is room
    EXPECT_EQ(run(train(flags, {"--resume", "--memory.device", "64MiB"})).code, 0);
    EXPECT_EQ(mpirun(2, train(flags, {"--resume", dir_.file("run.toml")})).code, 0);
    EXPECT_EQ(chosen(folder), tokens);
    flags["train.steps"] = "2";
  }
}

TEST_F(RanksTest, MoreRanksThanRecords) {
  put_file(dir_.file("config.json"), tiny_with(R"({"num_hidden_layers": 1, "num_experts": 2,
                                                   "mlp_only_layers": []})"));
  const std::string model = dir_.file("five");
  ASSERT_EQ(run({"init", "--config", dir_.file("config.json"), "--out", model}).code, 0);
  Flags flags = flags_of("run", 2);
  flags["model.path"] = model;
  expect_ended(mpirun(6, train(flags)), 2, "there are 6 ranks, and the model has 5 records");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("run")));
}

}  // namespace
}  // namespace pagoda
