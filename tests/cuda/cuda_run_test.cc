// Whole runs through a GPU that is made up (tests/cuda/fake_cuda.h), whose kernels are the CPU's:
// executor, pager and optimizer on CUDA's streams and events leave the bits that the CPU leaves,
// whatever the budgets and however slow each piece of work is; and what train.devices chooses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/doctor/doctor_report.h"
#include "preview/micro_batch_choice.h"
#include "preview/run_forecast.h"
#include "preview/this_machine.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using fake_cuda::Machine;

constexpr uint64_t kOrders = kUnderSanitizer ? 1 : 2;
constexpr bool kEmulates = !kUnderSanitizer;  // sanitizers do not know the emulation's fibers

// One per process: the CPU's hash of the tiny run.
const std::string& cpu_hash() {
  static const std::string hash = [] {
    TinyRun run;
    SimStorage storage(1);
    const Outcome outcome = run_to_end(run.config(), &storage);
    CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
    return outcome.sha256;
  }();
  return hash;
}

class CudaRun : public testing::Test {
 protected:
  CudaRun() {
    fake_cuda::start({});
    run_.config().train.devices = {"cuda"};
  }
  ~CudaRun() override {
    fake_cuda::slow_down(0, 0);
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
  }
  Outcome outcome(uint64_t seed, int64_t stop_at = -1) {
    SimStorage storage(seed);
    return run_to_end(run_.config(), &storage, stop_at);
  }

  TinyRun run_;
};

TEST_F(CudaRun, WithRoomForEverythingUpdatesOnTheGpuWithTheBitsOfTheCpu) {
  SessionOptions options = session_options(run_.config());
  const HfFolder folder = std::move(HfFolder::open(run_.config().model.path).value());
  EXPECT_TRUE(Session::plan(folder.config(), options).value().state_on_device);
  options.eager_adam = true;
  EXPECT_FALSE(Session::plan(folder.config(), options).value().state_on_device);
  const Outcome result = outcome(1);
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.sha256, cpu_hash());
  EXPECT_GT(fake_cuda::counters().copies, 0) << "nothing went to the GPU";
}

// The CPU's kernels on the GPU's memory, and the GPU's own, emulated. These compute experts side by
// side, so they write what is then summed.
TEST_F(CudaRun, ExpertsReadRowsInPlaceWithTheBitsOfCopies) {
  run_.config().train.steps = run_.config().train.save_steps = 2;
  for (const bool emulated : {false, true}) {
    if (emulated && !kEmulates) continue;
    SCOPED_TRACE(emulated ? "emulated" : "the CPU's");
    fake_cuda::emulate_kernels(emulated);
    std::string copied;
    for (const bool in_place : {false, true}) {
      run_.new_run();
      run_.config().plan.in_place = in_place;
      const Outcome result = outcome(12);
      ASSERT_TRUE(result.status.ok()) << result.status.message();
      expect_in_place(result.row_bytes, in_place, false);
      EXPECT_EQ(result.row_bytes.copied == 0, in_place);
      if (!in_place) copied = result.sha256;
      EXPECT_EQ(result.sha256, copied);
    }
  }
  fake_cuda::emulate_kernels(false);
}

TEST_F(CudaRun, PagedWithSlowWorkLeavesTheBitsOfTheCpu) {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Watchdog watchdog(strf("run of seed %d", static_cast<int>(seed)),
                            std::chrono::seconds(300));
    run_.new_run();
    fake_cuda::slow_down(static_cast<uint32_t>(seed), seed % 2 == 0 ? 0 : 40);
    run_.config().plan.group_blocks = seed == 2 ? 4 : 1;
    run_.config().memory.device = run_.config().memory.host = MemorySize::of_bytes(64 * kMiB);
    run_.use_minimum_budgets();
    const Outcome result = outcome(seed, seed == 2 ? 3 : -1);
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    EXPECT_EQ(result.sha256, cpu_hash());
    expect_paged(result.paging);
  }
  EXPECT_GT(fake_cuda::counters().gates, 0) << "the GPU never waited for the host";
  EXPECT_GT(fake_cuda::counters().event_waits, 0) << "nor for itself";
}

// Runs the GPU's own kernels, emulated, in a whole run. Their own memory lies in the arena, and the
// run takes nothing else of the GPU. Neither a smaller arena nor groups of experts change a bit:
// large groups where there is room for all, groups of one where there is least, or as asked.
TEST_F(CudaRun, KernelsStayInTheirScratchAndTheRunInItsBudget) {
  if (!kEmulates) GTEST_SKIP() << "SKIPPED: kernels are not emulated under a sanitizer";
  fake_cuda::emulate_kernels(true);
  run_.config().train.steps = run_.config().train.save_steps = 2;
  const Outcome roomy = outcome(10);
  ASSERT_TRUE(roomy.status.ok()) << roomy.status.message();
  expect_in_place(roomy.row_bytes, true, false);
  EXPECT_LE(fake_cuda::counters().most_allocated_bytes, run_.config().device_bytes());
  for (const int64_t group_blocks : {0, 5}) {
    SCOPED_TRACE(testing::Message() << "groups of " << group_blocks);
    run_.new_run();
    run_.config().plan.group_blocks = group_blocks;
    run_.config().memory.device = run_.config().memory.host = MemorySize::of_bytes(64 * kMiB);
    run_.use_minimum_budgets();
    fake_cuda::start({.memory_bytes = run_.config().device_bytes()});
    const Outcome paged = outcome(11);
    ASSERT_TRUE(paged.status.ok()) << paged.status.message();
    EXPECT_EQ(paged.sha256, roomy.sha256);
    expect_paged(paged.paging);
    EXPECT_GT(fake_cuda::counters().most_allocated_bytes, 0);
    EXPECT_LE(fake_cuda::counters().most_allocated_bytes, run_.config().device_bytes());
    fake_cuda::start({});
  }
  fake_cuda::emulate_kernels(false);
}

// A GPU computes as many row blocks together as its budget has room for. It computes one at a time
// with the smallest budget, or where groups would drive out pages that stay.
TEST_F(CudaRun, GroupsAreAsLargeAsTheBudgetAllows) {
  const HfFolder folder = std::move(HfFolder::open(run_.config().model.path).value());
  const ModelSizes model = read_model_sizes(run_.config().model.path).take();
  RunConfig& config = run_.config();
  const auto plan = [&](int64_t device_bytes) {
    config.memory.device = MemorySize::of_bytes(device_bytes);
    return Session::plan(folder.config(), session_options(config));
  };
  const MemoryPlan roomy = plan(64 * kMiB).value();
  EXPECT_EQ(roomy.group_blocks, 16);
  EXPECT_GT(roomy.group_bytes[0], 0);
  const int64_t least = roomy.min_device_bytes;
  EXPECT_EQ(plan(least - 1).status().code(), Exit::kDeviceMemory);
  std::vector<int64_t> sizes;
  for (int64_t more = 0; more < 64 * kMiB; more = 2 * more + 64 * kKiB) {
    const MemoryPlan memory = plan(least + more).value();
    const PlannedRun planned = planned_run(model, config, this_machine_sheet(config.gpus())).take();
    EXPECT_EQ(planned.shape.group_blocks, memory.group_blocks) << more;
    EXPECT_EQ(planned.group_bytes, memory.group_bytes) << more;
    EXPECT_EQ(memory.min_device_bytes, least) << more;
    EXPECT_LE(8 * memory.group_bytes[0], more);
    if (sizes.empty() || sizes.back() != memory.group_blocks) {
      sizes.push_back(memory.group_blocks);
    }
    const MemoryPlan alone = [&] {
      config.plan.group_blocks = 1;
      const MemoryPlan chosen = plan(least + more).value();
      config.plan.group_blocks = 0;
      return chosen;
    }();
    EXPECT_EQ(alone.min_device_bytes, least);
    EXPECT_EQ(memory.state_on_device, alone.state_on_device) << more;
  }
  EXPECT_EQ(sizes.front(), 1);
  EXPECT_EQ(sizes.back(), 16);
  EXPECT_GT(sizes.size(), 2u);
  config.train.devices = {"cpu"};
  EXPECT_EQ(plan(64 * kMiB).value().group_blocks, 1);
}

// Every page that moved between host and GPU did so in pinned memory.
TEST_F(CudaRun, PagesGoThroughPinnedMemory) {
  run_.use_minimum_budgets();
  run_.config().train.save_steps = 0;
  SimStorage storage(3);
  auto started = Trainer::start(run_.config(), false, &storage);
  ASSERT_TRUE(started.ok()) << started.status().message();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE((*started)->step().ok());
  Session& session = (*started)->session();
  session.pager().drain();
  const Pager::Counters& moved = session.pager().counters();
  const fake_cuda::Counters seen = fake_cuda::counters();
  EXPECT_GT(moved.upload_bytes, 0);
  EXPECT_GE(seen.copied_bytes - seen.unpinned_bytes, moved.upload_bytes + moved.download_bytes);
  EXPECT_GE(seen.pinned_bytes, session.memory().host_slot_bytes);

  // What the host reads after a step is in host memory.
  fake_cuda::hide_memory(true);
  double sum = 0;
  const auto records = static_cast<int64_t>(session.table().records.size());
  for (int64_t r = 0; r < records; ++r) sum += session.executor().square_sum(r);
  EXPECT_GT(sum, 0);
  EXPECT_GT(session.executor().loss_sums().front(), 0);
  fake_cuda::hide_memory(false);
}

TEST_F(CudaRun, WithoutPinnedMemoryLeavesTheSameBits) {
  fake_cuda::start({.pins = false});
  run_.use_minimum_budgets();
  testing::internal::CaptureStderr();
  const Outcome result = outcome(4);
  const std::string warned = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.sha256, cpu_hash());
  EXPECT_NE(warned.find("does not pin"), std::string::npos) << warned;
}

TEST_F(CudaRun, EagerUpdatesAndFp32LeaveTheBitsOfTheCpu) {
  for (const bool cuda : {false, true}) {
    SCOPED_TRACE(cuda ? "cuda" : "cpu");
    static std::string hash;
    TinyRun run(DType::kF32);
    run.config().train.devices = {cuda ? "cuda" : "cpu"};
    run.config().optim.clip = ClipKind::kPerExpert;
    if (cuda) run.use_minimum_budgets();
    SimStorage storage(5);
    const Outcome result = run_to_end(run.config(), &storage);
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    if (cuda) {
      EXPECT_EQ(result.sha256, hash);
    } else {
      hash = result.sha256;
    }
  }
}

TEST_F(CudaRun, SamplesAreThoseOfTheCpu) {
  std::string text;
  for (const std::string device : {"cpu", "cuda"}) {
    run_.new_run();
    run_.config().train.devices = {device};
    run_.config().sample.prompts = {"row 1 ", "the"};
    run_.config().sample.max_new_tokens = 6;
    SimStorage storage(6);
    auto started = Trainer::start(run_.config(), false, &storage);
    ASSERT_TRUE(started.ok()) << started.status().message();
    ASSERT_TRUE((*started)->step().ok());
    const auto samples = (*started)->sample();
    ASSERT_TRUE(samples.ok()) << samples.status().message();
    std::string all;
    for (const Sample& sample : samples.value()) all += sample.text + "|";
    if (device == "cpu") text = all;
    EXPECT_EQ(all, text);
  }
}

// A build that computes elsewhere says so on resuming.
TEST_F(CudaRun, ResumesOnTheOtherDeviceWithAWarning) {
  SimStorage storage(7);
  run_.config().train.devices = {"cpu"};
  {
    auto started = Trainer::start(run_.config(), false, &storage);
    ASSERT_TRUE(started.ok()) << started.status().message();
  }
  run_.config().train.devices = {"cuda"};
  testing::internal::CaptureStderr();
  const auto resumed = Trainer::start(run_.config(), true, &storage);
  const std::string warned = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_NE(warned.find("made up on Fake 0"), std::string::npos) << warned;
}

TEST_F(CudaRun, AutoTakesAGpuThatComputesTheRun) {
  RunConfig config;
  ASSERT_EQ(config.train.devices, std::vector<std::string>{"auto"});
  EXPECT_TRUE(config.gpu());
  EXPECT_EQ(config.device_bytes(), static_cast<int64_t>(0.85 * double(kGiB)));
  config.memory.device = *MemorySize::parse("50%");
  EXPECT_EQ(config.device_bytes(), kGiB / 2);
  EXPECT_EQ(session_options(config).gpus.front().name, "Fake 0");

  config.train.devices = cpus(2);
  EXPECT_FALSE(config.gpu());
  EXPECT_EQ(config.unused_gpu(), "") << "the CPU's devices were asked for";
  config.train.devices = {"cpu"};
  EXPECT_FALSE(config.gpu());

  config.train.devices = {"auto"};
  fake_cuda::start({.major = 7, .minor = 0});
  EXPECT_FALSE(config.gpu());
  EXPECT_NE(config.unused_gpu().find("kernels for 75,80"), std::string::npos);
  fake_cuda::start({.major = 7, .minor = 5});
  EXPECT_TRUE(config.gpu());
  fake_cuda::start({.gpus = 0});
  EXPECT_FALSE(config.gpu());
  EXPECT_EQ(config.unused_gpu(), "") << "there is none";
}

struct Refusal {
  const char* what;
  Machine machine;
  std::vector<std::string> words;
};

TEST_F(CudaRun, AskedForAGpuThatCannotComputeIsRefusedAtTheStart) {
  const std::vector<Refusal> refusals = {
      {"no GPU", {.gpus = 0}, {"train.devices = \"cuda\"", "no GPU"}},
      {"no driver", {.driver = 0}, {"no NVIDIA driver"}},
      {"too old", {.major = 7, .minor = 0}, {"kernels for 75,80", "ARCHITECTURES=70"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    fake_cuda::start(refusal.machine);
    const Status status = run_.config().validate();
    EXPECT_EQ(status.code(), Exit::kUnavailable);
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    for (const std::string& word : refusal.words) {
      EXPECT_NE(status.message().find(word), std::string::npos)
          << status.message() << "\n  lacks: " << word;
    }
  }
  fake_cuda::start({});
  run_.config().train.devices = {"cuda", "cpu"};
  EXPECT_EQ(run_.config().validate().code(), Exit::kUsage);
}

TEST_F(CudaRun, BudgetsAndHeadsThatDoNotFitAreRefused) {
  fake_cuda::start({.memory_bytes = 2 * kMiB, .taken_bytes = kMiB + kMiB / 2});
  const Outcome result = outcome(8);
  EXPECT_EQ(result.status.code(), Exit::kDeviceMemory) << result.status.message();
  EXPECT_NE(result.status.message().find("lower memory.device"), std::string::npos);

  std::string odd = kTinyConfig;
  const std::string head = "\"head_dim\": 16";
  odd.replace(odd.find(head), head.size(), "\"head_dim\": 12");
  TinyRun run(DType::kBF16, odd.c_str());
  run.config().train.devices = {"cuda"};
  SimStorage storage(9);
  const auto started = Trainer::start(run.config(), false, &storage);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.status().code(), Exit::kUnavailable);
  EXPECT_NE(started.status().message().find("head_dim is 12"), std::string::npos);
}

// The largest microbatch that a GPU just has room for: with a byte less the planner's choice is
// smaller, though the host could hold far more, and each choice's session has room.
TEST_F(CudaRun, AutoMicrobatchIsWhatTheGpuHasRoomFor) {
  RunConfig& config = run_.config();
  config.train.tokens_per_step = 512;
  config.train.micro_batch_tokens = 512;
  const HfFolder folder = std::move(HfFolder::open(config.model.path).value());
  const auto least = [&] {
    return Session::plan(folder.config(), session_options(config)).value().min_device_bytes;
  };
  const int64_t bytes = least();
  config.memory.device = MemorySize::of_percent(100);
  std::vector<int64_t> choices;
  for (const int64_t gpu_bytes : {bytes, bytes - 1}) {
    fake_cuda::start({.memory_bytes = gpu_bytes});
    config.train.micro_batch_tokens = 0;
    testing::internal::CaptureStderr();
    RankGroup alone;
    const Status chosen = choose_micro_batch(config, false, alone);
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(chosen.ok()) << chosen.message();
    EXPECT_NE(said.find("GPU 0 (Fake 0, sm_90"), std::string::npos) << said;
    EXPECT_NE(said.find("datasheet"), std::string::npos) << said;
    EXPECT_LE(least(), gpu_bytes);
    choices.push_back(config.train.micro_batch_tokens);
  }
  EXPECT_EQ(choices[0], 512) << "fewer launches, and room";
  EXPECT_LT(choices[1], 512);
  EXPECT_GE(choices[1], config.data.sequence_len);
}

// Who updates where there is room for everything: the GPU, but not when updates are eager.
TEST_F(CudaRun, ThePlannerDividesAGpuAsTheRunDoes) {
  const ModelSizes model = read_model_sizes(run_.config().model.path).take();
  const HfFolder folder = std::move(HfFolder::open(run_.config().model.path).value());
  for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
    RunConfig& config = run_.config();
    config.optim.clip = clip;
    const MachineSheet sheet = this_machine_sheet(config.gpus());
    const RunForecast plan = forecast_run(model, config, sheet, kFinePlan).take();
    const MemoryPlan memory = Session::plan(folder.config(), session_options(config)).take();
    ASSERT_TRUE(plan.step.has_value());
    EXPECT_EQ(plan.step->state_on_device, clip == ClipKind::kGlobal);
    EXPECT_EQ(plan.step->state_on_device, memory.state_on_device);
    EXPECT_EQ(plan.step->host_bytes, memory.host_slot_bytes);
    EXPECT_EQ(plan.least.device_bytes, memory.min_device_bytes);
  }
}

// Every class's sheet is one, and says that it is no measurement; what the host has is the host's.
TEST_F(CudaRun, SheetsOfGpusAreByTheirClass) {
  const MachineSheet host = this_machine_sheet();
  double before = 0;
  for (const int capability : {75, 80, 90, 100}) {
    const Gpu gpu{0, "Some", capability / 10, capability % 10, 24 * kGiB, ""};
    const MachineSheet sheet = this_machine_sheet({gpu});
    ASSERT_TRUE(sheet.check().ok()) << sheet.check().message();
    EXPECT_TRUE(sheet.gpu());
    EXPECT_EQ(sheet.machine.source, SheetSource::kDatasheet);
    EXPECT_NE(sheet.machine.name.find("datasheet"), std::string::npos);
    EXPECT_EQ(sheet.device_bytes(), 24 * kGiB);
    EXPECT_EQ(sheet.host_bytes(), host.host_bytes());
    EXPECT_EQ(sheet.host.adam_gb_s, host.host.adam_gb_s);
    EXPECT_GT(sheet.device.peak_tflops, before) << "later data center GPUs are faster";
    before = sheet.device.peak_tflops;
  }
  const Gpu later{0, "Later", 9, 9, kGiB, ""}, known{0, "Known", 9, 0, kGiB, ""};
  EXPECT_EQ(this_machine_sheet({later}).device.peak_tflops,
            this_machine_sheet({known}).device.peak_tflops);
  const Gpu smaller{1, "Known", 9, 0, kGiB / 2, ""};
  const MachineSheet both = this_machine_sheet({known, smaller});
  ASSERT_TRUE(both.check().ok()) << both.check().message();
  EXPECT_EQ(both.device.count, 2);
  EXPECT_EQ(both.device_bytes(), kGiB / 2);
}

TEST_F(CudaRun, DoctorTellsOfGpus) {
  fake_cuda::start({.gpus = 2, .driver = 13010});
  const TempDir dir;
  const DoctorReport report = examine_machine(dir.path());
  const std::string text = report.text();
  for (const char* line : {"GPU 1 (Fake 1, sm_90, 1.00 GiB)", "CUDA up to 13.1",
                           "devices = cuda yes"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  const nlohmann::json json = nlohmann::json::parse(report.json());
  EXPECT_EQ(json["gpus"][0]["compute_capability"], "9.0");
  EXPECT_EQ(json["gpus"][1]["pci_address"], "0000:02:00.0");
  EXPECT_EQ(json["cuda"]["usable"], true);
  fake_cuda::start({.driver = 0});
  const std::string none = examine_machine(dir.path()).text();
  EXPECT_NE(none.find("devices = cuda no (no NVIDIA driver"), std::string::npos) << none;
}

}  // namespace
}  // namespace pagoda
