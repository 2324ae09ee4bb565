// A GPU as a device, on GPUs that are made up (tests/cuda/fake_cuda.h): what is refused and how,
// the order of work across streams of the GPU, of the host and disk reads, pinned memory, times,
// and errors that name what they hit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "device/cuda_stream.h"
#include "device/gpus.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/trace_file.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using fake_cuda::Machine;

constexpr uint32_t kGraphs = kUnderSanitizer ? 6 : 20;

std::unique_ptr<Device> open_one(int64_t arena_bytes, Trace* trace = nullptr) {
  auto device = open_gpu(0, {arena_bytes, 2, trace});
  CHECK(device.ok(), "%s", device.status().message().c_str());
  return device.take();
}

// What is opened is closed again.
class CudaDevice : public testing::Test {
 protected:
  CudaDevice() { fake_cuda::start({}); }
  ~CudaDevice() override {
    fake_cuda::slow_down(0, 0);
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams, 0);
    EXPECT_EQ(left.events, 0);
    EXPECT_EQ(left.allocated_bytes, 0);
    EXPECT_EQ(left.pinned_bytes, 0);
  }
};

struct Refusal {
  const char* what;
  Machine machine;
  Exit code;
  std::vector<std::string> words;
};

TEST_F(CudaDevice, WhatCannotBeUsedIsRefusedInOneLine) {
  const std::vector<Refusal> refusals = {
      {"no driver", {.driver = 0}, Exit::kUnavailable, {"no NVIDIA driver", "train.devices"}},
      {"an old driver", {.driver = 11040}, Exit::kUnavailable, {"up to 11.4", "update"}},
      {"no GPU", {.gpus = 0}, Exit::kUnavailable, {"no GPU", "CUDA_VISIBLE_DEVICES"}},
      {"no gates", {.waits_for_values = false}, Exit::kUnavailable, {"cuStreamWaitValue32"}},
      {"a small card",
       {.memory_bytes = 8 * kMiB},
       Exit::kDeviceMemory,
       {"16.01 MiB", "more than all of GPU 0 (Fake 0, sm_90, 8.00 MiB)", "lower memory.device"}},
      {"others on it",
       {.memory_bytes = 32 * kMiB, .taken_bytes = 20 * kMiB},
       Exit::kDeviceMemory,
       {"16.01 MiB", "left 12.00 MiB", "nvidia-smi", "lower memory.device"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    fake_cuda::start(refusal.machine);
    const auto device = open_gpu(0, {16 * kMiB});
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), refusal.code);
    const std::string message = device.status().message();
    EXPECT_EQ(message.find('\n'), std::string::npos);
    for (const std::string& word : refusal.words) {
      EXPECT_NE(message.find(word), std::string::npos) << message << "\n  lacks: " << word;
    }
  }
  for (const char* call : {"cudaMemGetInfo", "cudaMalloc", "cudaGetDeviceCount"}) {
    fake_cuda::start({});
    fake_cuda::fail(call, cudaErrorMemoryAllocation);
    const auto device = open_gpu(0, {16 * kMiB});
    ASSERT_FALSE(device.ok()) << call;
    const bool count = std::string(call) == "cudaGetDeviceCount";
    EXPECT_EQ(device.status().code(), count ? Exit::kUnavailable : Exit::kDeviceMemory) << call;
  }
}

TEST_F(CudaDevice, ReportsWhatIsThere) {
  fake_cuda::start({.gpus = 2, .driver = 13010, .major = 8, .minor = 6});
  const GpuReport report = find_gpus();
  EXPECT_EQ(report.driver, "13.1");
  EXPECT_EQ(report.missing, "");
  ASSERT_EQ(report.gpus.size(), 2u);
  EXPECT_EQ(report.gpus[1].text(), "GPU 1 (Fake 1, sm_86, 1.00 GiB)");
  EXPECT_EQ(report.gpus[1].pci_address, "0000:02:00.0");
}

TEST(Architectures, LaterGpusTranslateWhatHasNoLetter) {
  const auto runs = [](const char* architectures, int major, int minor) {
    Gpu gpu;
    gpu.major = major;
    gpu.minor = minor;
    return runs_on(architectures, gpu);
  };
  EXPECT_TRUE(runs("90", 9, 0));
  EXPECT_TRUE(runs("80,86", 8, 9));
  EXPECT_FALSE(runs("80,86", 7, 5));
  EXPECT_TRUE(runs("90a", 9, 0));
  EXPECT_FALSE(runs("90a", 10, 0));
  EXPECT_TRUE(runs("75,90a", 10, 0));
  EXPECT_TRUE(runs("100", 12, 0));
  EXPECT_FALSE(runs("", 9, 0));
}

TEST_F(CudaDevice, ArenaIsAlignedZeroAndWithinTheBudget) {
  const int64_t bytes = 3 * kMiB + 64;
  const auto device = open_one(bytes);
  EXPECT_EQ(device->arena_bytes(), bytes);
  EXPECT_EQ(reinterpret_cast<int64_t>(device->arena()) % 256, 0);
  EXPECT_EQ(fake_cuda::counters().allocated_bytes, bytes);
  std::vector<std::byte> found(static_cast<size_t>(bytes), std::byte{1});
  const auto stream = device->make_stream("download 0", WorkKind::kDownload);
  stream->copy(found.data(), device->arena(), bytes);
  stream->synchronize();
  EXPECT_EQ(found, std::vector<std::byte>(static_cast<size_t>(bytes)));
}

TEST_F(CudaDevice, HostWorkAndCopiesRunInOrder) {
  const auto device = open_one(kMiB);
  const auto stream = device->make_stream("compute 0", WorkKind::kCompute);
  auto* a = reinterpret_cast<int*>(device->arena());
  std::vector<int> from(1000, 1), to(1000, 0);
  const auto pin = device->pin(reinterpret_cast<std::byte*>(from.data()), 4000);
  const auto pin_to = device->pin(reinterpret_cast<std::byte*>(to.data()), 4000);
  fake_cuda::slow_down(1, 300);
  for (int round = 1; round <= 20; ++round) {
    stream->enqueue([&] { std::fill(from.begin(), from.end(), round); });
    stream->copy(a, from.data(), 4000);
    stream->enqueue([&] { std::fill(from.begin(), from.end(), -1); });
    stream->copy(to.data(), a, 4000);
    stream->synchronize();
    ASSERT_EQ(to, std::vector<int>(1000, round));
  }
  EXPECT_EQ(fake_cuda::counters().unpinned_bytes, 0);
}

// Random graphs of work on streams of a GPU, streams of the host, and happenings that a thread
// signals in an order of its own: a piece of work starts only after everything it was told to wait
// for has ended. Work is a copy of a counter through the GPU's memory, between two looks at a clock
// that only counts.
void run_graph(Device& device, uint32_t seed) {
  constexpr int kWork = 60;
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  std::vector<std::unique_ptr<Stream>> streams;
  for (int s = 0; s < 3; ++s) {
    streams.push_back(device.make_stream(strf("gpu %d", s), WorkKind::kCompute));
  }
  streams.push_back(make_host_stream({"host"}, std::make_shared<ThreadPool>(1)));
  std::vector<Event> outside(8);
  for (Event& event : outside) event = Event::make();
  std::vector<Event> order = outside;
  std::shuffle(order.begin(), order.end(), random);
  std::thread disk([order, pause = pick(400)]() mutable {
    for (Event& event : order) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      event.signal(Delays(WorkKind::kFetch));
    }
  });
  std::atomic<int64_t> clock{0};
  std::vector<int64_t> begin(kWork), end(kWork);
  std::vector<Event> done;
  std::vector<std::vector<int>> waits_for(kWork);
  std::vector<int> waits_outside(kWork, -1);
  for (int i = 0; i < kWork; ++i) {
    Stream& stream = *streams[static_cast<size_t>(pick(4))];
    std::vector<Event> events;
    for (int n = pick(3); n > 0 && i > 0; --n) {
      waits_for[i].push_back(pick(i));
      events.push_back(done[static_cast<size_t>(waits_for[i].back())]);
    }
    if (pick(4) == 0) {
      waits_outside[i] = pick(8);
      events.push_back(outside[static_cast<size_t>(waits_outside[i])]);
    }
    if (pick(2) == 0) {
      stream.wait(when_all({when_all(events), Event()}));
    } else {
      for (const Event& event : events) stream.wait(event);
    }
    stream.enqueue([&, i] {
      begin[i] = ++clock;
      const int o = waits_outside[i];
      if (o >= 0 && !outside[static_cast<size_t>(o)].happened()) begin[i] = -1;
    });
    stream.enqueue([&, i] { end[i] = ++clock; });
    done.push_back(stream.record());
  }
  when_all(done).wait();
  disk.join();
  for (int i = 0; i < kWork; ++i) {
    ASSERT_GT(begin[i], 0) << "seed " << seed << ": work " << i << " did not wait for the disk";
    for (const int before : waits_for[i]) {
      ASSERT_LT(end[before], begin[i]) << "seed " << seed << ": work " << i << " after " << before;
    }
  }
}

TEST_F(CudaDevice, EventsOrderWorkAcrossStreamsHostAndDisk) {
  const auto device = open_one(kMiB);
  for (uint32_t seed = 1; seed <= kGraphs; ++seed) {
    const Watchdog watchdog(strf("graph of seed %u", seed), std::chrono::seconds(120));
    fake_cuda::slow_down(seed, static_cast<int>(seed % 3) * 60);
    run_graph(*device, seed);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(fake_cuda::counters().event_waits, 0) << "the GPU waited for none of its own events";
}

// The GPU waits by itself for its own streams: nothing of it comes to a gate.
TEST_F(CudaDevice, StreamsOfAGpuWaitForEachOtherWithoutTheHost) {
  const auto device = open_one(kMiB);
  const auto upload = device->make_stream("upload 0", WorkKind::kUpload);
  const auto other = device->make_stream("download 0", WorkKind::kDownload);
  const auto compute = device->make_stream("compute 0", WorkKind::kCompute);
  std::vector<std::byte> host(4096, std::byte{7}), back(4096);
  const auto pin = device->pin(host.data(), 4096), pin_back = device->pin(back.data(), 4096);
  fake_cuda::slow_down(3, 2000);
  upload->copy(device->arena(), host.data(), 4096);
  const Event up = upload->record();
  other->copy(device->arena() + 8192, device->arena() + 8192, 4096);
  compute->wait(when_all({up, other->record()}));
  compute->copy(back.data(), device->arena(), 4096);
  compute->synchronize();
  EXPECT_EQ(back, host);
  EXPECT_EQ(fake_cuda::counters().gates, 0);
  EXPECT_GE(fake_cuda::counters().event_waits, 1);
}

// A gate that is opened early or late, and two in the other order.
TEST_F(CudaDevice, GatesOpenInAnyOrder) {
  const Watchdog watchdog("gates", std::chrono::seconds(60));
  const auto device = open_one(kMiB);
  const auto stream = device->make_stream("compute 0", WorkKind::kCompute);
  Event first = Event::make(), second = Event::make(), third = Event::make();
  std::atomic<int> ran{0};
  stream->wait(first);
  stream->wait(second);
  stream->enqueue([&] { ran = 1; });
  stream->wait(third);
  const Event all = stream->record();
  third.signal();
  second.signal();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(ran, 0);
  EXPECT_FALSE(all.happened());
  first.signal();
  all.wait();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(fake_cuda::counters().gates, 4);  // three waits, and behind the host work
}

TEST_F(CudaDevice, PinsOncePerArenaAndGoesOnWithoutWithOneWarning) {
  const auto device = open_one(kMiB);
  auto memory = HostMemory::allocate(kMiB).take();
  const auto stream = device->make_stream("upload 0", WorkKind::kUpload);
  {
    const auto pinned = device->pin(memory.data(), memory.bytes());
    EXPECT_NE(pinned, nullptr);
    EXPECT_EQ(fake_cuda::counters().pinned_bytes, kMiB);
    stream->copy(device->arena(), memory.data() + 4096, 4096);
    stream->synchronize();
    EXPECT_EQ(fake_cuda::counters().unpinned_bytes, 0);
  }
  EXPECT_EQ(fake_cuda::counters().pinned_bytes, 0);
  fake_cuda::fail("cudaHostRegister", cudaErrorMemoryAllocation);
  testing::internal::CaptureStderr();
  EXPECT_EQ(device->pin(memory.data(), memory.bytes()), nullptr);
  fake_cuda::fail("cudaHostRegister", cudaErrorMemoryAllocation);
  EXPECT_EQ(device->pin(memory.data(), 4096), nullptr);
  const std::string warned = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warned.begin(), warned.end(), '\n'), 1) << warned;
  EXPECT_NE(warned.find("1.00 MiB of host memory (out of memory)"), std::string::npos) << warned;
  std::memset(memory.data(), 5, 4096);
  std::vector<std::byte> back(4096);
  stream->copy(device->arena(), memory.data(), 4096);
  stream->copy(back.data(), device->arena(), 4096);
  stream->synchronize();
  EXPECT_EQ(back, std::vector<std::byte>(4096, std::byte{5}));
  EXPECT_EQ(fake_cuda::counters().unpinned_bytes, 8192);
}

// A wait counts as what held it up; spans and waits are on the stream's lane, in the host's time.
TEST_F(CudaDevice, TellsWhereTimeWent) {
  const TempDir dir;
  Trace trace;
  const int64_t began_us = monotonic_us();
  {
    const auto device = open_one(kMiB, &trace);
    const auto stream = device->make_stream("compute 0", WorkKind::kCompute);
    trace.start();
    Event read = Event::make();
    stream->wait(read);
    TraceLabel label{"expert L3 E12", {}, 0};
    stream->begin_span(label);
    stream->enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    stream->end_span();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    read.signal(Delays(WorkKind::kFetch));
    stream->synchronize();
    const StreamTime time = stream->time();
    const int64_t fetch_us = time.waited_us[static_cast<size_t>(WorkKind::kFetch)];
    EXPECT_GT(fetch_us, 0);  // No more is sure: a busy machine may begin the wait late.
    EXPECT_EQ(time.all_waits_us() - fetch_us - time.waited_us[static_cast<size_t>(WorkKind::kWake)],
              0);
    EXPECT_GE(time.busy_us, 15'000);
    EXPECT_LE(time.busy_us + time.idle_us + time.all_waits_us(), monotonic_us() - began_us);
    trace.stop();
  }
  ASSERT_TRUE(trace.write(dir.file("trace.json")).ok());
  int spans = 0, waits = 0;
  for (const auto& span : TraceFile::read(dir.file("trace.json")).of_lane("compute 0")) {
    if (span.name == "expert L3 E12") {
      ++spans;
      EXPECT_GE(span.end_us - span.begin_us, 15'000);
    }
    waits += span.name == "wait: fetch";
  }
  EXPECT_EQ(spans, 1);
  EXPECT_EQ(waits, 1);
}

using CudaDeathTest = CudaDevice;

TEST_F(CudaDeathTest, AnErrorNamesCallStreamAndTask) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto copy_on = [](bool later) {
    const auto device = open_one(kMiB);
    const auto stream = device->make_stream("upload 0", WorkKind::kUpload);
    stream->begin_span({"weights L3 E12", {}, 0});
    if (later) {
      fake_cuda::fail_next_copy(cudaErrorIllegalAddress);
    } else {
      fake_cuda::fail("cudaMemcpyAsync", cudaErrorIllegalAddress);
    }
    auto memory = HostMemory::allocate(4096).take();
    const auto pin = device->pin(memory.data(), 4096);
    stream->copy(device->arena(), memory.data(), 4096);
    stream->end_span();
    const Event done = stream->record();
    stream->begin_span({"weights L3 E13", {}, 0});
    done.wait();
  };
  const std::string place =
      ": an illegal memory access was encountered \\(cudaErrorIllegalAddress\\), stream "
      "\"upload 0\" of GPU 0, task \"weights L3 E12\"; the error may come from work enqueued since "
      "task \"none\" \\(last op: ";
  const auto tail = [&](const std::string& last_op) {
    return place + last_op + "\\), or from another stream; checkpoints are intact";
  };
  const auto exits = testing::ExitedWithCode(static_cast<int>(Exit::kIoError));
  EXPECT_EXIT(copy_on(false), exits, "CUDA error in cudaMemcpyAsync" + tail("none"));
  EXPECT_EXIT(copy_on(true), exits, "CUDA error in [A-Za-z ]*" + tail("cudaMemcpyAsync"));
  // What a launch of an op's kernels says.
  EXPECT_EXIT(
      {
        const auto device = open_one(kMiB);
        const auto stream = device->make_stream("upload 0", WorkKind::kUpload);
        stream->begin_span({"weights L3 E12", {}, 0});
        check_cuda(cudaSuccess, "rope", *stream);
        check_cuda(cudaErrorIllegalAddress, "swiglu", *stream);
      },
      exits, "CUDA error in swiglu" + tail("rope"));
}

// The message names the call's own arguments, and no earlier work.
TEST_F(CudaDeathTest, AnErrorOfACallIsNotOfEarlierWork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto refused = [] {
    const auto device = open_one(kMiB);
    const auto stream = device->make_stream("compute", WorkKind::kCompute);
    stream->begin_span({"attention L0", {}, 0});
    check_cuda(cudaErrorMemoryAllocation, "swiglu", *stream);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(static_cast<int>(Exit::kIoError)),
              "CUDA error in swiglu: .*, stream \"compute\" of GPU 0, task \"attention L0\"; "
              "checkpoints are intact");
}

// An error that shows long after: since the task of the newest event that happened.
TEST_F(CudaDeathTest, ALateErrorNamesTheTasksItMayBeOf) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto copies = [] {
    const auto device = open_one(kMiB);
    const auto stream = device->make_stream("upload 0", WorkKind::kUpload);
    auto memory = HostMemory::allocate(4096).take();
    const auto pin = device->pin(memory.data(), 4096);
    for (const char* task : {"weights L3 E11", "weights L3 E12", "weights L3 E13"}) {
      stream->begin_span({task, {}, 0});
      if (task == std::string("weights L3 E12")) fake_cuda::fail_next_copy(cudaErrorLaunchFailure);
      stream->copy(device->arena(), memory.data(), 4096);
      stream->end_span();
      if (task == std::string("weights L3 E11")) stream->synchronize();
    }
    stream->synchronize();
  };
  EXPECT_EXIT(copies(), testing::ExitedWithCode(static_cast<int>(Exit::kIoError)),
              "stream \"upload 0\" of GPU 0, task \"weights L3 E1[23]\"; the error may "
              "come from work enqueued since task \"weights L3 E11\" \\(last op: cudaMemcpyAsync");
}

}  // namespace
}  // namespace pagoda
