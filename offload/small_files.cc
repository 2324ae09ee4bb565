#include "offload/small_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "base/bytes.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/output_file.h"
#include "offload/chunk.h"

namespace pagoda::posix {
namespace {

// One line for the failed call whose errno is `error`.
Status failure(Exit code, const char* what, const std::string& path, int error,
               const char* advice) {
  return Status(code, strf("%s %s: %s; %s", what, path.c_str(), error_text(error).c_str(), advice));
}

constexpr char kCheckDisk[] = "saved checkpoints are untouched; check the disk and resume";
constexpr char kCheckPath[] = "check the path and its permissions";

Status write_failure(const char* what, const std::string& path, int error) {
  const Exit code = exit_of_write(error);
  return failure(code, what, path, error,
                 code == Exit::kIoError ? kCheckDisk
                                        : "saved checkpoints are untouched; make room");
}

Status not_regular(Exit code, const std::string& path) {
  return Status(code, strf("%s is not a regular file; %s", path.c_str(), kCheckPath));
}

Status write_all(int fd, const std::string& content, const std::string& path) {
  size_t written = 0;
  while (written < content.size()) {
    const ssize_t n = ::write(fd, content.data() + written, content.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return write_failure("cannot write", path, n == 0 ? ENOSPC : errno);
    }
    written += static_cast<size_t>(n);
  }
  return Status();
}

Result<Descriptor> open_to_write(const std::string& path) {
  // Non-blocking so that a FIFO in the place of a file cannot hang the program.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Descriptor file(::open(path.c_str(), kFlags, 0600));
  struct stat info;
  if (!file.ok() || ::fstat(file.get(), &info) != 0) {
    return failure(Exit::kCannotCreate, "cannot create", path, errno, kCheckPath);
  }
  if (!S_ISREG(info.st_mode)) return not_regular(Exit::kCannotCreate, path);
  if (info.st_nlink > 1) {
    return Status(Exit::kCannotCreate, strf("%s %s", path.c_str(), kOtherName));
  }
  return file;
}

}  // namespace

Status write_file(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(Descriptor file, open_to_write(path));
  RETURN_IF_ERROR(write_all(file.get(), content, path));
  // Not emptied first: that would give away the room which was reserved for it.
  struct stat info;
  const auto bytes = static_cast<off_t>(content.size());
  if (::fstat(file.get(), &info) != 0 ||
      (info.st_size > bytes && ::ftruncate(file.get(), bytes) != 0)) {
    return write_failure("cannot cut", path, errno);
  }
  if (::fdatasync(file.get()) != 0) return write_failure("cannot flush", path, errno);
  if (!file.reset()) return write_failure("cannot close", path, errno);
  return Status();
}

Status reserve_file(const std::string& path, int64_t bytes) {
  ASSIGN_OR_RETURN(const Descriptor file, open_to_write(path));
  int error;
  do {
    error = ::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0 || error == EOPNOTSUPP) return Status();
  const std::string what = "cannot reserve " + format_bytes(bytes) + " for";
  return write_failure(what.c_str(), path, error);
}

Result<std::string> read_file(const std::string& path, int64_t limit_bytes) {
  // Non-blocking so that a FIFO in the place of a file cannot hang the program.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat info;
  if (!file.ok() || ::fstat(file.get(), &info) != 0) {
    if (errno == ELOOP) return not_regular(Exit::kBadData, path);
    // Only a file that is not there, or that this user may not reach, may count as absent; one that
    // cannot be read now may be good.
    const bool no_fault = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EPERM;
    return failure(no_fault ? Exit::kNoInput : Exit::kIoError, "cannot open", path, errno,
                   kCheckPath);
  }
  if (!S_ISREG(info.st_mode)) return not_regular(Exit::kBadData, path);
  if (info.st_size > limit_bytes) {
    return Status(Exit::kBadData,
                  strf("%s has %lld bytes, more than the %lld such a file may have", path.c_str(),
                       (long long)info.st_size, (long long)limit_bytes));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t read = 0;
  while (read < content.size()) {
    const ssize_t n = ::read(file.get(), content.data() + read, content.size() - read);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(Exit::kIoError, "cannot read", path, errno, kCheckDisk);
    if (n == 0) {
      return Status(Exit::kIoError,
                    strf("%s shrank while it was read; do not write to it", path.c_str()));
    }
    read += static_cast<size_t>(n);
  }
  return content;
}

Status rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return Status();
  return write_failure(strf("cannot rename %s to", from.c_str()).c_str(), to, errno);
}

Status make_directory(const std::string& path) {
  for (size_t end = 1; end <= path.size(); ++end) {
    if (end < path.size() && path[end] != '/') continue;
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) == 0 || errno == EEXIST) continue;
    // A parent that exists may refuse with another error (read-only, not permitted) before EEXIST.
    const int error = errno;
    if (exists(part)) continue;
    return failure(Exit::kCannotCreate, "cannot create directory", part, error, kCheckPath);
  }
  struct stat info;
  const int error = ::stat(path.c_str(), &info) == 0 ? ENOTDIR : errno;
  if (error == ENOTDIR && S_ISDIR(info.st_mode)) return Status();
  return failure(Exit::kCannotCreate, "cannot create directory", path, error, kCheckPath);
}

Status sync_directory(const std::string& path) {
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok()) return failure(Exit::kIoError, "cannot open", path, errno, kCheckDisk);
  if (::fsync(directory.get()) != 0) {
    return write_failure("cannot flush directory", path, errno);
  }
  return Status();
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  ASSIGN_OR_RETURN(const Directory directory, Directory::open(path, Links::kRefuse));
  return directory.names();
}

Status remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return Status();
  return failure(Exit::kIoError, "cannot remove", path, errno, kCheckPath);
}

Status remove_directory(const std::string& path) {
  const auto directory = Directory::open(path, Links::kRefuse);
  if (directory.status().code() == Exit::kNoInput) return Status();
  RETURN_IF_ERROR(directory.status());
  ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.value().names());
  for (const std::string& name : names) RETURN_IF_ERROR(directory.value().remove_file(name));
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return Status();
  return failure(Exit::kIoError, "cannot remove directory", path, errno, kCheckPath);
}

bool is_directory(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
  return errno != ENOENT && errno != ENOTDIR;
}

bool exists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

}  // namespace pagoda::posix
