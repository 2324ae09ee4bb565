// Exact reads of regular files, and functions on paths. For model folders, text and token files; a
// run's store and checkpoints go through offload/storage.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"

namespace pagoda {

// Whether the last component of a path may be a symbolic link. Files of a model folder may be links
// (the hub's cache consists of links; names in an index must be plain ones), and so may paths that
// the user typed. Files that pagoda itself writes and reads back may not.
enum class Links : uint8_t { kRefuse, kFollow };

// What is said of a file that pagoda would write although it has a second name (a hard link), under
// which somebody else may keep it.
inline constexpr char kOtherName[] =
    "has another name too (a hard link), whose file would change with it; copy the run without "
    "links (cp -r) and use the copy";

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

// Reads the whole file. kBadData if it is larger than `limit_bytes`.
Result<std::string> read_text_file(const std::string& path, Links links, int64_t limit_bytes);

// Reads all of a path that the user named: a regular file, or a pipe or terminal (/dev/stdin) until
// its end. It waits for a pipe while that has a writer. kNoInput for a pipe without a writer and
// for anything that cannot be read; kUsage for more than `limit_bytes`.
Result<std::string> read_file_or_pipe(const std::string& path, int64_t limit_bytes);

// Makes a file without a name in `directory`, for trials; closing it removes it. Not ok(), with
// errno, when none can be made there.
Descriptor unnamed_file(const std::string& directory);

// The path of the same file from any working directory.
std::string absolute_path(const std::string& path);

// The part of `path` below `folder`; "" when it is not below it. Looks at names only.
std::string path_inside(const std::string& path, const std::string& folder);

// `path`, or the nearest directory above it that exists; "." where a relative path has none.
std::string nearest_directory(const std::string& path);

// Bytes that this user may still write to the disk of `path`, which exists; -1: unknown.
int64_t free_disk_bytes(const std::string& path);
// The same text for paths on one disk of this host, another for those on others; "?": unknown.
std::string disk_of(const std::string& path);

}  // namespace pagoda
