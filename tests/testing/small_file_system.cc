#include "tests/testing/small_file_system.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/frozen_thread.h"

namespace pagoda {

namespace fs = std::filesystem;

SmallFileSystem::SmallFileSystem(const std::string& path, int64_t bytes) : path_(path) {
  fs::create_directory(path_);
  ok_ =
      ::mount("tmpfs", path_.c_str(), "tmpfs", 0, strf("size=%lld", (long long)bytes).c_str()) == 0;
}

SmallFileSystem::~SmallFileSystem() {
  if (ok_ && ::umount2(path_.c_str(), MNT_DETACH) != 0) ADD_FAILURE() << "umount " << path_;
}

void SmallFileSystem::fill() const {
  std::ofstream file(path_ + "/filler", std::ios::binary);
  const std::string page(4096, 'x');
  while (file << page << std::flush) {
  }
}

bool SmallFileSystem::fill_between_saves(int process, const std::string& run) const {
  const std::string checkpoints = path_ + "/" + run + "/checkpoints", room = checkpoints + "/room";
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const FrozenThread frozen(process);
    if (!frozen.ok()) return false;
    const std::vector<std::string> names = files_in(checkpoints);
    const bool saves =
        std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".tmp"); });
    if (saves || !fs::exists(room)) continue;
    // The folder stays, since the thread may be about to rename it.
    for (const std::string& name : files_in(room)) fs::remove(room + "/" + name);
    fill();
    return true;
  }
}

void SmallFileSystem::make_room() const { fs::remove(path_ + "/filler"); }

}  // namespace pagoda
