// The built program when the disk is full or files may not grow: refused before training where it
// can be known, survived where it cannot.
#include <signal.h>

#include <filesystem>

#include "base/bytes.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/frozen_thread.h"
#include "tests/testing/run_test.h"
#include "tests/testing/small_file_system.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

using DiskTest = RunTest;

TEST_F(DiskTest, APageFileThatMayNotBeSoLarge) {
  const Flags flags = this->flags("run");
  const ProcessResult refused = run(train(flags), {.file_bytes = 4 * kMiB});
  expect_refused(refused, 73, {"need ", "free ", "pages"});
  EXPECT_EQ(refused.err.find("step 1/"), std::string::npos) << "refused too late";
  EXPECT_FALSE(fs::exists(dir_.file("run")));
  EXPECT_EQ(run(train(flags)).code, 0);
}

TEST_F(DiskTest, APageFileThatDoesNotFit) {
  const SmallFileSystem disk(dir_.file("disk"), 4 * kMiB);
  if (!disk.ok()) GTEST_SKIP() << "SKIPPED: mounting a small file system needs root";
  Flags flags = this->flags("run");
  flags["memory.disk"] = dir_.file("disk");
  expect_refused(run(train(flags)), 73, {"need ", "free 4.00 MiB", dir_.file("disk")});
  EXPECT_FALSE(fs::exists(dir_.file("run")));
  EXPECT_TRUE(fs::is_empty(dir_.file("disk"))) << "something was left on the full disk";
  flags.erase("memory.disk");
  EXPECT_EQ(run(train(flags)).code, 0);
}

// Metrics are lost, the run and its numbers are not.
TEST_F(DiskTest, MetricsThatCannotGrow) {
  Flags flags = this->flags("reference");
  flags["optim.schedule"] = "constant";
  ASSERT_EQ(run(train(flags)).code, 0);
  flags["train.output_dir"] = dir_.file("run");
  flags["train.steps"] = "6";
  ASSERT_EQ(run(train(flags)).code, 0);
  // The log is made larger than any file may be; the page file is below that.
  const std::string metrics = dir_.file("run") + "/metrics.jsonl";
  const std::string line = "{\"type\":\"note\",\"text\":\"" + std::string(100, '.') + "\"}\n";
  std::string text = get_file(metrics);
  const int64_t limit_bytes = 8 * kMiB;
  while (static_cast<int64_t>(text.size()) < limit_bytes) text += line;
  put_file(metrics, text);
  flags["train.steps"] = "12";
  const ProcessResult resumed =
      run(train(flags, {"--resume"}), {.file_bytes = limit_bytes});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("warning: " + metrics), std::string::npos) << resumed.err;
  EXPECT_EQ(get_file(metrics), text) << "half a line was left";
  EXPECT_TRUE(exported("run") == exported("reference"));
}

// The room of checkpoints is a run's own before its first step, so that a disk which is full stops
// none.
TEST_F(DiskTest, CheckpointsOnAFullDisk) {
  const SmallFileSystem disk(dir_.file("small"), 4 * kMiB);
  if (!disk.ok()) GTEST_SKIP() << "SKIPPED: mounting a small file system needs root";
  Flags flags = this->flags("small/run");
  flags["memory.disk"] = dir_.file("disk");
  flags["train.steps"] = "1000000";
  flags["train.save_steps"] = "1";
  const auto process = start(train(flags));
  ASSERT_TRUE(process->wait_for_err("step 1/")) << process->err();
  disk.fill();
  const std::string before = process->err();
  const size_t last = before.rfind("saved step ");
  const int64_t step = last == std::string::npos ? 1 : std::stoll(before.substr(last + 11));
  ASSERT_TRUE(process->wait_for_err(strf("saved step %lld ", (long long)step + 5)))
      << process->err();
  process->send(SIGTERM);
  const ProcessResult ended = process->wait();
  EXPECT_EQ(ended.code, 75) << ended.err;
  EXPECT_EQ(ended.err.find(" skipped"), std::string::npos) << ended.err;
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("small/run")}).code, 0);
}

// Without that room a run is not resumed, and is told which step is safe.
TEST_F(DiskTest, NoRoomToReserve) {
  const SmallFileSystem disk(dir_.file("small"), 4 * kMiB);
  if (!disk.ok()) GTEST_SKIP() << "SKIPPED: mounting a small file system needs root";
  Flags flags = this->flags("small/run");
  flags["memory.disk"] = dir_.file("disk");
  flags["optim.schedule"] = "constant";
  flags["train.steps"] = "3";
  ASSERT_EQ(run(train(flags)).code, 0);
  fs::remove_all(dir_.file("small/run/checkpoints/room"));
  disk.fill();
  flags["train.steps"] = "6";
  const ProcessResult refused = run(train(flags, {"--resume"}));
  expect_refused(refused, 73, {"cannot reserve", "room", "step 3 is saved", "--resume"});
  EXPECT_EQ(refused.err.find("step 4/"), std::string::npos) << "refused too late";
  disk.make_room();
  EXPECT_EQ(run(train(flags, {"--resume"})).code, 0);
}

// No room for a manifest, where it was taken away: the checkpoint before it stays and the run goes
// on; later it is saved again.
TEST_F(DiskTest, NoRoomForACheckpoint) {
  const SmallFileSystem disk(dir_.file("small"), 4 * kMiB);
  if (!disk.ok()) GTEST_SKIP() << "SKIPPED: mounting a small file system needs root";
  if (!FrozenThread::is_allowed()) GTEST_SKIP() << "SKIPPED: no process may trace another";
  Flags flags = this->flags("small/run");
  flags["memory.disk"] = dir_.file("disk");
  flags["train.steps"] = "1000000";
  flags["train.save_steps"] = "5";
  const auto process = start(train(flags));
  ASSERT_TRUE(process->wait_for_err("saved step 5 ")) << process->err();
  ASSERT_TRUE(disk.fill_between_saves(process->id(), "run")) << process->err();
  ASSERT_TRUE(process->wait_for_err(" skipped, the last is step ")) << process->err();
  const ProcessResult ended = process->wait();
  const size_t last = ended.err.rfind("saved step ");
  const std::string step = std::to_string(std::stoll(ended.err.substr(last + 11)));
  expect_refused(ended, 73, {"untouched", "make room", "; step " + step + " is saved: --resume"});
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("small/run")}).code, 0);
  disk.make_room();
  const auto again = start(train(flags, {"--resume"}));
  ASSERT_TRUE(again->wait_for_err("saved step ")) << again->err();
  again->send(SIGTERM);
  EXPECT_EQ(again->wait().code, 75);
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("small/run")}).code, 0);
}

TEST_F(DiskTest, NoRoomForAnExport) {
  Flags flags = this->flags("run");
  flags["train.steps"] = "2";
  ASSERT_EQ(run(train(flags)).code, 0);
  const Words words = {"export", "--checkpoint", dir_.file("run"), "--out", dir_.file("out")};
  const ProcessResult refused = run(words, {.file_bytes = 64 * kKiB});
  expect_refused(refused, 73, {dir_.file("out")});
  const ProcessResult again = run(words);
  EXPECT_EQ(again.code, 0) << "a failed export blocks the next: " << again.err;
}

}  // namespace
}  // namespace pagoda
