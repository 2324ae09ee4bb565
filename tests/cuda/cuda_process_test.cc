// The built program on a GPU that is made up (tests/cuda/fake_cuda.h): the quickstart's commands
// compute there without being told to and leave what the CPU leaves; what a machine lacks is
// refused; and an error of CUDA ends a run that can be resumed.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

class CudaProcess : public RunTest {
 protected:
  CudaProcess() { on(""); }
  // The machine of the processes that start now (tests/cuda/fake_gpu_program.cc).
  void on(const std::string& machine) { program_ = {PAGODA_FAKE_GPU_BINARY, machine}; }

  // The settings of configs/chat.toml, at a tiny size.
  Flags quickstart(const std::string& output_dir) const {
    Flags flags = this->flags(output_dir);
    flags["train.steps"] = "6";
    flags["data.eval_path"] = dir_.file("text.jsonl");
    flags["train.eval_steps"] = "3";
    flags["sample.prompts"] = "row 1";
    flags["sample.max_new_tokens"] = "4";
    flags["memory.device"] = flags["memory.host"] = "2MiB";
    return flags;
  }
  std::string generated(const std::string& run_dir, const Words& more = {}) {
    const ProcessResult result =
        run(Words{"generate", "--checkpoint", dir_.file(run_dir), "--prompt", "row 1",
                  "--max_new_tokens", "6", "--memory.device", "2MiB"} + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  double evaluated(const std::string& run_dir, const Words& more = {}) {
    const ProcessResult result =
        run(Words{"eval", "--checkpoint", dir_.file(run_dir), "--json", "--memory.device", "2MiB",
                  "--memory.host", "2MiB"} + more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false)["loss"];
  }
};

TEST_F(CudaProcess, TheQuickstartsCommandsComputeOnTheGpu) {
  const ProcessResult trained = run(train(quickstart("gpu")));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE((trained.out + trained.err).find("computes on GPU 0 (Fake 0"), std::string::npos)
      << trained.out << trained.err;
  Flags on_cpu = quickstart("cpu");
  on_cpu["train.devices"] = "cpu";
  const ProcessResult reference = run(train(on_cpu));
  ASSERT_EQ(reference.code, 0) << reference.err;
  EXPECT_EQ(losses("gpu"), losses("cpu"));
  EXPECT_EQ(evals("gpu"), evals("cpu"));
  EXPECT_EQ(losses("gpu").size(), 6u);
  EXPECT_EQ(exported("gpu"), exported("cpu"));
  const Words cpu = {"--train.devices", "cpu"};
  EXPECT_EQ(generated("gpu"), generated("gpu", cpu));
  EXPECT_EQ(evaluated("gpu"), evaluated("gpu", cpu));
}

// The budgets that are not given are the GPU's, and nothing else need be said of it.
TEST_F(CudaProcess, BudgetsAreTheGpusWithoutBeingTold) {
  Flags flags = quickstart("run");
  flags.erase("memory.device");
  const ProcessResult trained = run(train(flags));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE((trained.out + trained.err).find("of 870.40 MiB"), std::string::npos)
      << "85 % of a GiB: " << trained.out << trained.err;
}

struct Case {
  const char* machine;
  const char* device;
  int code;
  Words names;
};

TEST_F(CudaProcess, WhatAMachineLacksIsRefusedInOneLine) {
  const std::string full = strf("memory_bytes=%d taken_bytes=%d", 64 << 20, 63 << 20);
  const Case cases[] = {
      {"driver=0", "cuda", 69, {"no NVIDIA driver", "train.devices = \"cpu\""}},
      {"driver=11040", "cuda", 69, {"up to 11.4", "update the driver"}},
      {"gpus=0", "cuda", 69, {"shows no GPU", "CUDA_VISIBLE_DEVICES"}},
      {"major=7 minor=0", "cuda", 69, {"sm_70", "kernels for 75,80", "PAGODA_CUDA_ARCHITECTURES"}},
      {"memory_bytes=1048576", "auto", 72, {"more than all of GPU 0", "lower"}},
      {full.c_str(), "auto", 72, {"others have left 1.00 MiB of", "lower memory.device"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.machine);
    on(c.machine);
    Flags flags = quickstart("run");
    flags["train.devices"] = c.device;
    const ProcessResult refused = run(train(flags));
    expect_refused(refused, c.code, c.names);
    EXPECT_FALSE(fs::exists(dir_.file("run"))) << refused.err;
  }
}

// What nobody asked for is not missed.
TEST_F(CudaProcess, WithoutAGpuThatComputesTheCpuDoes) {
  for (const char* machine : {"driver=0", "driver=11040", "gpus=0", "major=7 minor=0"}) {
    SCOPED_TRACE(machine);
    on(machine);
    Flags flags = quickstart(machine);
    flags["train.steps"] = "2";
    const ProcessResult trained = run(train(flags));
    EXPECT_EQ(trained.code, 0) << trained.err;
    EXPECT_EQ((trained.out + trained.err).find("computes on"), std::string::npos);
    const bool told = trained.err.find("kernels for 75,80") != std::string::npos;
    EXPECT_EQ(told, std::string(machine).starts_with("major")) << trained.err;
  }
}

TEST_F(CudaProcess, AHeadWithoutAKernelIsRefused) {
  std::string config = get_file(dir_.file("config.json"));
  const std::string head = "\"head_dim\": 16";
  ASSERT_NE(config.find(head), std::string::npos) << config;
  config.replace(config.find(head), head.size(), "\"head_dim\": 12");
  put_file(dir_.file("odd.json"), config);
  ASSERT_EQ(run({"init", "--config", dir_.file("odd.json"), "--seed", "7", "--out",
                 dir_.file("odd")}).code, 0);
  Flags flags = quickstart("run");
  flags["model.path"] = dir_.file("odd");
  expect_refused(run(train(flags)), 69, {"head_dim is 12", "train.devices = \"cpu\""});
  flags["train.devices"] = "cpu";
  EXPECT_EQ(run(train(flags)).code, 0);
}

// The error of a copy, after some checkpoints.
TEST_F(CudaProcess, AnErrorOfCudaNamesItsTaskAndTheRunGoesOn) {
  Flags flags = quickstart("run");
  flags["train.save_steps"] = "1";
  on("cudaMemcpyAsync=800");
  const ProcessResult failed = run(train(flags));
  expect_refused(failed, 74, {"CUDA error in cudaMemcpyAsync", "of GPU 0, task \"",
                              "from work enqueued since task \"", "--resume"});
  ASSERT_FALSE(fs::is_empty(dir_.file("run") + "/checkpoints")) << "it failed too early";
  on("");
  const ProcessResult resumed = run(train(flags, {"--resume"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  Flags whole = quickstart("whole");
  whole["train.save_steps"] = "1";
  ASSERT_EQ(run(train(whole)).code, 0);
  EXPECT_EQ(exported("run"), exported("whole"));
}

// Two GPUs, with copies between peers or through the host.
class CudaProcessTwoGpus : public CudaProcess {
 protected:
  Flags two_gpus(const std::string& output_dir) const {
    Flags flags = quickstart(output_dir);
    flags["train.devices"] = "cuda:0,cuda:1";
    flags["train.steps"] = "3";
    flags["train.save_steps"] = "1";
    flags.erase("data.eval_path");
    flags.erase("train.eval_steps");
    flags.erase("sample.prompts");
    return flags;
  }
  // How often the run makes each call that can fail.
  std::map<std::string, int64_t> calls_of(const std::string& machine) {
    on(machine + " tell=1");
    const ProcessResult whole = run(train(two_gpus("whole")));
    EXPECT_EQ(whole.code, 0) << whole.err;
    std::map<std::string, int64_t> calls;
    std::istringstream lines(whole.err);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string first, call;
      if (words >> first >> call && first == "call") words >> calls[call];
    }
    return calls;
  }
  // The run ends as documented, and goes on from what it saved.
  void expect_ends_well(const std::string& machine, const std::string& name) {
    on(machine);
    const ProcessResult result = run(train(two_gpus(name)));
    const std::set<int> documented = {0, 69, 72, 74};
    ASSERT_TRUE(documented.contains(result.code)) << result.code << "\n" << result.err;
    if (result.code != 0) {
      const bool running = result.code == 74;
      expect_refused(result, result.code, running ? Words{"CUDA error in"} : Words());
    }
    on("gpus=2");
    const std::string checkpoints = dir_.file(name) + "/checkpoints";
    const bool saved = fs::exists(checkpoints) && !fs::is_empty(checkpoints);
    if (result.code != 0) {
      if (!saved) fs::remove_all(dir_.file(name));
      const ProcessResult again = run(train(two_gpus(name), saved ? Words{"--resume"} : Words{}));
      ASSERT_EQ(again.code, 0) << again.err;
    }
    EXPECT_EQ(exported(name), exported("whole"));
  }
};

// The first of each kind, and in turns the last and one between. A second run of a failure costs a
// second.
TEST_F(CudaProcessTwoGpus, EveryCallMayFailOnce) {
  for (const std::string machine : {"gpus=2 peers=1", "gpus=2 peers=0"}) {
    fs::remove_all(dir_.file("whole"));
    const std::map<std::string, int64_t> calls = calls_of(machine);
    const bool peers = machine.ends_with("1");
    EXPECT_EQ(calls.contains("cudaMemcpyPeerAsync"), peers);
    EXPECT_EQ(calls.contains("cudaDeviceEnablePeerAccess"), peers);
    EXPECT_GE(calls.size(), 15u);
    int runs = 0, kinds = 0;
    for (const auto& [call, count] : calls) {
      // Without peers, only what goes another way.
      if (!peers && call != "cudaMemcpyAsync" && call != "cudaStreamWaitEvent" &&
          call != "cudaHostRegister" && call != "cudaDeviceCanAccessPeer") {
        continue;
      }
      const int64_t later = ++kinds % 2 == 0 ? count - 1 : count / 2;
      for (const int64_t at : std::set<int64_t>{0, later}) {
        SCOPED_TRACE(machine + " " + call + strf("=%lld", (long long)at));
        expect_ends_well(machine + " " + call + strf("=%lld", (long long)at),
                         strf("run%d-%d", peers ? 1 : 0, runs++));
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
