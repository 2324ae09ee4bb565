// Tests of the built program on a tiny model: a folder with model, text and the flags of a run
// whose budgets page.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/process.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {

using Words = std::vector<std::string>;
using Flags = std::map<std::string, std::string>;  // "train.steps" -> "12"

Words operator+(Words words, const Words& more);

// The command line of `pagoda train`.
Words train(const Flags& flags, const Words& more = {});

// The size behind "at least" in a refusal, as a person would copy it.
std::string named_budget(const ProcessResult& refused);

class RunTest : public testing::Test {
 protected:
  void SetUp() override;

  std::unique_ptr<Process> start(Words words, ProcessLimits limits = {});
  ProcessResult run(Words words, ProcessLimits limits = {});

  // Flags of a run in `output_dir` with the smallest budgets that the program itself names.
  Flags flags(const std::string& output_dir) const;

  // The run ends with `code`, one error line, and that names everything in `names`.
  void expect_refused(const ProcessResult& result, int code, const Words& names);

  // All weights of a run's newest (or given) checkpoint as one string of bytes.
  std::string exported(const std::string& run_dir, int64_t step = -1);

  // The values by step of one field in the metrics' lines of a type. A step that comes twice is an
  // error.
  std::map<int64_t, double> logged(const std::string& run_dir, const char* type,
                                   const char* field);
  std::map<int64_t, double> losses(const std::string& run_dir) {
    return logged(run_dir, "step", "loss");
  }
  std::map<int64_t, double> evals(const std::string& run_dir) {
    return logged(run_dir, "eval", "loss");
  }
  std::map<int64_t, double> checkpoints(const std::string& run_dir) {
    return logged(run_dir, "checkpoint", "step");
  }

  Words program_ = {PAGODA_BINARY};
  TempDir dir_;
  std::string device_ = "1KiB", host_ = "1KiB";

 private:
  void find_smallest_budgets();  // once for a program, whose runs have the same model and flags

  int processes_ = 0, exports_ = 0;
};

}  // namespace pagoda
