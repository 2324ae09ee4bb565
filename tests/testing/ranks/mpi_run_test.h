// Tests of the built program as several processes that mpirun starts on this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/mpirun.h"
#include "tests/testing/run_test.h"
#include "tests/testing/watchdog.h"

namespace pagoda {

class MpiRunTest : public RunTest {
 protected:
  void SetUp() override;
  // A run whose budgets are ample, of one thread and device each.
  Flags flags_of(const std::string& folder, int64_t steps) const;
  static Words on(int processes, const Words& words);
  ProcessResult mpirun(int processes, const Words& words);
  // What the program itself says at the end, without the launcher's words.
  static std::vector<std::string> errors(const ProcessResult& result);
  // The processes ended with `code` and one line of the program's, which has `text`.
  void expect_ended(const ProcessResult& result, int code, const std::string& text);

 private:
  Watchdog watchdog_{"ranks", std::chrono::seconds(900)};
};

}  // namespace pagoda
