// Whole runs on several GPUs that are made up (tests/cuda/fake_cuda.h), whose kernels are the
// CPU's: the bits of one device, whoever reaches whose memory and whatever the budgets; the bytes
// between two GPUs are those between two CPU devices; and what a list of GPUs may be.
#include <gtest/gtest.h>

#include "config/computed_with.h"
#include "parallel/local_link.h"
#include "report/report.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using fake_cuda::Machine;

constexpr bool kEmulates = !kUnderSanitizer;  // sanitizers do not know the emulation's fibers

std::vector<std::string> cudas(int64_t count) { return {strf("cuda*%lld", (long long)count)}; }

class CudaDevices : public testing::Test {
 protected:
  CudaDevices() { fake_cuda::start({.gpus = 3}); }
  ~CudaDevices() override {
    fake_cuda::slow_down(0, 0);
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
  }
  Outcome outcome(uint64_t seed, int64_t stop_at = -1) {
    SimStorage storage(seed);
    return run_to_end(run_.config(), &storage, stop_at);
  }
  // Hash of the same run on one CPU device, with room for everything.
  std::string cpu_hash() {
    TinyRun run;
    run.config().train.tokens_per_step = run_.config().train.tokens_per_step;
    SimStorage storage(1);
    const Outcome outcome = run_to_end(run.config(), &storage);
    CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
    return outcome.sha256;
  }
  MemoryPlan plan() {
    const HfFolder folder = std::move(HfFolder::open(run_.config().model.path).value());
    return Session::plan(folder.config(), session_options(run_.config())).take();
  }

  TinyRun run_;
};

int64_t sum(const std::map<std::pair<int, int>, int64_t>& bytes) {
  int64_t all = 0;
  for (const auto& [pair, of_pair] : bytes) all += of_pair;
  return all;
}

struct Row {
  int64_t gpus;
  bool peers;
  bool pages;       // the smallest budgets
  int most_us;      // of each piece of work, before it
  int64_t stop_at;  // saved, ended and resumed there; -1: it is not
};

TEST_F(CudaDevices, LeaveTheBitsOfOneCpu) {
  const std::string expected = cpu_hash();
  const std::vector<Row> rows = {{1, true, true, 0, -1},
                                 {2, true, false, 40, -1},
                                 {2, false, true, 40, 3},
                                 {3, true, true, 0, -1},
                                 {3, false, false, 0, -1}};
  uint64_t seed = 0;
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message()
                 << row.gpus << " GPUs, peers " << row.peers << ", paged " << row.pages);
    const Watchdog watchdog("run on several GPUs", std::chrono::seconds(300));
    fake_cuda::start({.gpus = 3, .peers = row.peers});
    fake_cuda::slow_down(static_cast<uint32_t>(++seed), row.most_us);
    run_.new_run();
    run_.config().train.devices = cudas(row.gpus);
    run_.config().memory.device = run_.config().memory.host = MemorySize::of_bytes(64 * kMiB);
    if (row.pages) run_.use_minimum_budgets();
    const Outcome result = outcome(seed, row.stop_at);
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    EXPECT_EQ(result.sha256, expected);
    if (row.pages) {
      expect_paged(result.paging);
    } else {
      expect_in_place(result.row_bytes, true, false);
    }
    const int64_t peer_bytes = sum(fake_cuda::counters().peer_bytes);
    EXPECT_EQ(peer_bytes > 0, row.gpus > 1 && row.peers) << peer_bytes;
  }
}

// Some of the GPUs, in another order, with fewer that attend.
TEST_F(CudaDevices, AreThoseThatAreNamed) {
  const std::string expected = cpu_hash();
  fake_cuda::start({.gpus = 3, .memories = {64 * kKiB}});
  run_.config().train.devices = {"cuda:2", "cuda:1"};
  run_.config().parallel.attention_devices = 1;
  const Outcome result = outcome(21);
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.sha256, expected);
  for (const auto& [pair, bytes] : fake_cuda::counters().peer_bytes) {
    EXPECT_TRUE(pair.first > 0 && pair.second > 0);
    EXPECT_GT(bytes, 0);
  }
}

// The kernels of GPUs, emulated: two leave the bits that one leaves, whether rows travel between
// them, or weights and sums of gradients. Streams beside the one that computes have scratch for
// what their kernels take.
TEST_F(CudaDevices, OwnKernelsLeaveTheBitsOfOneGpu) {
  if (!kEmulates) GTEST_SKIP() << "SKIPPED: kernels are not emulated under a sanitizer";
  fake_cuda::emulate_kernels(true);
  RunConfig& config = run_.config();
  config.train.steps = config.train.save_steps = 2;
  config.train.micro_batch_tokens = 32;  // four a step
  for (const Sharing sharing : {Sharing::kRows, Sharing::kData}) {
    SCOPED_TRACE(sharing == Sharing::kRows ? "rows" : "weights");
    config.train.expert_shards = sharing == Sharing::kRows ? 1 : 4;
    config.parallel.sharing = sharing;
    std::string expected;
    for (const int64_t gpus : {1, 2}) {
      run_.new_run();
      config.train.devices = cudas(gpus);
      config.memory.device = config.memory.host = MemorySize::of_bytes(64 * kMiB);
      if (gpus > 1) run_.use_minimum_budgets();
      const Outcome result = outcome(30);
      ASSERT_TRUE(result.status.ok()) << result.status.message();
      if (gpus == 1) {
        expected = result.sha256;
        expect_in_place(result.row_bytes, true, false);
      }
      EXPECT_EQ(result.sha256, expected);
    }
  }
  fake_cuda::emulate_kernels(false);
}

// What was received between each two devices, after some steps.
Link::Counts received(const RunConfig& config, int steps) {
  SimStorage storage(7);
  auto started = Trainer::start(config, false, &storage);
  CHECK(started.ok(), "%s", started.status().message().c_str());
  for (int i = 0; i < steps; ++i) CHECK((*started)->step().ok());
  (*started)->session().executor().synchronize();
  return (*started)->session().link()->counts();
}

TEST_F(CudaDevices, CarryTheBytesThatCpuDevicesCarry) {
  for (const bool peers : {true, false}) {
    SCOPED_TRACE(peers ? "peers" : "through the host");
    fake_cuda::start({.gpus = 3, .peers = peers});
    run_.config().plan.group_blocks = 2;
    run_.config().train.save_steps = 0;
    Link::Counts counts[2];
    for (const bool cuda : {false, true}) {
      run_.new_run();
      run_.config().train.devices = cuda ? cudas(3) : cpus(3);
      run_.config().memory.device = run_.config().memory.host = MemorySize::of_bytes(64 * kMiB);
      run_.use_minimum_budgets();
      counts[cuda ? 1 : 0] = received(run_.config(), 3);
    }
    EXPECT_EQ(counts[0], counts[1]);
    EXPECT_GT(counts[0].size(), 3u);
    std::map<std::pair<int, int>, int64_t> bytes;
    for (const auto& [pair, count] : counts[1]) {
      EXPECT_GT(count.bytes, 0);
      bytes[pair] = count.bytes;
    }
    for (int i = 0; i < 9; ++i) {
      if (i / 3 != i % 3) bytes[{i / 3, i % 3}] += LocalLink::kTriedBytes;
    }
    if (!peers) bytes.clear();
    EXPECT_EQ(fake_cuda::counters().peer_bytes, bytes);
  }
}

// Each GPU has a budget of its own, also as a share of its own memory; the one without room is
// named.
TEST_F(CudaDevices, HaveBudgetsOfTheirOwn) {
  fake_cuda::start({.gpus = 2, .memories = {80 * kMiB, 40 * kMiB}});
  RunConfig& config = run_.config();
  config.train.devices = cudas(2);
  config.memory.device = MemorySizes();
  EXPECT_EQ(config.device_budget().of(0), static_cast<int64_t>(0.85 * 80 * kMiB));
  EXPECT_EQ(config.device_budget().of(1), static_cast<int64_t>(0.85 * 40 * kMiB));
  config.memory.device = MemorySize::of_percent(50);
  EXPECT_EQ(config.device_budget().of(0), 40 * kMiB);
  EXPECT_EQ(config.device_budget().of(1), 20 * kMiB);
  run_.use_minimum_budgets();
  config.plan.group_blocks = 1;
  const std::vector<int64_t> least = plan().min_on_device;
  ASSERT_EQ(least.size(), 2u);
  const auto budgets = [](std::vector<int64_t> bytes) {
    std::vector<MemorySize> sizes;
    for (const int64_t of_one : bytes) sizes.push_back(MemorySize::of_bytes(of_one));
    return MemorySizes(sizes);
  };
  config.memory.device = budgets({least[0], least[1] - 1});
  const Outcome refused = outcome(40);
  EXPECT_EQ(refused.status.code(), Exit::kDeviceMemory);
  EXPECT_NE(refused.status.message().find("on device 1 (cuda:1)"), std::string::npos)
      << refused.status.message();
  config.memory.device = budgets({least[0], least[1] + 100 * kKiB});
  run_.new_run();
  const Outcome result = outcome(41);
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.sha256, cpu_hash());
  expect_paged(result.paging);
}

// A GPU whose memory others have taken is named, too.
TEST_F(CudaDevices, AGpuWithoutRoomIsNamed) {
  fake_cuda::start({.gpus = 2, .memories = {kGiB, 64 * kKiB}});
  run_.config().train.devices = cudas(2);
  const Outcome result = outcome(42);
  EXPECT_EQ(result.status.code(), Exit::kDeviceMemory);
  EXPECT_NE(result.status.message().find("GPU 1"), std::string::npos) << result.status.message();
}

struct Refusal {
  std::vector<std::string> devices;
  Exit code;
  const char* names;
};

TEST_F(CudaDevices, WhatIsNoListOfGpusIsRefused) {
  fake_cuda::start({.gpus = 2});
  for (const Refusal& refusal :
       {Refusal{{"cuda:0", "cuda:0"}, Exit::kUsage, "names cuda:0 twice"},
        Refusal{{"cuda*2", "cuda:1"}, Exit::kUsage, "names cuda:1 twice"},
        Refusal{{"cuda:0", "cpu"}, Exit::kUsage, "kernels round differently"},
        Refusal{{"cuda/2"}, Exit::kUsage, "only CPU devices can be"},
        Refusal{{"cuda:0,cuda:2"}, Exit::kUnavailable, "cuda:2 is not there"},
        Refusal{{"cuda*3"}, Exit::kUnavailable, "2 GPUs, cuda:0 to cuda:1"}}) {
    run_.config().train.devices = refusal.devices;
    const Status status = run_.config().validate();
    EXPECT_EQ(status.code(), refusal.code) << status.message();
    EXPECT_NE(status.message().find(refusal.names), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("train.devices"), std::string::npos) << status.message();
  }
  run_.config().train.devices = {"cuda:1,cuda:0"};
  EXPECT_TRUE(run_.config().validate().ok());
  EXPECT_EQ(run_.config().gpus().front().index, 1);
}

TEST_F(CudaDevices, OfUnlikeModelsAreWarnedOf) {
  const auto warned = [&] {
    testing::internal::CaptureStderr();
    warn_of_gpus(run_.config());
    return testing::internal::GetCapturedStderr();
  };
  run_.config().train.devices = cudas(2);
  EXPECT_NE(warned().find("bits depend on which of them computes"), std::string::npos);
  EXPECT_NE(kernel_set_with(run_.config().gpus()).find("on Fake 0 and Fake 1,"), std::string::npos);
  run_.config().train.devices = {"cuda:1"};
  EXPECT_EQ(warned(), "");
  fake_cuda::start({.gpus = 2, .model = "Alike"});
  run_.config().train.devices = cudas(2);
  EXPECT_EQ(warned(), "");
  EXPECT_NE(kernel_set_with(run_.config().gpus()).find("on Alike,"), std::string::npos);
}

}  // namespace
}  // namespace pagoda
