// A small file system, which a test can fill.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>

#include "base/check.h"
#include "tests/testing/files.h"

namespace pagoda {

// Needs root; ok() is false without.
class SmallFileSystem {
 public:
  SmallFileSystem(const std::string& path, int64_t bytes) : path_(path) {
    std::filesystem::create_directory(path_);
    ok_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0,
                  strf("size=%lld", (long long)bytes).c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (ok_ && ::umount2(path_.c_str(), MNT_DETACH) != 0) ADD_FAILURE() << "umount " << path_;
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  bool ok() const { return ok_; }
  // Takes what room there is, but for `left_bytes`.
  void fill(int64_t left_bytes) const {
    const auto free = static_cast<int64_t>(std::filesystem::space(path_).available);
    put_file(path_ + "/filler", std::string(static_cast<size_t>(free - left_bytes), 'x'));
  }
  void make_room() const { std::filesystem::remove(path_ + "/filler"); }

 private:
  std::string path_;
  bool ok_ = false;
};

}  // namespace pagoda
