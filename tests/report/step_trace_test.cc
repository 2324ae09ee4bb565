// Steps of a tiny run that pages, traced: the trace agrees with what the run counts by other means,
// and changes nothing.
#include "report/step_trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "report/step_usage.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/trace_file.h"
#include "train/trace_names.h"

namespace pagoda {
namespace {

struct TracedSteps {
  std::string sha256;
  TraceFile trace;
  SessionCounters before, after;
  PageFile::Counters disk_before, disk_after;
  std::vector<int64_t> rows_of_layer;  // expert rows of the traced steps' forwards
};

// A run to its end. With `steps` those are traced; they must be steps of the run.
TracedSteps run_traced(TinyRun& run, Storage* storage, std::optional<StepRange> steps) {
  TracedSteps result;
  StepTrace trace(steps, run.dir().file("trace.json"));
  auto started = Trainer::start(run.config(), false, storage, trace.trace());
  CHECK(started.ok(), "%s", started.status().message().c_str());
  Trainer& trainer = **started;
  std::vector<double> losses;
  while (trainer.steps_done() < run.config().train.steps) {
    const int64_t step = trainer.steps_done() + 1;
    trainer.session().pager().drain();  // so that the trace has exactly what is counted
    if (steps && step == steps->first) {
      result.before = SessionCounters::read(trainer.session());
      result.disk_before = trainer.session().file().counters();
    }
    CHECK(trace.begin_step(step).ok());
    const auto stepped = trainer.step();
    CHECK(stepped.ok(), "%s", stepped.status().message().c_str());
    CHECK(trace.end_step(step, trainer.session().pager()).ok());
    losses.push_back(stepped.value().loss);
    if (!steps || step < steps->first || step > steps->last) continue;
    result.after = SessionCounters::read(trainer.session());
    result.disk_after = trainer.session().file().counters();
    const auto& tokens = stepped.value().tokens_per_expert;
    result.rows_of_layer.resize(tokens.size());
    for (size_t l = 0; l < tokens.size(); ++l) {
      for (const int64_t n : tokens[l]) result.rows_of_layer[l] += n;
    }
  }
  result.sha256 = outcome_hash(trainer, losses);
  CHECK(trace.end_run().ok());
  if (steps) result.trace = TraceFile::read(run.dir().file("trace.json"));
  return result;
}

class StepTraceTest : public testing::Test {
 protected:
  StepTraceTest() { run_.use_minimum_budgets(); }

  TinyRun run_;
  SimStorage storage_{77};
};

TEST_F(StepTraceTest, ChangesNoBit) {
  const std::string expected = run_traced(run_, &storage_, std::nullopt).sha256;
  EXPECT_FALSE(std::filesystem::exists(run_.dir().file("trace.json")));
  run_.new_run();
  EXPECT_EQ(run_traced(run_, &storage_, StepRange{1, 6}).sha256, expected);
  EXPECT_TRUE(std::filesystem::exists(run_.dir().file("trace.json")));
  auto real = open_storage(IoKind::kAuto, run_.dir().path());
  ASSERT_TRUE(real.ok()) << real.status().message();
  run_.new_run();
  EXPECT_EQ(run_traced(run_, real->get(), StepRange{2, 3}).sha256, expected);
}

TEST_F(StepTraceTest, HasALaneForEachStreamAndTheDisk) {
  run_.config().train.devices = cpus(2);
  run_.config().memory.device = run_.config().memory.host = MemorySize::of_bytes(64 * kMiB);
  run_.use_minimum_budgets();
  const TraceFile trace = run_traced(run_, &storage_, StepRange{2, 3}).trace;
  std::set<std::string> rows;
  for (const TraceFile::Span& span : trace.spans) rows.insert(span.group + "/" + span.row);
  for (const char* row :
       {"run/steps", "run/issuing thread", "streams/compute 0", "streams/compute 1",
        "streams/upload 0", "streams/upload 1", "streams/download 0", "streams/optimizer",
        "streams/page writes", "disk/reads in flight", "disk/writes in flight",
        "disk/checks of reads"}) {
    EXPECT_TRUE(rows.contains(row)) << row;
  }
  for (const std::string& row : rows) {
    EXPECT_TRUE(row.starts_with("disk/") || row.find('(') == std::string::npos)
        << row << ": spans of a stream overlap";
  }
  EXPECT_EQ(trace.of_lane("steps").size(), 2u);
  EXPECT_EQ(trace.cut_events, 0);
}

TEST_F(StepTraceTest, TellsEveryTaskWithItsRows) {
  const TracedSteps run = run_traced(run_, &storage_, StepRange{3, 3});
  std::map<std::string, int64_t> tasks;  // by the first word(s) of their names
  std::vector<int64_t> rows(run.rows_of_layer.size());
  for (const TraceFile::Span& span : run.trace.of_lane("compute 0")) {
    ++tasks[span.name.substr(0, span.name.find(" L"))];
    if (!span.name.starts_with("expert L")) continue;
    rows[static_cast<size_t>(span.args.at("layer"))] += span.args.at("rows");
    EXPECT_EQ(span.name, strf("expert L%lld E%lld", (long long)span.args.at("layer"),
                              (long long)span.args.at("expert")));
  }
  EXPECT_EQ(rows, run.rows_of_layer);
  EXPECT_EQ(tasks["attention"], 3 * 2) << "layers times microbatches";
  EXPECT_EQ(tasks["attention backward"], 3 * 2);
  EXPECT_EQ(tasks["expert"], tasks["expert backward"]);
  EXPECT_EQ(tasks["dense mlp"], 2);
  EXPECT_FALSE(run.trace.of_lane("optimizer").empty());
}

TEST_F(StepTraceTest, BytesAreThoseThatWereCounted) {
  const TracedSteps run = run_traced(run_, &storage_, StepRange{2, 4});
  const auto sum = [&](const char* group, const char* lane) {
    const auto track = run.trace.of_track(group, std::string(lane) + " so far");
    return track.empty() ? 0 : track.back().value;
  };
  EXPECT_GT(run.disk_after.reads, run.disk_before.reads) << "the run did not page";
  EXPECT_EQ(sum("disk", "reads in flight"), run.disk_after.read_bytes - run.disk_before.read_bytes);
  EXPECT_EQ(sum("disk", "writes in flight"),
            run.disk_after.write_bytes - run.disk_before.write_bytes);
  EXPECT_EQ(sum("streams", "upload 0"),
            run.after.pager.upload_bytes - run.before.pager.upload_bytes);
  EXPECT_EQ(sum("streams", "download 0"),
            run.after.pager.download_bytes - run.before.pager.download_bytes);
  for (const char* place : {"device 0", "host"}) {
    const auto resident = run.trace.of_track("resident", place);
    ASSERT_FALSE(resident.empty()) << place;
    const bool host = place == std::string("host");
    const int64_t budget = host ? run_.config().host_bytes() : run_.config().device_bytes();
    for (const TraceFile::Number& number : resident) {
      EXPECT_GT(number.value, 0) << place;
      EXPECT_LE(number.value, budget) << place;
    }
  }
}

TEST_F(StepTraceTest, WaitsAreThoseThatWereCounted) {
  const TracedSteps run = run_traced(run_, &storage_, StepRange{2, 5});
  std::map<std::string, int64_t> waits_us, counted_us;
  for (const TraceFile::Span& span : run.trace.of_lane("compute 0")) {
    if (span.name.starts_with("wait: "))
      waits_us[span.name.substr(6)] += span.end_us - span.begin_us;
  }
  const StreamTime time = run.after.devices[0] - run.before.devices[0];
  for (int k = 0; k < kWorkKinds; ++k) {
    const int64_t us = time.waited_us[static_cast<size_t>(k)];
    if (us > 0) counted_us[work_kind_name(static_cast<WorkKind>(k))] = us;
  }
  EXPECT_EQ(waits_us, counted_us);
  EXPECT_GT(time.all_waits_us(), 0) << "a run with the smallest budgets waits";
  EXPECT_EQ(counted_us.count("other"), 0u) << "a wait for nobody knows what";
}

TEST_F(StepTraceTest, StepsThatDidNotComeAreSaid) {
  StepTrace trace(StepRange{100, 200}, run_.dir().file("trace.json"));
  CHECK(trace.begin_step(1).ok());
  EXPECT_FALSE(trace.trace()->on());
  testing::internal::CaptureStderr();
  CHECK(trace.end_run().ok());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("none of the steps 100 to 200"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(run_.dir().file("trace.json")));
}

TEST_F(StepTraceTest, ARunThatEndsEarlyLeavesWhatThereIs) {
  StepTrace trace(StepRange{2, 200}, run_.dir().file("trace.json"));
  auto started = Trainer::start(run_.config(), false, &storage_, trace.trace());
  ASSERT_TRUE(started.ok()) << started.status().message();
  for (int64_t step = 1; step <= 3; ++step) {
    CHECK(trace.begin_step(step).ok());
    ASSERT_TRUE((*started)->step().ok());
    CHECK(trace.end_step(step, (*started)->session().pager()).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(run_.dir().file("trace.json")));
  CHECK(trace.end_run().ok());
  EXPECT_EQ(TraceFile::read(run_.dir().file("trace.json")).of_lane("steps").size(), 2u);
}

TEST(TraceNames, EveryPageHasANameOfItsOwn) {
  TinyRun run;
  SimStorage storage(1);
  run.config().train.devices = cpus(2);
  auto started = Trainer::start(run.config(), false, &storage);
  ASSERT_TRUE(started.ok()) << started.status().message();
  const Session& session = (*started)->session();
  std::set<std::string> names;
  for (PageId page = 0; page < session.pages().pages.size(); ++page) {
    const std::string name = page_name(session.shape(), session.pages(), page);
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const char* name : {"weights embedding", "state head", "weights L0", "gradient L2 E23",
                           "input L0 b1", "middle L2 b0", "inbound 0", "outbound 3"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace pagoda
