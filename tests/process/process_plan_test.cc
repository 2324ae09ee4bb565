// The built `pagoda plan` for a machine: what it prints for people and programs, its exit codes and
// refusals, the page it writes, and that `train` takes its choice of a microbatch.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/testing/files.h"
#include "tests/testing/plan/plan_run_test.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

TEST_F(PlanTest, CountsAndTimesAModelFromItsConfigAlone) {
  const Words words = on("olmoe-1b-7b", "gpu-24gb") +
                      Words{"--tokens", "1000000000", "--train.save_steps", "0"};
  const ProcessResult text = plan(words);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* word : {"6,919,161,856 parameters", "datasheet", "tokens/s", "MFU", "limited by",
                           "peak in slots", "1,000,000,000 of them", "helps"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  const ProcessResult json = plan(words + Words{"--json"});
  const nlohmann::json object = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_TRUE(object.is_object()) << json.out;
  EXPECT_EQ(object.at("parameters"), 6919161856);
  EXPECT_EQ(object.at("fits"), true);
  EXPECT_GT(object.at("step").at("tokens_per_s").get<double>(), 0);
  EXPECT_NEAR(object.at("total").at("seconds").get<double>(),
              1e9 / object.at("step").at("tokens_per_s").get<double>(), 1);
}

// The counts are printed, the line says what would fit, and that fits.
TEST_F(PlanTest, WhatDoesNotFitExitsWithThree) {
  const Words words = on("mixtral-8x7b", "gpu-24gb") +
                      Words{"--train.tokens_per_step", "1048576", "--train.micro_batch_tokens",
                            "1048576", "--train.save_steps", "0"};
  const ProcessResult result = plan(words);
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(result.out.find("46,702,792,704 parameters"), std::string::npos) << result.out;
  const std::string line = result.error_line();
  const std::string key = "it fits with train.micro_batch_tokens = ";
  const size_t at = line.find(key);
  ASSERT_NE(at, std::string::npos) << line;
  Words fitting = words;
  *(std::find(fitting.begin(), fitting.end(), "--train.micro_batch_tokens") + 1) =
      std::to_string(std::stoll(line.substr(at + key.size())));
  EXPECT_EQ(plan(fitting).code, 0);
  const nlohmann::json object =
      nlohmann::json::parse(plan(words + Words{"--json"}).out, nullptr, false);
  EXPECT_EQ(object.at("fits"), false);
  EXPECT_FALSE(object.at("fits_with").empty());
}

TEST_F(PlanTest, RefusesInOneLine) {
  const Words good = on("olmoe-1b-7b", "gpu-24gb");
  expect_no_plan({}, 2, "model.path is missing");
  expect_no_plan({"--model.path", dir_.file("none")}, 66, "none");
  put_file(dir_.file("bad.json"), "{\"model_type\": \"gpt2\"}");
  expect_no_plan({"--model.path", dir_.file("bad.json")}, 65, "model_type");
  put_file(dir_.file("bad.toml"), "[device]\nkind = \"gpu\"\nmemory = \"24GiB\"\n");
  expect_no_plan({"--model.path", configs("models/olmoe-1b-7b.json"), "--machine",
                  dir_.file("bad.toml")},
                 2, "device.peak_tflops");
  expect_no_plan(good + Words{"--tokens", "-1"}, 2, "--tokens");
  expect_no_plan(good + Words{"--tokens", "99999999999999999999"}, 2, "--tokens");
  expect_no_plan(good + Words{"--tokens", "5", "--search"}, 2, "--tokens");
  expect_no_plan(good + Words{"--html", dir_.file("none/x.html"), "--train.save_steps", "0"}, 73,
                 "x.html");
  expect_no_plan(good + Words{"--json", "--train.micro_batch_tokens", "5"}, 2,
                 "train.micro_batch_tokens");
  expect_no_plan(good + Words{"--cluster", configs("clusters/4x8-gpu-80gb.toml")}, 2, "--cluster");
  expect_no_plan(good + Words{"--search", "--html", dir_.file("x.html")}, 2, "--html");
  expect_no_plan(good + Words{"--train.tokens_per_step", "5000"}, 2, "train.tokens_per_step");
  const Words four = on("olmoe-1b-7b", "gpu-4x48gb");
  expect_no_plan(four + Words{"--train.devices", "cuda*5"}, 2, "names 5 GPUs");
  expect_no_plan(four + Words{"--train.devices", "cuda*4", "--train.micro_batch_tokens", "auto",
                              "--parallel.layout", "zebra"},
                 82, "train.chunks");
  expect_no_plan(four + Words{"--train.devices", "cpu*2"}, 2, "names CPU devices");
  expect_no_plan(on("olmoe-1b-7b", "cpu-2-cores") + Words{"--train.devices", "cuda"}, 2, "none");
}

// What --trace-routing wrote of the run that is planned: the tokens of two microbatches, on two
// devices. The same file cut, of another model, or with a run that has one device, ends in a line.
TEST_F(PlanTest, SaysWhatRecordedRoutingWouldGain) {
  const std::string file = dir_.file("routing.txt"), head = " experts_per_token 2 microbatches 2 ";
  const std::string layers = "layers 2 with_experts 0 1\n";
  const std::string lines = "1 0 0 9 1 5 1\n1 0 1 9 1 5 1\n1 1 0 9 1 5 1\n1 1 1 9 1 5 1\n";
  put_file(dir_.file("config.json"), tiny_with(R"({"num_experts": 4, "num_hidden_layers": 2,
    "mlp_only_layers": []})"));
  put_file(file, "pagoda-routing 1 experts 4" + head + layers + lines);
  Words words = {"--model.path",
                 dir_.file("config.json"),
                 "--machine",
                 configs("machines/cpu-2-cores.toml"),
                 "--train.tokens_per_step",
                 "32",
                 "--train.micro_batch_tokens",
                 "16",
                 "--data.sequence_len",
                 "16",
                 "--routing",
                 file,
                 "--parallel.place",
                 "home"};
  const Words two = words + Words{"--train.devices", "cpu*2"};
  const ProcessResult text = plan(two);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* word : {"1.75 x the mean", "swaps with any device", "shortest first"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  const nlohmann::json object =
      nlohmann::json::parse(plan(two + Words{"--json"}).out, nullptr, false);
  EXPECT_EQ(object.at("routing").at("homes").at(0).at("imbalance"), 1.75);  // 28 of 32 rows
  expect_no_plan(words + Words{"--train.devices", "cpu"}, 2, "one device");
  expect_no_plan(two + Words{"--search"}, 2, "--routing");
  put_file(file, "pagoda-routing 1 experts 8" + head + layers + "");
  expect_no_plan(two, 2, "another model");
  put_file(file, "pagoda-routing 1 experts 4" + head + layers + lines.substr(0, 40));
  expect_no_plan(two, 65, "no whole step");
  put_file(file, "pagoda-routing 1 experts 4" + head);
  expect_no_plan(two, 65, "routing.txt: routing trace, line 1");
  put_file(file, "pagoda-routing 1 experts 4" + head + layers + "1 0 0 9 one 5 1\n");
  expect_no_plan(two, 65, "line 2");
  std::filesystem::remove(file);
  expect_no_plan(two, 66, "routing.txt");
}

// A run for a GPU is planned where there is none, if the machine is named.
TEST_F(PlanTest, AnotherMachinesGpuNeedNotBeHere) {
  const ProcessResult result = plan(on("olmoe-1b-7b", "gpu-24gb") +
                                    Words{"--train.devices", "cuda", "--train.save_steps", "0"});
  EXPECT_EQ(result.code, 0) << result.err;
}

// Each GPU of the run file has its own budget, also where the machine is elsewhere.
TEST_F(PlanTest, GpusMayHaveUnequalBudgets) {
  const Words four = on("olmoe-1b-7b", "gpu-4x48gb") +
                     Words{"--train.devices", "cuda*2", "--train.save_steps", "0"};
  const ProcessResult result = plan(four + Words{"--memory.device", "40GiB,20GiB"});
  EXPECT_EQ(result.code, 0) << result.err;
  const char* groups =
      "experts: groups of up to 16 blocks of 256 rows, 8 of them in flight on each ";
  EXPECT_NE(result.out.find(groups), std::string::npos) << result.out;
  expect_no_plan(four + Words{"--memory.device", "40GiB,20GiB,20GiB"}, 2, "lists 3 budgets");
}

TEST_F(PlanTest, ThePageIsSelfContained) {
  const std::string page = dir_.file("step.html");
  const ProcessResult result =
      plan(on("olmoe-1b-7b", "gpu-24gb") + Words{"--train.save_steps", "0", "--html", page});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_page(page, {"compute 0", "upload 0", "optimizer"});
}

// Settings of a run on one machine, best first, among them the run's own; `plan` with the best of
// them is no slower than as it is.
TEST_F(PlanTest, SearchesSettingsOfAMachine) {
  const Words words = on("olmoe-1b-7b", "gpu-24gb") +
                      Words{"--train.save_steps", "0", "--train.tokens_per_step", "4096"};
  const ProcessResult text = plan(words + Words{"--search"});
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* word : {"24 GB GPU", "optim.state = \"8bit\"", "(as it is)", "states on"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  const nlohmann::json found =
      nlohmann::json::parse(plan(words + Words{"--search", "--json"}).out, nullptr, false);
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found.at("fits"), true);
  EXPECT_EQ(found.at("machine"), "24 GB GPU, 128 GB, 2 drives");
  double before = 0, own = 0;
  for (const nlohmann::json& run : found.at("runs")) {
    EXPECT_GE(run.at("step_s").get<double>(), before);
    before = run.at("step_s").get<double>();
    if (run.at("as_it_is").get<bool>()) own = before;
  }
  EXPECT_GE(own, found.at("runs")[0].at("step_s").get<double>());
  const nlohmann::json& best = found.at("runs")[0];
  const auto speed = [&](const Words& more) {
    const std::string out = plan(words + Words{"--json"} + more).out;
    return nlohmann::json::parse(out, nullptr, false).at("step").at("tokens_per_s").get<double>();
  };
  Words flags;
  for (const auto& [key, value] : best.at("settings").items()) {
    flags.push_back("--" + key);
    flags.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
  const double searched = speed(flags);
  EXPECT_GE(searched, speed({}));
}

TEST_F(PlanTest, SearchesOfNoRoomExitWithThree) {
  const Words words = on("olmoe-1b-7b", "gpu-24gb") +
                      Words{"--search", "--memory.device", "100MiB", "--train.save_steps", "0"};
  const ProcessResult result = plan(words);
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(result.out.find("6,919,161,856 parameters"), std::string::npos) << result.out;
  EXPECT_NE(result.error_line().find("it fits with memory.device"), std::string::npos)
      << result.err;
  const nlohmann::json found =
      nlohmann::json::parse(plan(words + Words{"--json"}).out, nullptr, false);
  EXPECT_EQ(found.at("fits"), false);
  EXPECT_NE(found.at("why").get<std::string>().find("memory.device"), std::string::npos);
}

// A run that leaves the microbatch to the planner has the bits of one that is told its choice, and
// resumes with it.
TEST_F(PlanTest, TrainTakesThePlannersMicrobatch) {
  Flags by_auto = flags("auto");
  by_auto["train.micro_batch_tokens"] = "auto";
  for (const char* key : {"memory.device", "memory.host"}) by_auto[key] = "64MiB";
  const ProcessResult first = run(train(by_auto));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string said = "train.micro_batch_tokens: ";
  const size_t at = first.err.find(said);
  ASSERT_NE(at, std::string::npos) << first.err;
  Flags by_hand = by_auto;
  by_hand["train.output_dir"] = dir_.file("hand");
  by_hand["train.micro_batch_tokens"] =
      std::to_string(std::stoll(first.err.substr(at + said.size())));
  ASSERT_EQ(run(train(by_hand)).code, 0);
  EXPECT_EQ(exported("auto"), exported("hand"));
  EXPECT_EQ(losses("auto"), losses("hand"));
  EXPECT_EQ(run(train(by_auto, {"--resume"})).code, 0);
}

}  // namespace
}  // namespace pagoda
