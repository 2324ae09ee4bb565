// Room for new stores on disks that ranks share.
#include "parallel/disk_room.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/file.h"
#include "tests/testing/ranks/rank_threads.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

// Whether all of so many ranks, each with a store of this share of what is free, are told of room.
// Folders need not exist.
bool has_room(int ranks, double share, const std::string& disk, const std::string& run) {
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(free_disk_bytes(disk)));
  std::vector<int> endpoints;
  for (int r = 0; r < ranks; ++r) endpoints.push_back(r);
  RankThreads threads(ranks, endpoints);
  std::atomic<int> yes = 0;
  threads.run([&](RankGroup& group) {
    const std::vector<std::string> folders = {strf("%s/one/%d", disk.c_str(), group.rank()),
                                              disk + "/two"};
    const auto room = have_disk_room(group, folders, bytes, run);
    ASSERT_TRUE(room.ok()) << room.status().message();
    yes += room.value();
  });
  EXPECT_TRUE(yes == 0 || yes == ranks);
  return yes == ranks;
}

TEST(DiskRoom, RanksShareADisk) {
  const Watchdog watchdog("room of disks", std::chrono::seconds(60));
  const TempDir dir;
  for (const std::string& run : {dir.path(), std::string("/elsewhere")}) {
    EXPECT_TRUE(has_room(1, 0.6, dir.path(), run));
    EXPECT_FALSE(has_room(1, 1.6, dir.path(), run));
    EXPECT_TRUE(has_room(2, 0.3, dir.path(), run));
    EXPECT_FALSE(has_room(2, 0.8, dir.path(), run));
  }
}

TEST(DiskRoom, WhatIsNoRoomIsAnError) {
  const Watchdog watchdog("room of disks", std::chrono::seconds(60));
  RankThreads threads(2, {0, 1});
  threads.run([&](RankGroup& group) {
    const Status status = group.rank() == 1 ? group.agree(Status(), "1 -1 disk\n").status()
                                            : have_disk_room(group, {"/"}, 1, "/run").status();
    EXPECT_EQ(status.code(), group.rank() == 1 ? Exit::kOk : Exit::kIoError);
    if (group.rank() == 0) {
      EXPECT_TRUE(status.message().starts_with("rank 1 sent what is no room")) << status.message();
    }
  });
}

}  // namespace
}  // namespace pagoda
