// What a run says of itself before it starts, against what it then does.
#include "report/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>

#include "checkpoint/hf_folder.h"
#include "tests/testing/tiny_run.h"
#include "train/process_memory.h"

namespace pagoda {
namespace {

int threads_of_this_process() {
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += task.is_directory() ? 1 : 0;
  }
  return threads;
}

TEST(Report, CountsTheThreadsThatAreStarted) {
  for (const auto& [devices, threads] : {std::pair{1, 1}, {1, 3}, {2, 2}, {3, 4}}) {
    SCOPED_TRACE(testing::Message() << devices << " devices, " << threads << " threads");
    TinyRun run;
    run.config().train.devices = cpus(devices);
    run.config().train.threads = threads;
    const int at_first = threads_of_this_process();
    auto storage = open_storage(IoKind::kThreads, run.dir().path());
    ASSERT_TRUE(storage.ok()) << storage.status().message();
    const int before = threads_of_this_process();
    EXPECT_EQ(before - at_first, kMostStorageThreads);
    auto trainer = Trainer::start(run.config(), false, storage->get());
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    EXPECT_EQ(threads_of_this_process() - before, session_threads(session_options(run.config())));
  }
}

// What a tiny run prints, and what it takes the numbers from.
struct Printed {
  MemoryPlan memory;
  std::vector<std::string> lines;

  Printed(const RunConfig& config, RunOutlook outlook = {}) {
    HfFolder folder = std::move(HfFolder::open(config.model.path).value());
    const SessionOptions options = session_options(config);
    memory = Session::plan(folder.config(), options).take();
    lines = plan_report(folder.config(), with_groups(options, memory), memory, outlook);
  }
  // The first number behind `before` in a line that begins with `line`, times its unit; -1 when
  // there is none.
  double number(const std::string& line, const std::string& before) const {
    const std::map<std::string, double> units = {{"kB", 1e3},      {"MB", 1e6}, {"GB", 1e9},
                                                 {"million", 1e6}, {"billion", 1e9}};
    const std::regex wanted(before + "([0-9.e+-]+) ?([A-Za-z]*)");
    for (const std::string& l : lines) {
      std::smatch found;
      if (!l.starts_with(line) || !std::regex_search(l, found, wanted)) continue;
      const auto unit = units.find(found[2]);
      return std::stod(found[1]) * (unit == units.end() ? 1 : unit->second);
    }
    return -1;
  }
  // "": there is none.
  std::string line(const std::string& begin) const {
    for (const std::string& l : lines) {
      if (l.starts_with(begin)) return l;
    }
    return "";
  }
  bool has(const std::string& begin) const { return !line(begin).empty(); }
};

TEST(Report, NamesTheBudgetsThatNeedLess) {
  TinyRun run;
  run.use_minimum_budgets();
  const Printed tight(run.config());
  EXPECT_TRUE(tight.has("offload: device + host + disk: ")) << tight.lines[1];
  EXPECT_TRUE(tight.has("a step: "));
  run.config().memory.host = MemorySize::of_bytes(tight.memory.whole_host_bytes);
  const Printed roomy(run.config());
  EXPECT_TRUE(roomy.has("offload: device + host: ")) << roomy.lines[1];
  EXPECT_TRUE(roomy.has("a step: 0 B read from disk, 0 B written, "));
  run.config().memory.device = MemorySize::of_bytes(tight.memory.whole_device_bytes);
  const Printed resident(run.config());
  EXPECT_TRUE(resident.has("offload: none: ")) << resident.lines[1];
  EXPECT_FALSE(resident.has("a step: "));
}

TEST(Report, NamesTheTokensThatStepsHaveRoomFor) {
  TinyRun run;
  run.config().train.shards = 1;  // whatever the microbatches, so that bytes grow with them
  run.use_minimum_budgets();
  run.config().memory.device = MemorySize::of_bytes(run.config().device_bytes() + 300 * kKiB);
  const auto tokens =
      static_cast<int64_t>(Printed(run.config()).number("  workspace", "has room for "));
  ASSERT_GT(tokens, run.config().train.tokens_per_step);
  HfFolder folder = std::move(HfFolder::open(run.config().model.path).value());
  run.config().train.tokens_per_step = tokens;
  EXPECT_TRUE(Session::plan(folder.config(), session_options(run.config())).ok());
  run.config().train.tokens_per_step = tokens + run.config().train.micro_batch_tokens;
  EXPECT_EQ(Session::plan(folder.config(), session_options(run.config())).status().code(),
            Exit::kDeviceMemory);
}

// The 256 rows of a layer make a block, or with last blocks of the 24 experts at most 25, which are
// four groups of eight.
TEST(Report, TellsHowManyGroupsAreInFlight) {
  TinyRun run;
  EXPECT_TRUE(Printed(run.config()).has("experts: groups of up to 1 block of 256 rows"));
  run.config().train.devices = cpus(2);
  run.config().plan.group_blocks = 8;
  const char* groups =
      "experts: groups of up to 8 blocks of 256 rows, 4 of them in flight on each ";
  EXPECT_TRUE(Printed(run.config()).has(std::string(groups) + "device"));
  run.config().plan.waves_in_flight = 5;
  EXPECT_FALSE(Printed(run.config()).has(std::string(groups) + "device"));
}

// Four shards make three sums of an expert at a time, each a page for 3 x 32 x 24 fp32 elements,
// which are 9 KiB of its 12.
TEST(Report, TellsTheSumsOfExpertsByShards) {
  TinyRun run;
  run.config().train.micro_batch_tokens = 32;
  run.config().plan.group_blocks = 1;
  const std::string line =
      "                  36.0 KiB on the devices, for experts' gradients in 1 chunk of 4 parts";
  EXPECT_FALSE(Printed(run.config()).has(line));
  run.config().train.expert_shards = 4;
  EXPECT_TRUE(Printed(run.config()).has(line));
}

// In-layer buffers are pages: a step has room for more tokens than they leave on the device, and
// the plan says what that costs.
TEST(Report, TellsWhenInLayerBuffersMove) {
  TinyRun run;
  run.config().plan.in_place = false;  // with copies the least budget holds fewer of them
  run.use_minimum_budgets();
  const Printed tight(run.config());
  EXPECT_TRUE(tight.line("  in-layer").ends_with("is faster")) << tight.line("  in-layer");
  run.config().memory.device = MemorySize::of_bytes(run.config().device_bytes() + 300 * kKiB);
  const Printed roomy(run.config());
  EXPECT_TRUE(roomy.line("  in-layer").ends_with("in host memory")) << roomy.line("  in-layer");
  // At the tokens it names they still stay.
  run.config().train.tokens_per_step =
      static_cast<int64_t>(roomy.number("  workspace", "[0-9], for "));
  ASSERT_GT(run.config().train.tokens_per_step, 128);
  const Printed full(run.config());
  EXPECT_TRUE(full.line("  in-layer").ends_with("in host memory")) << full.line("  in-layer");
}

// Per step, checkpoint and run, and the rating's steps: by hand from what is predicted.
TEST(Report, TellsTheLifeOfADrive) {
  TinyRun run;
  run.use_minimum_budgets();
  EXPECT_FALSE(Printed(run.config()).has("drive"));
  const Printed plain(run.config(), {.steps = 1000, .save_steps = 100});
  const double step = plain.number("drive:", ":  "), save = plain.number("drive:", "step and ");
  const double all = plain.number("drive:", "checkpoint, ");
  EXPECT_GT(step, 0);
  EXPECT_GT(save, 0);
  // The store is written once; what is printed is rounded.
  const double steps = 1000 * step + 10 * save;
  EXPECT_GE(all, 0.99 * steps);
  EXPECT_LE(all, 1.05 * steps);
  EXPECT_EQ(plain.number("        ", "of the "), -1);
  const Printed rated(run.config(), {.steps = 1000, .save_steps = 100, .drive_tbw = 0.5});
  EXPECT_EQ(rated.number("        ", "of the "), 0.5);
  const double percent = 100 * all / 0.5e12, lasts = 0.5e12 / (step + save / 100);
  EXPECT_NEAR(rated.number("        ", "^ +"), percent, 0.06 * percent) << "two digits";
  EXPECT_NEAR(rated.number("        ", "last for "), lasts, 0.01 * lasts);
}

// The store is written by the run's start, not by those who go on with it.
TEST(Report, ResumedRunsDoNotCountTheStoreAgain) {
  TinyRun run;
  run.use_minimum_budgets();
  const RunOutlook outlook = {.steps = 2, .save_steps = 1};
  RunOutlook on = outlook;
  on.resumed = true;
  const Printed started(run.config(), outlook), resumed(run.config(), on);
  const auto all = [](const Printed& printed) { return printed.number("drive:", "checkpoint, "); };
  const double step = resumed.number("drive:", ":  "), save = resumed.number("drive:", "step and ");
  HfFolder folder = std::move(HfFolder::open(run.config().model.path).value());
  const TensorTable table = TensorTable::make(folder.config());
  // Two bytes of a weight and twelve of its state, a page's header and what fills its last sector.
  const auto pages = static_cast<double>(2 * table.records.size());
  const auto least = 14.0 * static_cast<double>(table.total_parameters());
  const double most = least + pages * static_cast<double>(kPageHeaderBytes + kIoAlign);
  // Three digits of each are printed.
  EXPECT_NEAR(all(resumed), 2 * (step + save), 0.02 * all(resumed));
  EXPECT_GE(all(started) - all(resumed), least - 0.01 * all(started));
  EXPECT_LE(all(started) - all(resumed), most + 0.01 * all(started));
}

}  // namespace
}  // namespace pagoda
