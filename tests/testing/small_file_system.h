// A small file system, which a test can fill.
#pragma once

#include <cstdint>
#include <string>

namespace pagoda {

// Needs root; ok() is false without.
class SmallFileSystem {
 public:
  SmallFileSystem(const std::string& path, int64_t bytes);
  ~SmallFileSystem();
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  bool ok() const { return ok_; }
  // Takes what room there is, whoever else writes meanwhile.
  void fill() const;
  // Fills the disk and takes the room of the next checkpoint from the run in the folder `run` of
  // it, while `process`, whose first thread saves that run, stands between two saves. A save that
  // came between would make the step before it the room of the next, and no disk would be full for
  // that run again. REQUIRES: the run has saved a step. False where the process cannot be stopped
  // (FrozenThread).
  bool fill_between_saves(int process, const std::string& run) const;
  void make_room() const;

 private:
  std::string path_;
  bool ok_ = false;
};

}  // namespace pagoda
