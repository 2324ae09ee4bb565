// The built program from init to export, and runs that share a place.
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

double json_loss(const ProcessResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  const auto object = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_TRUE(object.is_object()) << result.out;
  return object.is_object() ? object["loss"].get<double>() : -1.0;
}

class ProcessTest : public RunTest {
 protected:
  // Loss on the training text, with the flags of the run that it reads.
  double eval_loss(const Words& of) {
    return json_loss(run(Words{"eval", "--json", "--data.eval_path", dir_.file("text.jsonl"),
                               "--data.sequence_len", "32", "--train.micro_batch_tokens", "64",
                               "--memory.disk", dir_.path()} + of));
  }
  int64_t sum_of(const std::string& run_dir, const char* field) {
    int64_t sum = 0;
    std::istringstream lines(get_file(dir_.file(run_dir) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      sum += nlohmann::json::parse(line).value(field, int64_t{0});
    }
    return sum;
  }
};

TEST_F(ProcessTest, FromInitToExport) {
  const ProcessResult trained = run(train(flags("run")));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.out, "");
  EXPECT_EQ(losses("run").size(), 12u);
  EXPECT_GT(sum_of("run", "fetch_bytes"), 0) << "the run did not page";
  EXPECT_GT(sum_of("run", "write_back_bytes"), 0) << "the run did not page";

  const std::string run_dir = dir_.file("run");
  const ProcessResult list = run({"ckpt", "ls", "--json", run_dir});
  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_EQ(nlohmann::json::parse(list.out)[0]["step"], 12) << list.out;
  EXPECT_NE(run({"ckpt", "ls", run_dir}).out.find("step 12"), std::string::npos);
  const ProcessResult verified = run({"ckpt", "verify", "--json", run_dir});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(nlohmann::json::parse(verified.out)["ok"], true) << verified.out;

  const std::string out = dir_.file("exported");
  const ProcessResult exported = run({"export", "--checkpoint", run_dir, "--out", out});
  ASSERT_EQ(exported.code, 0) << exported.err;
  const double of_folder = eval_loss({"--model.path", out});
  EXPECT_EQ(of_folder, eval_loss({"--checkpoint", run_dir}));
  EXPECT_LT(of_folder, eval_loss({"--model.path", dir_.file("model")})) << "nothing was learnt";
}

// On the same text, evaluating a run gives the loss that it logged itself at its last step.
TEST_F(ProcessTest, EvaluatesARunWithItsOwnSettings) {
  for (const char* dtype : {"fp32", "bf16"}) {
    SCOPED_TRACE(dtype);
    Flags flags = this->flags(dtype);
    flags["train.dtype"] = dtype;
    flags["memory.device"] = flags["memory.host"] = "64MiB";
    flags["train.eval_steps"] = "12";
    flags["train.eval_batches"] = "3";
    flags["data.eval_path"] = dir_.file("text.jsonl");
    ASSERT_EQ(run(train(flags)).code, 0);
    const Words words = {"eval", "--json", "--checkpoint", dir_.file(dtype), "--memory.disk",
                         dir_.path()};
    EXPECT_EQ(json_loss(run(words + Words{"--train.eval_batches", "3"})), evals(dtype).at(12));
    EXPECT_NE(json_loss(run(words)), evals(dtype).at(12)) << "it takes all of the text";
    put_file(dir_.file("run.toml"), "[train]\neval_batches = 4\n");
    EXPECT_EQ(json_loss(run(words + Words{dir_.file("run.toml")})),
              json_loss(run(words + Words{"--train.eval_batches", "4"})));
  }
}

TEST_F(ProcessTest, RowsLongerThanTheModelKnowsAreWarnedOf) {
  Flags flags = this->flags("run");
  flags["data.sequence_len"] = flags["train.micro_batch_tokens"] = "512";
  flags["train.tokens_per_step"] = "512";
  flags["train.steps"] = "2";
  flags["memory.device"] = flags["memory.host"] = "64MiB";
  const ProcessResult result = run(train(flags));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("warning: data.sequence_len = 512 is more than the 256 positions"),
            std::string::npos)
      << result.err;
}

// The log says what a run was told, and of each of its checkpoints.
TEST_F(ProcessTest, MetricsTellOptionsAndCheckpoints) {
  ASSERT_EQ(run(train(flags("run"))).code, 0);
  std::istringstream lines(get_file(dir_.file("run") + "/metrics.jsonl"));
  std::string first;
  std::getline(lines, first);
  const auto options = nlohmann::json::parse(first)["options"];
  EXPECT_EQ(nlohmann::json::parse(first)["kernel_set"],
            nlohmann::json::parse(run({"--version", "--json"}).out)["kernel_set"]);
  EXPECT_EQ(options["train.steps"], 12) << first;
  EXPECT_EQ(options["optim.learning_rate"], 3e-3) << first;
  EXPECT_EQ(options["data.path"][0], dir_.file("text.jsonl")) << first;
  EXPECT_EQ(options["train.dtype"], "bf16") << first;
  EXPECT_EQ(checkpoints("run").size(), 5u) << "steps 0, 3, 6, 9 and 12";
}

// The master weights; a bf16 export holds them rounded.
TEST_F(ProcessTest, ExportsInAnotherDtype) {
  ASSERT_EQ(run(train(flags("run"))).code, 0);
  const std::string wide = dir_.file("wide"), narrow = dir_.file("narrow");
  for (const auto& [dtype, out] : {std::pair{"fp32", wide}, {"bf16", narrow}}) {
    const ProcessResult result =
        run({"export", "--checkpoint", dir_.file("run"), "--dtype", dtype, "--out", out});
    ASSERT_EQ(result.code, 0) << result.err;
  }
  EXPECT_EQ(nlohmann::json::parse(get_file(wide + "/config.json"))["torch_dtype"], "float32");
  EXPECT_GT(std::filesystem::file_size(wide + "/model.safetensors"),
            std::filesystem::file_size(narrow + "/model.safetensors") * 3 / 2);
  EXPECT_TRUE(get_file(narrow + "/model.safetensors") == exported("run"));
  EXPECT_EQ(eval_loss({"--model.path", wide}), eval_loss({"--model.path", narrow}));
}

TEST_F(ProcessTest, AnUntrainedRunExportsTheModelByteForByte) {
  Flags stopped = flags("run");
  stopped["train.steps"] = "1000000";
  stopped["train.save_steps"] = "1000000";
  const auto process = start(train(stopped));
  ASSERT_TRUE(process->wait_for_err("step 1/")) << process->err();
  process->send(SIGKILL);  // what is left is checkpoint 0
  process->wait();
  EXPECT_TRUE(exported("run", 0) == get_file(dir_.file("model") + "/model.safetensors"));
}

TEST_F(ProcessTest, ASecondRunInTheSameFolderIsRefused) {
  Flags running = flags("run");
  running["train.steps"] = "1000000";
  running["train.save_steps"] = "1000000";
  const auto first = start(train(running));
  ASSERT_TRUE(first->wait_for_err("step 1/")) << first->err();
  expect_refused(run(train(running)), 73, {dir_.file("run")});
  expect_refused(run(train(running, {"--resume"})), 73, {dir_.file("run"), "in use"});
  first->send(SIGTERM);
  EXPECT_EQ(first->wait().code, 75);
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("run")}).code, 0);
}

TEST_F(ProcessTest, RunsThatShareADiskAreApart) {
  ASSERT_EQ(run(train(flags("alone"))).code, 0);
  const std::string expected = exported("alone");
  Flags one = flags("one"), two = flags("two");
  one["memory.disk"] = two["memory.disk"] = dir_.file("disk");
  const auto first = start(train(one)), second = start(train(two));
  EXPECT_EQ(first->wait().code, 0);
  EXPECT_EQ(second->wait().code, 0);
  EXPECT_TRUE(exported("one") == expected);
  EXPECT_TRUE(exported("two") == expected);
}

TEST_F(ProcessTest, ARunMayMoveWithItsModelAndText) {
  Flags before = flags("run");
  ASSERT_EQ(run(train(before)).code, 0);
  const std::string expected = exported("run");
  std::filesystem::rename(dir_.file("run"), dir_.file("moved"));
  std::filesystem::rename(dir_.file("model"), dir_.file("moved-model"));
  const std::string out = dir_.file("export-of-moved");
  expect_refused(run({"export", "--checkpoint", dir_.file("moved"), "--out", out}), 66,
                 {dir_.file("model")});
  const auto exporting = run({"export", "--checkpoint", dir_.file("moved"), "--model",
                              dir_.file("moved-model"), "--out", out});
  ASSERT_EQ(exporting.code, 0) << exporting.err;
  EXPECT_TRUE(get_file(out + "/model.safetensors") == expected);
  Flags after = flags("moved");
  after["model.path"] = dir_.file("moved-model");
  const auto resumed = run(train(after, {"--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST_F(ProcessTest, AStoreMayMoveAndIsThenNamed) {
  Flags flags = this->flags("run");
  flags["memory.disk"] = dir_.file("disk");
  flags["train.steps"] = "6";
  flags["optim.schedule"] = "constant";
  ASSERT_EQ(run(train(flags)).code, 0);
  std::filesystem::rename(dir_.file("disk"), dir_.file("other-disk"));
  flags["train.steps"] = "9";
  expect_refused(run(train(flags, {"--resume"})), 81, {dir_.file("disk") + "/pages-"});
  flags["memory.disk"] = dir_.file("other-disk");
  const auto resumed = run(train(flags, {"--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  flags.erase("memory.disk");
  flags["train.steps"] = "12";
  EXPECT_EQ(run(train(flags, {"--resume"})).code, 0);
  EXPECT_NE(get_file(dir_.file("run") + "/resolved.toml").find("other-disk"), std::string::npos);
}

// Two folders, one store: only the run that made it may write to it.
TEST_F(ProcessTest, ACopyOfARunDoesNotWriteIntoItsStore) {
  for (const bool own_disk : {false, true}) {
    const std::string name = own_disk ? "outside" : "inside";
    Flags flags = this->flags(name);
    if (own_disk) flags["memory.disk"] = dir_.file("disk");
    flags["train.steps"] = "6";
    flags["optim.schedule"] = "constant";
    ASSERT_EQ(run(train(flags)).code, 0);
    const std::string expected = exported(name);
    std::filesystem::copy(dir_.file(name), dir_.file(name + "-copy"),
                          std::filesystem::copy_options::recursive);
    flags["train.output_dir"] = dir_.file(name + "-copy");
    flags["train.steps"] = "9";
    const auto resumed = run(train(flags, {"--resume"}));
    if (own_disk) {
      expect_refused(resumed, 82, {dir_.file(name), dir_.file("disk")});
    } else {
      EXPECT_EQ(resumed.code, 0) << resumed.err;
    }
    EXPECT_TRUE(exported(name) == expected);
    EXPECT_EQ(run({"ckpt", "verify", dir_.file(name)}).code, 0);
  }
}

TEST_F(ProcessTest, ANewRunUnderAnOldNameLeavesTheOldOnesPages) {
  Flags flags = this->flags("run");
  flags["memory.disk"] = dir_.file("disk");
  ASSERT_EQ(run(train(flags)).code, 0);
  const std::string expected = exported("run");
  std::filesystem::rename(dir_.file("run"), dir_.file("old"));
  flags["train.seed"] = "99";
  ASSERT_EQ(run(train(flags)).code, 0);
  EXPECT_TRUE(exported("old") == expected);
  EXPECT_FALSE(exported("run") == expected);
}

TEST_F(ProcessTest, WeightsThatAreNotFiniteAreNotSaved) {
  for (const char* clip : {"global", "none", "per_expert"}) {
    for (const char* rate : {"1e38", "1e300"}) {
      Flags flags = this->flags(std::string("run-") + clip + rate);
      flags["optim.learning_rate"] = rate;
      flags["optim.warmup_steps"] = "0";
      flags["optim.clip"] = clip;
      flags["train.save_steps"] = "1";
      expect_refused(run(train(flags)), 80, {"checkpoint", "optim.learning_rate"});
      EXPECT_NE(exported(std::string("run-") + clip + rate, 0), "");
    }
  }
}

// Weights are written by the table of the folder that is named: another model's would be wrong.
TEST_F(ProcessTest, AnotherModelIsNotExportedInto) {
  ASSERT_EQ(run(train(flags("run"))).code, 0);
  const std::string config = dir_.file("model") + "/config.json";
  std::string text = get_file(config);
  put_file(config, text + "\n");
  expect_refused(run({"export", "--checkpoint", dir_.file("run"), "--out", dir_.file("out")}), 82,
                 {dir_.file("model"), "config.json"});
  put_file(config, text);
  // The weights know the tokens of another tokenizer.json by other numbers.
  const std::string tokenizer = dir_.file("model") + "/tokenizer.json";
  put_file(tokenizer, get_file(tokenizer) + "\n");
  const Words of_run = {"--checkpoint", dir_.file("run")};
  const Words export_words = Words{"export"} + of_run + Words{"--out", dir_.file("out")};
  for (const Words& words : {export_words, Words{"generate", "--prompt", "a"} + of_run,
                             Words{"eval", "--data.eval_path", dir_.file("text.jsonl")} + of_run}) {
    expect_refused(run(words), 82, {dir_.file("model"), "another tokenizer"});
  }
  expect_refused(run(export_words + Words{"--step", "1"}), 66, {"no step 1; there is: 12"});
}

// A started run has no children and no sockets: it runs nothing and talks to nobody.
TEST_F(ProcessTest, NoChildrenAndNoSockets) {
  Flags running = flags("run");
  running["train.steps"] = "1000000";
  const auto process = start(train(running));
  ASSERT_TRUE(process->wait_for_err("step 1/")) << process->err();
  const std::string proc = strf("/proc/%d", process->id());
  for (const auto& thread : std::filesystem::directory_iterator(proc + "/task")) {
    EXPECT_EQ(get_file(thread.path().string() + "/children"), "");
  }
  int descriptors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    ++descriptors;
    std::error_code closed;  // some are opened and closed during a step
    const std::string target = std::filesystem::read_symlink(entry.path(), closed).string();
    EXPECT_FALSE(target.starts_with("socket:")) << target;
  }
  EXPECT_GT(descriptors, 3);
  process->send(SIGTERM);
  EXPECT_EQ(process->wait().code, 75);
}

}  // namespace
}  // namespace pagoda
