// Ordinary files: exact reads of regular files, and output that appears whole or not at all. For
// model folders, text and token files; a run's store and checkpoints go through offload/storage.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

// Whether the last component of a path may be a symbolic link. The files of a model folder may (the
// hub's cache is links; names that an index gives must be plain ones) and paths the user typed;
// what pagoda itself writes and reads back may not.
enum class Links : uint8_t { kRefuse, kFollow };

// An open regular file, read only. Owns the descriptor; movable. Reads are const and may run on any
// number of threads.
class InputFile {
 public:
  // kNoInput when it cannot be opened, kBadData when it is not a regular file or a refused link.
  static Result<InputFile> open(const std::string& path, Links links);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // size when it was opened
  // Reads exactly `bytes` bytes; a file that ends before (it shrank) is kIoError. REQUIRES: the
  // range lies inside bytes().
  Status read(int64_t offset, void* out, int64_t bytes) const;

 private:
  InputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

// The whole file; larger than `limit_bytes` is kBadData.
Result<std::string> read_text_file(const std::string& path, Links links, int64_t limit_bytes);

// A new file, written as PATH.tmp (mode 0600) and renamed to PATH by commit(). Without commit()
// the destructor removes it, so PATH is either the old file or the complete new one.
class OutputFile {
 public:
  // Replaces a PATH.tmp that an interrupted run left. kCannotCreate.
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // appended so far
  Status append(const void* data, int64_t bytes);
  // Overwrites bytes already appended.
  Status write_at(int64_t offset, const void* data, int64_t bytes);
  // Flushes the file, renames it to path() and flushes the directory. Last call.
  Status commit();

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  void discard();
  std::string path_;
  int fd_ = -1;  // -1 after commit
  int64_t bytes_ = 0;
};

// What a failed write or flush with this errno means: kCannotCreate where there is no room (ENOSPC,
// EDQUOT, EFBIG), which is no fault of the disk; else kIoError.
Exit exit_of_write(int error);

// The same for a small file.
Status write_text_file(const std::string& path, const std::string& content);

// The same file from whatever working directory.
std::string absolute_path(const std::string& path);

// `path`, or the nearest directory above it that exists; "." where a relative path has none.
std::string nearest_directory(const std::string& path);

// What this user may still write to the disk that `path`, which exists, lies on; -1: not told.
int64_t free_disk_bytes(const std::string& path);

// Creates a directory (mode 0700, with parents) or takes an empty one; one that holds anything is
// kCannotCreate. `created`, if wanted, gets those it created, parents first, also when it fails.
Status create_empty_directory(const std::string& path, std::vector<std::string>* created = nullptr);

}  // namespace pagoda
