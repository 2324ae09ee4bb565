#include "tests/testing/ranks/mpi_run_test.h"

namespace pagoda {

void MpiRunTest::SetUp() {
  if (!has_mpirun()) GTEST_SKIP() << "SKIPPED: built without MPI, or there is no mpirun";
  set_mpirun_variables();
  RunTest::SetUp();
}

Flags MpiRunTest::flags_of(const std::string& folder, int64_t steps) const {
  Flags flags = this->flags(folder);
  flags["memory.device"] = flags["memory.host"] = "16MiB";
  flags["train.threads"] = "1";
  flags["train.micro_batch_tokens"] = "32";
  flags["train.tokens_per_step"] = "128";
  flags["train.steps"] = std::to_string(steps);
  flags["optim.schedule"] = "constant";
  return flags;
}

Words MpiRunTest::on(int processes, const Words& words) {
  return mpirun_words(processes) + Words{PAGODA_BINARY} + words;
}

ProcessResult MpiRunTest::mpirun(int processes, const Words& words) {
  return Process(on(processes, words), dir_.file("ranks")).wait();
}

std::vector<std::string> MpiRunTest::errors(const ProcessResult& result) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(result.err)) {
    if (line.starts_with("pagoda: ")) found.push_back(line);
  }
  return found;
}

void MpiRunTest::expect_ended(const ProcessResult& result, int code, const std::string& text) {
  EXPECT_EQ(result.code, code) << result.err;
  const std::vector<std::string> said = errors(result);
  ASSERT_EQ(said.size(), 1u) << result.err;
  EXPECT_NE(said[0].find(text), std::string::npos) << said[0];
}

}  // namespace pagoda
