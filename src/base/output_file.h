// Writes output that appears whole or not at all, and replaces only regular files.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace pagoda {

// A new file, written under a name of its own beside PATH (mode 0600) and renamed to PATH by
// commit(). Without commit() the destructor removes it, so PATH is either the old file or the
// complete new one; a process that is killed leaves PATH.DIGITS.tmp.
class OutputFile {
 public:
  // kCannotCreate, also if PATH is a link, a folder, a device or a pipe, which stays.
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // appended so far
  Status append(const void* data, int64_t bytes);
  // Makes the file as long as this, to be written in any order by write_at(); what is not reads as
  // zeros. REQUIRES: not shorter than what was appended.
  Status extend(int64_t bytes);
  // Overwrites bytes already appended, or of what extend() made.
  Status write_at(int64_t offset, const void* data, int64_t bytes);
  // Flushes the file, renames it to path() and flushes the directory. Last call.
  Status commit();

 private:
  OutputFile(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}
  void discard();
  std::string path_, temporary_;
  int fd_ = -1;  // -1 after commit
  int64_t bytes_ = 0;
};

// Whether `name` is a name that OutputFile gives the file `final_name` while it is written.
bool is_unfinished(const std::string& name, const std::string& final_name);

// Writes a small file through OutputFile.
Status write_text_file(const std::string& path, const std::string& content);

// Writes to a path that the user named. It may also be, or link to, a character device or a pipe
// that is being read (/dev/stdout).
Status write_output(const std::string& path, const std::string& content);
// Whether write_output() could begin now; changes nothing.
Status check_output(const std::string& path);

// The meaning of a failed write or flush with this errno: kCannotCreate if there is no room
// (ENOSPC, EDQUOT, EFBIG), which is no fault of the disk; else kIoError.
Exit exit_of_write(int error);

// Makes the name of `path` durable. kIoError.
Status sync_directory_of(const std::string& path);

}  // namespace pagoda
