// The built program tracing some of its steps, and what its metrics tell of each.
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/testing/files.h"
#include "tests/testing/run_test.h"
#include "tests/testing/trace_file.h"

namespace pagoda {
namespace {

using TraceTest = RunTest;

TEST_F(TraceTest, TracesTheStepsItIsToldAndChangesNothing) {
  ASSERT_EQ(run(train(flags("plain"))).code, 0);
  const ProcessResult traced = run(train(flags("traced"), {"--trace-steps", "2:3"}));
  ASSERT_EQ(traced.code, 0) << traced.err;
  EXPECT_NE(traced.err.find("trace of steps 2 to 3: " + dir_.file("traced") + "/trace.json"),
            std::string::npos)
      << traced.err;
  const TraceFile trace = TraceFile::read(dir_.file("traced") + "/trace.json");
  const auto steps = trace.of_lane("steps");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].name, "step 2");
  EXPECT_EQ(steps[1].name, "step 3");
  EXPECT_FALSE(trace.of_lane("compute 0").empty());
  EXPECT_EQ(losses("traced"), losses("plain"));
  EXPECT_TRUE(exported("traced") == exported("plain"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("plain") + "/trace.json"));
}

TEST_F(TraceTest, AStoppedRunLeavesWhatItHas) {
  Flags flags = this->flags("run");
  flags["train.steps"] = "1000000";
  flags["train.save_steps"] = "1000000";
  const auto process = start(train(flags, {"--train.trace_steps", "2:1000"}));
  ASSERT_TRUE(process->wait_for_err("step 3/")) << process->err();
  process->send(SIGTERM);
  const ProcessResult stopped = process->wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  const auto steps = TraceFile::read(dir_.file("run") + "/trace.json").of_lane("steps");
  EXPECT_GE(steps.size(), 2u);
  EXPECT_EQ(steps[0].name, "step 2");
}

TEST_F(TraceTest, StepsThatAreNoneAreRefusedOrSaid) {
  expect_refused(run(train(flags("never"), {"--trace-steps", "3:2"})), 2, {"train.trace_steps"});
  const ProcessResult late = run(train(flags("late"), {"--trace-steps", "500:501"}));
  EXPECT_EQ(late.code, 0) << late.err;
  EXPECT_NE(late.err.find("none of the steps 500 to 501"), std::string::npos) << late.err;
}

TEST_F(TraceTest, ATraceThatCannotBeWrittenIsAWarning) {
  Flags flags = this->flags("run");
  flags["optim.schedule"] = "constant";  // so that the number of steps is no setting of results
  flags["train.steps"] = "3";
  ASSERT_EQ(run(train(flags)).code, 0);
  std::filesystem::create_directories(dir_.file("run") + "/trace.json/in-the-way");
  flags["train.steps"] = "12";
  const ProcessResult result = run(train(flags, {"--resume", "--trace-steps", "12:12"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("training goes on without a trace"), std::string::npos) << result.err;
}

TEST_F(TraceTest, MetricsTellWhereEachStepsTimeWent) {
  ASSERT_EQ(run(train(flags("run"))).code, 0);
  std::istringstream lines(get_file(dir_.file("run") + "/metrics.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object["type"] != "step") continue;
    ++steps;
    double stall_s = 0;
    for (const auto& [cause, seconds] : object["stall_s"].items()) stall_s += seconds.get<double>();
    const double share = std::min(1.0, stall_s / object["step_s"].get<double>());
    EXPECT_NEAR(share, object["stall_share"].get<double>(), 1e-9) << line;
    EXPECT_GT(stall_s, 0) << line;
    EXPECT_GT(object["fetch_bytes"], 0) << line;
    EXPECT_TRUE(object["device_hit_rate"].is_number()) << line;
    EXPECT_TRUE(object["host_hit_rate"].is_number()) << line;
    const auto& experts = object["experts"];
    EXPECT_EQ(experts["layer"], (std::vector<int64_t>{0, 2})) << line;
    for (const double load : experts["max_over_mean"]) EXPECT_GE(load, 1.0) << line;
    for (const double entropy : experts["entropy"]) {
      EXPECT_GT(entropy, 0) << line;
      EXPECT_LE(entropy, 1.0 + 1e-12) << line;
    }
    for (const int64_t dead : experts["dead"]) EXPECT_LT(dead, 24) << line;
  }
  EXPECT_EQ(steps, 12);
}

}  // namespace
}  // namespace pagoda
