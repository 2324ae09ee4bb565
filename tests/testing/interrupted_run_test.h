// Interrupted runs of the built program against one that was not.
#pragma once

#include <map>
#include <string>

#include "tests/testing/run_test.h"

namespace pagoda {

class InterruptedRunTest : public RunTest {
 protected:
  // What an uninterrupted run of `flags` ends with.
  void make_reference(Flags reference);
  void expect_reference(const std::string& run_dir);

  int64_t run_us_ = 0;  // time the reference took
  std::string expected_bytes_;
  std::map<int64_t, double> expected_losses_;
};

}  // namespace pagoda
