// The GPU's ops against the CPU's on this machine's GPU, where there is one that the build has
// kernels for; elsewhere skipped. tools/gpu_check tries more: operators over experts and Adam.
#include <gtest/gtest.h>

#include "kernels/gpu_ops.h"
#include "tools/gpu_check/trial.h"

namespace pagoda {
namespace {

constexpr int64_t kArenaBytes = int64_t{64} << 20;

class GpuOps : public testing::Test {
 protected:
  void SetUp() override {
    const GpuReport report = find_gpus();
    if (report.gpus.empty()) GTEST_SKIP() << "SKIPPED: " << report.missing;
    if (!runs_on(gpu_ops_architectures(), report.gpus.front())) {
      GTEST_SKIP() << "SKIPPED: no kernels for " << report.gpus.front().text();
    }
    DeviceOptions options;
    options.arena_bytes = kArenaBytes;
    Result<std::unique_ptr<Device>> device = open_gpu(report.gpus.front().index, options);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = device.take();
    stream_ = device_->make_stream("test", WorkKind::kOther);
  }
  void try_cases(const std::vector<check::OpCase>& cases) {
    const auto ops = make_gpu_ops(*device_);
    check::Candidate candidate{ops.get(), nullptr, nullptr, stream_.get(), device_->arena(),
                               kArenaBytes};
    for (const check::OpCase& c : cases) {
      check::Trial trial(candidate);
      c.body(trial);
      EXPECT_EQ(trial.faults(), "") << c.name;
    }
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(GpuOps, Rows) { try_cases(check::row_cases()); }
TEST_F(GpuOps, Norms) { try_cases(check::norm_cases()); }
TEST_F(GpuOps, Linear) { try_cases(check::linear_cases()); }
TEST_F(GpuOps, Route) { try_cases(check::route_cases()); }
TEST_F(GpuOps, Loss) { try_cases(check::loss_cases()); }
TEST_F(GpuOps, Attention) { try_cases(check::attention_cases()); }

}  // namespace
}  // namespace pagoda
