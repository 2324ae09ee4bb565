// `pagoda bench machine` on a GPU that is made up (tests/cuda/fake_cuda.h), whose kernels are the
// CPU's: the sheet is one of a GPU, everything went through it, and nothing of it is left. How fast
// anything was is not asked.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "bench/sheet/machine.h"
#include "config/usable_gpu.h"
#include "preview/this_machine.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

constexpr int64_t kBytes = 16 * kMiB;

class CudaBench : public testing::Test {
 protected:
  ~CudaBench() override {
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
  }
  Result<MachineSheet> measure() {
    MachineBench bench;
    bench.directory = dir_.path();
    bench.rounds = 1;
    bench.threads = 2;
    bench.bytes = kBytes;
    bench.gpu = usable_gpu().gpu;
    CHECK(bench.gpu);
    return measure_machine(bench);
  }

 private:
  TempDir dir_;
};

TEST_F(CudaBench, TheSheetIsOfTheGpu) {
  fake_cuda::start({.memory_bytes = 2 * kGiB});
  auto sheet = measure();
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_TRUE(sheet->gpu());
  EXPECT_EQ(sheet->machine.source, SheetSource::kMeasured);
  EXPECT_NE(sheet->machine.name.find("Fake 0"), std::string::npos);
  EXPECT_EQ(sheet->device_bytes(), 2 * kGiB);
  EXPECT_EQ(sheet->device.count, 1);
  for (const double rate :
       {sheet->device.gemm_tflops, sheet->device.weight_gb_s, sheet->device.attention_tflops,
        sheet->device.memory_gb_s, sheet->device.adam_gb_s, sheet->device.launch_us,
        sheet->host.copy_gb_s, sheet->host.adam_gb_s, sheet->host.checksum_gb_s,
        sheet->disk.read_gb_s}) {
    EXPECT_GT(rate, 0) << sheet->to_toml();
  }
  const auto gpu = usable_gpu().gpu;
  EXPECT_GE(sheet->device.peak_tflops, this_machine_sheet({*gpu}).device.peak_tflops);
  // Weights and values for attention and updates went to it once, and what was copied each way
  // twice: once to warm up.
  const fake_cuda::Counters seen = fake_cuda::counters();
  EXPECT_GE(seen.copied_bytes, kBytes + 2 * 2 * kBytes);
  EXPECT_GE(seen.copied_bytes - seen.unpinned_bytes, 2 * 2 * kBytes) << "from pinned memory";
}

TEST_F(CudaBench, AGpuWithoutRoomIsRefused) {
  fake_cuda::start({.memory_bytes = 64 * kMiB});
  auto sheet = measure();
  ASSERT_FALSE(sheet.ok());
  EXPECT_EQ(sheet.status().code(), Exit::kDeviceMemory) << sheet.status().message();
}

}  // namespace
}  // namespace pagoda
