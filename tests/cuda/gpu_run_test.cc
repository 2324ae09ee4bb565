// Runs on this machine's GPU, where there is one that computes them: budgets change no bit, and the
// losses are the CPU's but for rounding. Elsewhere they are skipped, and say why.
#include <gtest/gtest.h>

#include "config/usable_gpu.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

class GpuRun : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const UsableGpu found = usable_gpu();
    if (!found.gpu) GTEST_SKIP() << "SKIPPED: " << found.why_not;
    run_.emplace(GetParam());
  }
  Outcome outcome(const char* device, uint64_t seed) {
    run_->new_run();
    run_->config().train.devices = {device};
    SimStorage storage(seed);
    return run_to_end(run_->config(), &storage);
  }
  std::optional<TinyRun> run_;
};

TEST_P(GpuRun, BudgetsChangeNoBit) {
  const Outcome roomy = outcome("cuda", 1);
  ASSERT_TRUE(roomy.status.ok()) << roomy.status.message();
  run_->use_minimum_budgets();
  for (uint64_t seed = 2; seed <= 4; ++seed) {
    const Outcome paged = outcome("cuda", seed);
    ASSERT_TRUE(paged.status.ok()) << paged.status.message();
    EXPECT_EQ(paged.sha256, roomy.sha256);
    expect_paged(paged.paging);
  }
}

// The first loss comes before any update: it differs by roundings alone. A logit is behind fewer
// than 40 of them, each off by up to a half unit on either side, and below 5 in size.
TEST_P(GpuRun, FirstLossIsTheCpus) {
  const Outcome gpu = outcome("cuda", 5), cpu = outcome("cpu", 5);
  ASSERT_TRUE(gpu.status.ok() && cpu.status.ok());
  const double unit = GetParam() == DType::kBF16 ? 0x1p-9 : 0x1p-24;
  EXPECT_NEAR(gpu.losses.front(), cpu.losses.front(), 2 * 40 * 5 * unit);
}

INSTANTIATE_TEST_SUITE_P(Types, GpuRun, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace pagoda
