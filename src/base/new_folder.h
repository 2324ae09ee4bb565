// A folder of files that are useful only together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

// Unless keep() was called, the destructor removes what the object made: the files whose names it
// gave out, the folder, and the folders above it that it created. Files of others stay. Movable;
// one thread.
class NewFolder {
 public:
  // Creates the folder (0700, with those above it) or takes an empty one. kCannotCreate if it holds
  // anything, or if its disk has less than `needed_bytes` free.
  static Result<NewFolder> create(const std::string& path, int64_t needed_bytes);
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&& other) = delete;
  ~NewFolder();

  const std::string& path() const { return path_; }
  // PATH/NAME, for a file to be written there.
  std::string file(const std::string& name);
  void keep();

 private:
  explicit NewFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<std::string> created_;  // folders, then files, in the order to be made
};

// Creates a directory (mode 0700, with parents) or takes an empty one. kCannotCreate if it holds
// anything. `created`, if wanted, gets the directories that were created, parents first, also when
// it fails.
Status create_empty_directory(const std::string& path, std::vector<std::string>* created = nullptr);

}  // namespace pagoda
