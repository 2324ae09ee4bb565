// Files of runs of several processes that mpirun starts on this machine: one that may not be read,
// those that a killed start left, and a disk without room for a checkpoint.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/frozen_thread.h"
#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/small_file_system.h"

namespace pagoda {
namespace {

using RanksTest = MpiRunTest;

// Root may read everything, so that its processes become another user's.
TEST_F(RanksTest, AStoreThatMayNotBeRead) {
  Words other_user;
  if (geteuid() == 0) {
    other_user = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    const Words owner = {"/bin/chown", "-R", "65534:65534", dir_.file("")};
    ASSERT_EQ(Process(owner, dir_.file("chown")).wait().code, 0);
    const ProcessResult may =
        Process(other_user + Words{PAGODA_BINARY, "--version"}, dir_.file("may")).wait();
    if (may.code != 0) GTEST_SKIP() << "SKIPPED: another user may not run the program here";
  }
  const auto ranks = [&](int processes, const Words& words) {
    return Process(other_user + on(processes, words), dir_.file("ranks")).wait();
  };
  const ProcessResult begun = ranks(2, train(flags_of("run", 2)));
  ASSERT_EQ(begun.code, 0) << begun.err;
  std::string store;
  for (const auto& file : std::filesystem::directory_iterator(dir_.file("run/store"))) {
    store = file.path().string();
  }
  std::filesystem::permissions(store, std::filesystem::perms::none);
  for (const int processes : {2, 3}) {
    const ProcessResult refused = ranks(processes, train(flags_of("run", 4), {"--resume"}));
    expect_ended(refused, 66, store + ": Permission denied");
  }
  std::filesystem::permissions(store, std::filesystem::perms::owner_all);
  const ProcessResult again = ranks(3, train(flags_of("run", 4), {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
}

// A start of several ranks was killed before it saved anything.
TEST_F(RanksTest, PageFilesOfAKilledStart) {
  const std::string name = "pages-0123456789abcdef.0";
  std::string mark;
  for (const char* disk : {"disk-0", "disk-1"}) {
    std::filesystem::create_directory(dir_.file(disk));
    put_file(dir_.file(disk) + "/" + name, "half a start");
    mark += dir_.file(disk) + "/" + name + "\n";
  }
  std::filesystem::create_directory(dir_.file("run"));
  put_file(dir_.file("run/STARTING"), mark + "on node07\n/local/" + name + "\n");
  Flags flags = flags_of("run", 2);
  flags["memory.disk"] = dir_.file("disk-{rank}");
  const ProcessResult result = mpirun(2, train(flags));
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* disk : {"disk-0", "disk-1"}) {
    const std::vector<std::string> files = files_in(dir_.file(disk));
    ASSERT_EQ(files.size(), 1u) << disk;
    EXPECT_NE(files[0], name);
  }
  const std::string elsewhere = " was left by an earlier start on node07, where this run has no ";
  EXPECT_NE(result.err.find("/local/" + name + elsewhere), std::string::npos) << result.err;
}

// Where rank 0 has no room for a manifest, all leave that save out, and end at the second.
TEST_F(RanksTest, NoRoomForACheckpoint) {
  const SmallFileSystem disk(dir_.file("small"), 4 << 20);
  if (!disk.ok()) GTEST_SKIP() << "SKIPPED: mounting a small file system needs root";
  if (!FrozenThread::is_allowed()) GTEST_SKIP() << "SKIPPED: no process may trace another";
  Flags flags = flags_of("small/run", 1000000);
  flags["memory.disk"] = dir_.file("disk");
  flags["train.save_steps"] = "5";
  Process process(on(2, train(flags)), dir_.file("ranks"));
  ASSERT_TRUE(process.wait_for_err("saved step 5 ")) << process.err();
  ASSERT_TRUE(disk.fill_between_saves(rank_processes(process.id()).at(0), "run")) << process.err();
  const ProcessResult ended = process.wait();
  const std::string words = " skipped, the last is step ";
  const size_t skipped = ended.err.find(words);
  ASSERT_NE(skipped, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(words, skipped + 1), std::string::npos);
  const long long saved = std::stoll(ended.err.substr(skipped + words.size()));
  expect_ended(ended, 73, strf("make room; step %lld is saved: --resume", saved));
  disk.make_room();
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("small/run")}).code, 0);
  flags["train.steps"] = std::to_string(saved + 3);
  const ProcessResult again = mpirun(2, train(flags, {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find(strf("resuming from step %lld\n", saved)), std::string::npos)
      << again.err;
}

}  // namespace
}  // namespace pagoda
