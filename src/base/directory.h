// A directory held open, in which files are created, opened and removed by name. It is never looked
// up again by its path, so nobody who may write to the folders above can put another one in its
// place. No link is followed, so the target of a link is never touched.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/held_file.h"
#include "base/status.h"

namespace pagoda {

// Names are plain ones, without '/'. Movable; const calls on any number of threads.
class Directory {
 public:
  // kNoInput if there is none or it may not be opened, kBadData if it is something else or a
  // refused link.
  static Result<Directory> open(const std::string& path, Links links);

  const std::string& path() const { return path_; }
  // kIoError when this is not at its path any more (base/held_file.h).
  Status check() const { return check_held(handle_.get(), path_); }

  // Opens a folder in this one. Returns the errors of open().
  Result<Directory> folder(const std::string& name) const;
  // Creates PREFIX and 16 random digits (0700); its name is the end of its path(). kCannotCreate.
  Result<Directory> make_folder(const std::string& prefix) const;
  // Opens a regular file for reading and writing. kNoInput, kBadData.
  Result<Descriptor> file(const std::string& name) const;
  // Creates a file (0600). kCannotCreate if the name is taken.
  Status make_file(const std::string& name, const std::string& content) const;

  // All but "." and "..", sorted. kIoError.
  Result<std::vector<std::string>> names() const;
  bool has_folder(const std::string& name) const;
  bool has_link(const std::string& name) const;
  bool is_own() const;  // belongs to this user

  // One process holds the lock until the object ends.
  enum class Lock : uint8_t { kTaken, kTakenByAnother, kImpossible };
  Lock lock() const;

  // Removes a file, or a link itself. Ok if absent; kBadData for a folder, else kIoError.
  Status remove_file(const std::string& name) const;
  // Removes an empty folder. Ok if absent; kBadData when it is no folder or not empty, else
  // kIoError.
  Status remove_empty(const std::string& name) const;
  // Removes a folder with all that is in it. Ok if absent; kBadData, with nothing removed, for a
  // link or anything else that is no folder; kIoError.
  Status remove_folder(const std::string& name) const;

 private:
  Directory(Descriptor handle, std::string path)
      : handle_(std::move(handle)), path_(std::move(path)) {}
  mode_t kind_of(const std::string& name) const;
  Status remove_all(int deepest) const;
  Status failure(Exit code, const char* what, const std::string& name, int error) const;

  Descriptor handle_;
  std::string path_;  // for messages
};

}  // namespace pagoda
