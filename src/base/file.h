// Exact reads of regular files, and where files lie. For model folders, text and token files; a
// run's store and checkpoints go through offload/storage.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/descriptor.h"
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

// All that comes from what the user named: a regular file, or a pipe or terminal (/dev/stdin) until
// its end. It waits for a pipe while it has a writer; one to which nobody writes is kNoInput, as is
// what cannot be read; more than `limit_bytes` is kUsage.
Result<std::string> read_file_or_pipe(const std::string& path, int64_t limit_bytes);

// A file without a name in `directory`, for trials: it is gone when it is closed. Not ok(), with
// errno, when none can be made there.
Descriptor unnamed_file(const std::string& directory);

// The same file from whatever working directory.
std::string absolute_path(const std::string& path);

// Where `path` is in `folder`, without that; "" when it is not below it. By name only.
std::string path_inside(const std::string& path, const std::string& folder);

// `path`, or the nearest directory above it that exists; "." where a relative path has none.
std::string nearest_directory(const std::string& path);

// What this user may still write to the disk that `path`, which exists, lies on; -1: not told.
int64_t free_disk_bytes(const std::string& path);

}  // namespace pagoda
