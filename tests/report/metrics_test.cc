#include "report/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/progress.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

TEST(EvalHistory, KnowsTheBestAndHowLongAgoItWas) {
  EvalHistory evals;
  EXPECT_FALSE(evals.last_is_best());
  evals.add(0, NAN);
  EXPECT_FALSE(evals.last_is_best());
  EXPECT_EQ(evals.since_best, 1);
  evals.add(10, 3.0);
  EXPECT_TRUE(evals.last_is_best());
  evals.add(20, 2.0);
  EXPECT_TRUE(evals.last_is_best());
  evals.add(30, 2.0);
  EXPECT_FALSE(evals.last_is_best()) << "an equal loss is no lower one";
  evals.add(40, NAN);
  EXPECT_EQ(evals.best_step, 20);
  EXPECT_EQ(evals.best_loss, 2.0);
  EXPECT_EQ(evals.since_best, 2);
  EXPECT_EQ(evals.first_step, 0);
  EXPECT_EQ(evals.last_step, 40);
}

std::unique_ptr<MetricsFile> open_metrics(const std::string& path, int64_t keep_step) {
  Result<std::unique_ptr<MetricsFile>> file = MetricsFile::open(path, keep_step);
  CHECK(file.ok(), "%s", file.status().message().c_str());
  return file.take();
}

TEST(MetricsLine, IsOneJsonObjectWithAllDigits) {
  const double loss = 1.0 / 3;
  const std::string line = metrics_line(
      MetricsType::kStep, {{"step", 3}, {"loss", loss}, {"ok", true}, {"text", "a\n\"b\""}});
  EXPECT_TRUE(line.starts_with("{\"type\":\"step\",\"step\":3,\"loss\":0.333")) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::json back = nlohmann::json::parse(line);
  EXPECT_EQ(back["loss"].get<double>(), loss);
  EXPECT_EQ(back["ok"], true);
  EXPECT_EQ(back["text"], "a\n\"b\"");
}

TEST(MetricsLine, NotFiniteIsNull) {
  const std::string line = metrics_line(
      MetricsType::kEval, {{"a", std::nan("")}, {"b", INFINITY}, {"c", -INFINITY}, {"d", 1.0}});
  EXPECT_EQ(line, "{\"type\":\"eval\",\"a\":null,\"b\":null,\"c\":null,\"d\":1.0}");
}

TEST(MetricsLine, ObjectsAndListsNest) {
  const MetricsObject inner = metrics_object({{"layer", std::vector<int64_t>{0, 2}},
                                              {"entropy", std::vector<double>{0.5, std::nan("")}},
                                              {"none", metrics_object({})}});
  EXPECT_EQ(metrics_line(MetricsType::kStep, {{"step", 1}, {"experts", inner}}),
            "{\"type\":\"step\",\"step\":1,\"experts\":{\"layer\":[0,2],"
            "\"entropy\":[0.5,null],\"none\":{}}}");
}

TEST(MetricsLine, InvalidUtf8IsReplacedNotThrown) {
  const std::string line = metrics_line(MetricsType::kWarn, {{"text", "a\xff"}});
  EXPECT_NE(line.find("\xef\xbf\xbd"), std::string::npos) << line;
}

TEST(MetricsFile, EachLineIsThereAtOnce) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  auto metrics = open_metrics(path, -1);
  metrics->write(MetricsType::kRun, {{"seed", 7}});
  EXPECT_EQ(get_file(path), "{\"type\":\"run\",\"seed\":7}\n");
  metrics->write(MetricsType::kStep, {{"step", 1}});
  EXPECT_EQ(get_file(path), "{\"type\":\"run\",\"seed\":7}\n{\"type\":\"step\",\"step\":1}\n");
}

TEST(MetricsFile, FreshStartEmptiesIt) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  std::ofstream(path) << "old\n";
  open_metrics(path, -1);
  EXPECT_EQ(get_file(path), "");
}

TEST(MetricsFile, ResumeEqualsAnUninterruptedRun) {
  TempDir dir;
  const auto log_steps = [](MetricsFile& metrics, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; ++step) {
      metrics.write(MetricsType::kStep, {{"step", step}, {"loss", 5.0 / double(step)}});
      if (step % 2 == 0) metrics.write(MetricsType::kEval, {{"step", step}, {"loss", 1.5}});
    }
  };
  const std::string whole = dir.file("whole.jsonl");
  log_steps(*open_metrics(whole, -1), 1, 6);
  for (int64_t saved = 0; saved <= 5; ++saved) {
    const std::string path = dir.file("cut.jsonl");
    log_steps(*open_metrics(path, -1), 1, 5);
    std::ofstream(path, std::ios::app) << "{\"type\":\"step\",\"st";  // killed in the middle
    log_steps(*open_metrics(path, saved), saved + 1, 6);
    EXPECT_EQ(get_file(path), get_file(whole)) << "resumed after step " << saved;
  }
}

TEST(MetricsFile, KnowsWhatTheLastStepAndSaveTook) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  put_file(path, "{\"type\":\"step\",\"step\":1,\"step_s\":2.5}\n"
                 "{\"type\":\"checkpoint\",\"step\":1,\"save_s\":0.25}\n"
                 "{\"type\":\"step\",\"step\":2,\"step_s\":3.5}\n"
                 "{\"type\":\"step\",\"step\":3,\"step_s\":4.5}\n");
  const auto resumed = MetricsFile::open(path, 2);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(resumed.value()->last_step_s(), 3.5);
  EXPECT_EQ(resumed.value()->last_save_s(), 0.25);
  const auto fresh = MetricsFile::open(path, -1);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(fresh.value()->last_step_s() + fresh.value()->last_save_s(), 0);
}

TEST(MetricsFile, LinesWithoutAStepAndForeignLinesSurviveResume) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  const std::string kept = "{\"type\":\"run\"}\nnot json\n[1]\n{\"step\":\"x\"}\n{\"step\":2}\n";
  std::ofstream(path) << kept << "{\"step\":3}\n{\"type\":\"run\"}\n";
  open_metrics(path, 2);
  EXPECT_EQ(get_file(path), kept);
}

// A folder of another's may hold anything under the name.
TEST(MetricsFile, OnlyAFileItselfIsTaken) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl"), real = dir.file("real");
  std::ofstream(real) << "{\"step\":1}\n{\"step\":9}\n";
  const std::string before = get_file(real);
  std::filesystem::create_symlink(real, path);
  for (const int64_t keep_step : {-1, 1}) {
    EXPECT_EQ(MetricsFile::open(path, keep_step).status().code(), Exit::kCannotCreate);
  }
  EXPECT_EQ(get_file(real), before);
  std::filesystem::remove(path);
  std::filesystem::create_hard_link(real, path);
  EXPECT_EQ(MetricsFile::open(path, 1).status().code(), Exit::kCannotCreate);
  EXPECT_EQ(get_file(real), before);
  std::filesystem::remove(path);
  const Watchdog watchdog("a FIFO was waited for", std::chrono::seconds(60));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(MetricsFile::open(path, 1).status().code(), Exit::kCannotCreate);
}

// Neither a line without an end nor one that nests without an end takes memory beyond its bytes.
TEST(MetricsFile, HostileLinesAreBounded) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  const std::string kept = "{\"step\":1}\n" + std::string(1 << 22, '[') + "\n";
  std::ofstream(path) << kept << "{\"step\":3}\n";
  open_metrics(path, 2);
  EXPECT_EQ(get_file(path), kept);
  std::ofstream(path) << std::string((1 << 24) + (1 << 17), ' ') << "\n";
  EXPECT_EQ(MetricsFile::open(path, 2).status().code(), Exit::kCannotCreate);
}

TEST(MetricsFile, UnwritableIsAStatus) {
  TempDir dir;
  const auto file = MetricsFile::open(dir.file("none/metrics.jsonl"), -1);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), Exit::kCannotCreate);
}

TEST(MetricsFile, FullDiskWarnsOnceAndLeavesWholeLines) {
  TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  auto metrics = open_metrics(path, -1);
  // Long enough that the captured stderr, a file too, stays below the limit.
  metrics->write(MetricsType::kWarn, {{"text", std::string(8192, 'x')}});
  const std::string before = get_file(path);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit tight = old;
  tight.rlim_cur = before.size() + 5;  // the next line is cut short, the rest refused
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  metrics->write(MetricsType::kStep, {{"step", 2}});
  metrics->write(MetricsType::kStep, {{"step", 3}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  const std::string warnings = testing::internal::GetCapturedStderr();
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(get_file(path), before);
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_NE(warnings.find("warning: " + path), std::string::npos) << warnings;
  metrics->write(MetricsType::kStep, {{"step", 4}});
  EXPECT_EQ(get_file(path), before + "{\"type\":\"step\",\"step\":4}\n");
}

ProgressReport sample_report() {
  ProgressReport report;
  report.step = 120;
  report.steps = 3000;
  report.loss = 1.87339;
  report.aux_loss = 0.00123;
  report.grad_norm = 0.8249;
  report.learning_rate = 9.4e-6;
  report.tokens = 8192;
  report.step_s = 4.31;
  report.hit_rate = 0.834;
  report.stall_share = 0.061;
  return report;
}

TEST(Progress, StepLine) {
  EXPECT_EQ(step_line(sample_report(), 11520),
            "step 120/3000 | loss 1.8734 | aux 0.0012 | gnorm 0.82 | lr 9.4e-06 | 1.9k tok/s | "
            "hit 83% | stall 6% | eta 3h12m");
  ProgressReport report = sample_report();
  report.grad_norm = std::nan("");
  EXPECT_EQ(step_line(report, 1).find("gnorm"), std::string::npos);
  report.main_stall = "fetch";
  EXPECT_NE(step_line(report, 1).find(" | stall 6% (fetch) | eta"), std::string::npos);
  report.least_busy = 0.71;
  report.most_busy = 0.934;
  EXPECT_NE(step_line(report, 1).find("(fetch) | devices busy 71..93% | eta"), std::string::npos);
}

TEST(Progress, BarLine) {
  EXPECT_EQ(bar_line(sample_report(), 65, 200),
            "[....................] 120/3000 loss 1.8734 1.9k tok/s eta 1m05s");
  ProgressReport report = sample_report();
  report.step = 3000;
  EXPECT_TRUE(bar_line(report, 0, 200).starts_with("[####################] 3000/3000"));
  report.step = 1500;
  EXPECT_EQ(bar_line(report, 0, 12), "[##########.");
  EXPECT_EQ(bar_line(report, 0, -3), "");
}

TEST(Progress, DurationsAndCounts) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(3599.9), "1h00m");
  EXPECT_EQ(duration_text(86400 * 2 + 4 * 3600), "2d04h");
  EXPECT_EQ(duration_text(std::nan("")), "?");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(INFINITY), "?");
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999.4), "999");
  EXPECT_EQ(count_text(999.6), "1.0k");
  EXPECT_EQ(count_text(12345678), "12M");
  EXPECT_EQ(count_text(1.9e15), "1900T");
}

TEST(Progress, PlainLinesEveryLogStepsAndAtTheEnd) {
  testing::internal::CaptureStderr();  // not a terminal from here on, or log_is_terminal() says so
  {
    Progress progress(/*log_steps=*/4);
    ProgressReport report = sample_report();
    report.steps = 10;
    for (report.step = 1; report.step <= 10; ++report.step) progress.step(report);
    EXPECT_EQ(progress.eta_s(), 0);
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  for (const char* expected : {"step 4/10 |", "step 8/10 |", "step 10/10 |"}) {
    EXPECT_NE(lines.find(expected), std::string::npos) << lines;
  }
  EXPECT_EQ(lines.find("step 5/10 |"), std::string::npos) << lines;
}

TEST(Progress, EtaFollowsTheMeanStep) {
  testing::internal::CaptureStderr();
  Progress progress(100);
  ProgressReport report = sample_report();
  report.steps = 1000;
  report.step_s = 2;
  for (report.step = 1; report.step <= 50; ++report.step) progress.step(report);
  testing::internal::GetCapturedStderr();
  EXPECT_NEAR(progress.eta_s(), 2.0 * 950, 1e-6);
}

}  // namespace
}  // namespace pagoda
