// A folder for what a command needs on disk while it runs: tokens, pages, files to measure with.
#pragma once

#include <optional>
#include <string>

#include "base/directory.h"

namespace pagoda {

// It is PARENT/pagoda-scratch- and random digits, and is removed with its files when the object
// ends. A new object also removes folders that killed processes left in PARENT: a living process
// holds a lock on its own. Folders without our mark, or of another user, are left alone.
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
