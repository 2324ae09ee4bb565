#include "tests/testing/interrupted_run_test.h"

#include <chrono>

namespace pagoda {

void InterruptedRunTest::make_reference(Flags reference) {
  reference["train.output_dir"] = dir_.file("reference");
  const auto begin = std::chrono::steady_clock::now();
  const ProcessResult result = run(train(reference));
  ASSERT_EQ(result.code, 0) << result.err;
  run_us_ = std::chrono::duration_cast<std::chrono::microseconds>(
                std::chrono::steady_clock::now() - begin)
                .count();
  expected_bytes_ = exported("reference");
  expected_losses_ = losses("reference");
  ASSERT_FALSE(expected_bytes_.empty());
}

void InterruptedRunTest::expect_reference(const std::string& run_dir) {
  EXPECT_TRUE(exported(run_dir) == expected_bytes_) << "other weights than an unbroken run";
  EXPECT_EQ(losses(run_dir), expected_losses_);
}

}  // namespace pagoda
