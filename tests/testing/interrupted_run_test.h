// Interrupted runs of the built program against one that was not.
#pragma once

#include <random>

#include "tests/testing/run_test.h"

namespace pagoda {

class InterruptedRunTest : public RunTest {
 protected:
  // What an uninterrupted run of `flags` ends with.
  void make_reference(Flags reference) {
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
  void expect_reference(const std::string& run_dir) {
    EXPECT_TRUE(exported(run_dir) == expected_bytes_) << "other weights than an unbroken run";
    EXPECT_EQ(losses(run_dir), expected_losses_);
  }

  int64_t run_us_ = 0;  // time the reference took
  std::string expected_bytes_;
  std::map<int64_t, double> expected_losses_;
};

}  // namespace pagoda
