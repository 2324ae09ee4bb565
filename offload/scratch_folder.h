// A folder for what a command needs on disk while it runs: tokens, pages, files to measure with.
#pragma once

#include <string>

#include "base/descriptor.h"
#include "offload/storage.h"

namespace pagoda {

// PARENT/pagoda-scratch-PID, removed with its files at the end of the object. Those that killed
// processes left in PARENT are removed by the next one: who lives holds a lock on its folder.
class ScratchFolder {
 public:
  // `storage` is not owned.
  ScratchFolder(const std::string& parent, Storage* storage);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  Status create();
  const std::string& path() const { return path_; }

 private:
  void remove_abandoned();

  Storage* storage_;
  std::string parent_, path_;
  Descriptor lock_;
};

}  // namespace pagoda
