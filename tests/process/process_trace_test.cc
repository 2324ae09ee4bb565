// The built program tracing some of its steps, and what its metrics tell of each.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "plan/step/routing_trace.h"
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

// Also of a run that stops and is resumed: the steps behind its checkpoint are recorded once.
TEST_F(TraceTest, RecordsRoutingAndChangesNothing) {
  const auto constant = [&](const char* name, const char* steps) {
    Flags flags = this->flags(name);
    flags["optim.schedule"] = "constant";  // so that the number of steps is no setting of results
    flags["train.steps"] = steps;
    return flags;
  };
  ASSERT_EQ(run(train(constant("plain", "12"))).code, 0);
  const std::string whole = dir_.file("whole.routing"), parts = dir_.file("parts.routing");
  ASSERT_EQ(run(train(constant("traced", "12"), {"--trace-routing", whole})).code, 0);
  EXPECT_EQ(losses("traced"), losses("plain"));
  EXPECT_TRUE(exported("traced") == exported("plain"));

  const RoutingTrace trace = parse_routing_trace(get_file(whole)).take();
  EXPECT_EQ(trace.shape, (RoutedShape{24, 2, 2, {1, 0, 1}}));
  ASSERT_EQ(trace.steps.size(), 12u);
  std::istringstream lines(get_file(dir_.file("traced") + "/metrics.jsonl"));
  size_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object["type"] != "step") continue;
    EXPECT_EQ(trace.steps[step].step, object["step"].get<int64_t>());
    // What the metrics say of the same loads.
    for (size_t i = 0; i < 2; ++i) {
      const auto tokens =
          tokens_per_expert(layer_routing(trace.steps[step].routing, i == 0 ? 0 : 2));
      const auto chosen = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
      EXPECT_EQ(chosen, 2 * object["tokens"].get<int64_t>());
      const auto most = static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
      const auto& experts = object["experts"];
      EXPECT_NEAR(most / (static_cast<double>(chosen) / 24),
                  experts["max_over_mean"][i].get<double>(), 1e-12);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 0), experts["dead"][i].get<int64_t>());
    }
    ++step;
  }
  EXPECT_EQ(step, 12u);

  ASSERT_EQ(run(train(constant("parts", "7"), {"--trace-routing", parts})).code, 0);
  put_file(parts, get_file(parts) + "8 0 0 1 2\n8 0");  // killed in the next step
  ASSERT_EQ(run(train(constant("parts", "12"), {"--resume", "--trace-routing", parts})).code, 0);
  EXPECT_EQ(get_file(parts), get_file(whole));
}

TEST_F(TraceTest, RoutingIsNotRecordedOverAnotherFile) {
  const std::string file = dir_.file("mine");
  put_file(file, "mine\n");
  expect_refused(run(train(flags("run"), {"--trace-routing", file})), 73, {"mine", "is there"});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("run")));
  Flags flags = this->flags("run");
  flags["optim.schedule"] = "constant";
  flags["train.steps"] = "3";
  ASSERT_EQ(run(train(flags)).code, 0);
  flags["train.steps"] = "4";
  expect_refused(run(train(flags, {"--resume", "--trace-routing", file})), 73, {"mine"});
  EXPECT_EQ(get_file(file), "mine\n");
  expect_refused(run(train(flags, {"--resume", "--trace-routing", dir_.file("no/folder")})), 73,
                 {"no/folder"});
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
