// The folder of a run: what a killed start left is removed by the next, with nothing of others.
#include "report/run_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/descriptor.h"
#include "checkpoint/start_mark.h"
#include "parallel/host_name.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr char kPages[] = "pages-0123456789abcdef.0";

class RunOutputTest : public testing::Test {
 protected:
  // Files, with the folders they are in, by their paths in the test's folder.
  void put(const std::string& name, const std::string& content = "x") {
    fs::create_directories(fs::path(dir_.file(name)).parent_path());
    put_file(dir_.file(name), content);
  }
  Status create(const Names& disks) { return RunOutput(dir_.file("run"), disks).create(); }
  Status resume() { return RunOutput(dir_.file("run"), {}).reuse(); }

  TempDir dir_;
};

TEST_F(RunOutputTest, AKilledStartIsRemovedAndItsDisksInsideToo) {
  for (const char* disk : {"run/store", "run/disks/a"}) {
    put(std::string(disk) + "/" + kPages);
    put("run/tokens.bin");
    put("run/tokens.bin.0123456789abcdef.tmp");
    put("run/checkpoints/step-00000000.tmp/pages.bin");
    put("run/STARTING",
        start_mark_text(dir_.file("run"), {dir_.file(disk) + std::string("/") + kPages}));
    fs::rename(dir_.file("run"), dir_.file("moved"));
    {
      RunOutput output(dir_.file("moved"), {});
      ASSERT_TRUE(output.create().ok()) << disk;
      EXPECT_TRUE(fs::is_empty(dir_.file("moved"))) << disk;
    }
    EXPECT_TRUE(fs::remove(dir_.file("moved")));
  }
}

TEST_F(RunOutputTest, PageFilesElsewhereGoWhereTheCommandNamesTheirDisk) {
  put(std::string("disk/") + kPages);
  put(std::string("victim/") + kPages);
  put("victim/pages-of-my-thesis");
  put("run/STARTING", start_mark_text(dir_.file("run"), {dir_.file("disk/") + kPages,
                                                         dir_.file("victim/") + kPages}));
  EXPECT_TRUE(create({dir_.file("disk")}).ok());
  EXPECT_TRUE(fs::is_empty(dir_.file("disk")));
  EXPECT_EQ(files_in(dir_.file("victim")).size(), 2u);
}

// Several ranks: each removes what is on its disks, rank 0 what is in the run's folder.
TEST_F(RunOutputTest, EachRankRemovesWhatIsOnItsDisks) {
  const std::string here = dir_.file("mine/") + kPages, theirs = dir_.file("theirs/") + kPages;
  put(std::string("mine/") + kPages);
  put(std::string("theirs/") + kPages);
  put("theirs/pages-fedcba9876543210.0", "another run's");
  put(std::string("run/store/") + kPages);
  put("run/STARTING", start_mark_text(dir_.file("run"), {dir_.file("run/store/") + kPages, here},
                                      host_name()) +
                          start_mark_text(dir_.file("run"), {theirs}, "node07"));
  EXPECT_EQ(get_file(dir_.file("run/STARTING")), std::string("on ") + host_name() + "\nstore/" +
                                                     kPages + "\n" + here + "\non node07\n" +
                                                     theirs + "\n");
  RunOutput output(dir_.file("run"), {dir_.file("mine")});
  const auto killed = output.killed_start();
  ASSERT_TRUE(killed.ok() && killed.value());
  const std::vector<MarkedFile> files = marked_page_files(*killed.value());
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[1].host, host_name());
  EXPECT_EQ(files[2].host, "node07");
  EXPECT_TRUE(RunOutput(dir_.file("run"), {dir_.file("theirs")}).remove_from_disks(files).ok());
  EXPECT_EQ(files_in(dir_.file("theirs")), Names{"pages-fedcba9876543210.0"});
  EXPECT_TRUE(fs::exists(here));
  ASSERT_TRUE(output.create().ok());
  EXPECT_FALSE(fs::exists(here));
  EXPECT_TRUE(fs::is_empty(dir_.file("run")));
}

TEST_F(RunOutputTest, AStartThatLostARankIsLeftToTheNext) {
  {
    RunOutput output(dir_.file("run"), {});
    ASSERT_TRUE(output.create().ok());
    put("run/STARTING", start_mark_text(dir_.file("run"), {dir_.file("disk/") + kPages}, "node07"));
    output.leave_to_next_start();
  }
  EXPECT_TRUE(fs::exists(dir_.file("run/STARTING")));
  RunOutput output(dir_.file("run"), {});
  const auto killed = output.killed_start();
  EXPECT_TRUE(killed.ok() && killed.value());
  EXPECT_TRUE(output.create().ok());
}

// What is killed or fails in the middle of this must not leave a checkpoint without its pages.
TEST_F(RunOutputTest, AFailedStartRemovesItsCheckpointBeforeItsPages) {
  const std::string pages = std::string("run/store/") + kPages;
  std::optional<Descriptor> held;
  {
    RunOutput output(dir_.file("run"), {});
    ASSERT_TRUE(output.create().ok());
    put(pages);
    put("run/STARTING", std::string("store/") + kPages + "\n");
    put("run/checkpoints/step-00000000/MANIFEST");
    held.emplace(::open(dir_.file(pages).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(held->get(), LOCK_EX), 0);
  }
  EXPECT_TRUE(fs::exists(dir_.file(pages)) && fs::exists(dir_.file("run/STARTING")));
  EXPECT_FALSE(fs::exists(dir_.file("run/checkpoints")));
  held.reset();
  EXPECT_TRUE(create({}).ok());
  EXPECT_FALSE(fs::exists(dir_.file(pages)));
}

// The kernel gives the lock of a killed process that had an io_uring back late.
TEST_F(RunOutputTest, APageFileInUseIsWaitedForAndItsMarkStays) {
  const std::string pages = std::string("run/store/") + kPages;
  put(pages);
  put("run/STARTING", std::string("store/") + kPages + "\n");
  std::optional<Descriptor> held(::open(dir_.file(pages).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(held->get(), LOCK_EX), 0);
  EXPECT_EQ(create({}).code(), Exit::kCannotCreate);
  EXPECT_TRUE(fs::exists(dir_.file(pages)) && fs::exists(dir_.file("run/STARTING")));
  std::thread killed([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    held.reset();
  });
  EXPECT_TRUE(create({}).ok());
  killed.join();
  EXPECT_FALSE(fs::exists(dir_.file(pages)) || fs::exists(dir_.file("run/STARTING")));
}

TEST_F(RunOutputTest, AHostileMarkRemovesNothingElsewhere) {
  put(std::string("victim/") + kPages);
  fs::create_directory(dir_.file("run"));
  fs::create_directory_symlink(dir_.file("victim"), dir_.file("run/link"));
  for (const std::string& folder :
       {std::string("../victim/"), std::string("link/"), dir_.file("victim/")}) {
    const std::string line = folder + kPages;
    put("run/STARTING", line + "\n");
    EXPECT_EQ(create({}).code(), Exit::kCannotCreate) << "the link is not ours: " << line;
    EXPECT_TRUE(fs::exists(dir_.file("victim/") + kPages)) << line;
  }
}

// A folder that only looks like one.
TEST_F(RunOutputTest, WhatCarriesNoMarkOfOursStays) {
  for (const char* text :
       {"", "start of my thesis\n", "pages-0123456789abcdef.0", "pages-1.txt\n"}) {
    put("run/STARTING", text);
    put("run/checkpoints/thesis");
    put("run/tokens.bin");
    EXPECT_EQ(create({}).code(), Exit::kCannotCreate) << text;
    EXPECT_EQ(files_in(dir_.file("run")).size(), 3u) << text;
  }
}

TEST_F(RunOutputTest, ASavedRunIsNoUnfinishedStart) {
  put("run/STARTING", std::string("store/") + kPages + "\n");
  put("run/checkpoints/step-00000000/MANIFEST");
  EXPECT_EQ(create({}).code(), Exit::kCannotCreate);
  EXPECT_TRUE(fs::exists(dir_.file("run/checkpoints/step-00000000/MANIFEST")));
  ASSERT_TRUE(resume().ok());
}

// The mark alone, cut short: nothing else was there yet.
TEST_F(RunOutputTest, AMarkThatWasNeverWritten) {
  put("run/STARTING", "");
  EXPECT_TRUE(create({}).ok());
}

TEST_F(RunOutputTest, AFailedStartLeavesWhatOthersPutThere) {
  fs::create_directory(dir_.file("run"));
  {
    RunOutput output(dir_.file("run"), {});
    ASSERT_TRUE(output.create().ok());
    put("run/STARTING", std::string("store/") + kPages + "\n");
    put(std::string("run/store/") + kPages);
    put("run/tokens.bin");
    put("run/thesis.txt");
  }
  EXPECT_EQ(files_in(dir_.file("run")), Names{"thesis.txt"});
}

TEST_F(RunOutputTest, AResumedFolderHoldsNoLinks) {
  put("victim/thesis");
  put("run/checkpoints/step-00000004/MANIFEST");
  put("run/metrics.jsonl.0123456789abcdef.tmp");
  for (const char* name : {"metrics.jsonl", "resolved.toml", "tokens.bin", "store",
                           "checkpoints/step-00000009", "checkpoints/step-00000009.tmp"}) {
    const std::string link = dir_.file("run/") + name;
    fs::create_directory_symlink(dir_.file("victim"), link);
    const Status status = resume();
    EXPECT_EQ(status.code(), Exit::kBadData) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    fs::remove(link);
  }
  EXPECT_TRUE(resume().ok());
  EXPECT_EQ(files_in(dir_.file("run")), Names{"checkpoints"}) << "unfinished output is removed";
  EXPECT_EQ(files_in(dir_.file("victim")), Names{"thesis"});
}

}  // namespace
}  // namespace pagoda
