// A folder for what a command needs on disk while it runs: tokens, pages, files to measure with.
#pragma once

#include <optional>
#include <string>

#include "base/directory.h"

namespace pagoda {

// PARENT/pagoda-scratch- and random digits, removed with its files at the end of the object. Those
// that killed processes left in PARENT are removed by the next one: who lives holds a lock on its
// folder. What carries no mark of ours, or is another user's, is left alone.
class ScratchFolder {
 public:
  explicit ScratchFolder(std::string parent) : parent_path_(std::move(parent)) {}
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Also creates the parent, if need be. kCannotCreate.
  Status create();
  // REQUIRES: create() has succeeded.
  const std::string& path() const { return folder_->path(); }

 private:
  void remove_abandoned() const;

  std::string parent_path_;
  std::optional<Directory> parent_, folder_;
};

}  // namespace pagoda
