#include "offload/storage_posix.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/bytes.h"
#include "base/file.h"
#include "base/held_file.h"
#include "base/log.h"
#include "base/process_limits.h"
#include "device/device.h"
#include "offload/chunk.h"
#include "offload/small_files.h"

namespace pagoda {
namespace {

constexpr int kLockRetryMs = 50;

// Why the file cannot be used with O_DIRECT and kIoAlign, or "" if it can; it then is in that mode.
// REQUIRES: the file has at least kIoAlign bytes.
std::string enable_direct_io(int fd) {
  struct statx info = {};
#ifdef STATX_DIOALIGN
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_offset_align == 0) return "no direct I/O on this file system";
    if (info.stx_dio_offset_align > kIoAlign || info.stx_dio_mem_align > kIoAlign) {
      return strf("direct I/O here needs %u-byte alignment", info.stx_dio_offset_align);
    }
  }
#endif
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    return "O_DIRECT refused: " + error_text(errno);
  }
  auto block = HostMemory::allocate(kIoAlign);
  if (block.ok() && ::pread(fd, block->data(), kIoAlign, 0) == kIoAlign) return "";
  const std::string why = "trial of O_DIRECT failed: " + error_text(errno);
  CHECK(::fcntl(fd, F_SETFL, flags) == 0);
  return why;
}

std::string free_bytes(int fd) {
  struct statvfs info;
  if (::fstatvfs(fd, &info) != 0) return "unknown";
  return format_bytes(static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize));
}

bool has_room(int fd, int64_t bytes) {
  struct statvfs info;
  if (::fstatvfs(fd, &info) != 0) return true;  // the allocation itself will tell
  return bytes / static_cast<int64_t>(info.f_frsize) < static_cast<int64_t>(info.f_bavail);
}

// Real blocks for the whole file, so that later writes cannot run out of space.
int allocate(int fd, int64_t bytes) {
  if (!has_room(fd, bytes)) return ENOSPC;  // before anything is filled up
  int error;
  do {
    error = ::posix_fallocate(fd, 0, bytes);
  } while (error == EINTR);
  return error;
}

Status cannot_create(const std::string& path, const std::string& why) {
  return Status(Exit::kCannotCreate, strf("cannot create %s: %s", path.c_str(), why.c_str()));
}

}  // namespace

std::string probe_direct_io(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::path place = std::filesystem::absolute(directory, ignored);
  while (place.has_relative_path() && !std::filesystem::is_directory(place, ignored)) {
    place = place.parent_path();
  }
  const Descriptor file = unnamed_file(place.string());
  if (!file.ok()) return strf("not probed (cannot write to %s)", place.c_str());
  if (::ftruncate(file.get(), kIoAlign) != 0) return "not probed (" + error_text(errno) + ")";
  const std::string why = enable_direct_io(file.get());
  return why.empty() ? kDirectAccess : "buffered (" + why + ")";
}

Result<int> PosixStorage::open(const std::string& path, int64_t bytes, FileUse use) {
  CHECK(bytes % kIoAlign == 0 && (bytes > 0 || (bytes == kAnyLength && use != FileUse::kCreate)),
        "bulk file of %lld bytes", (long long)bytes);
  auto file = std::make_unique<BulkFile>();
  file->path = path;
  file->bytes = bytes;
  RETURN_IF_ERROR(use == FileUse::kCreate ? create_file(file.get())
                                          : open_existing(file.get(), use));
  const int fd = file->descriptor.get();
  if (const std::string why = enable_direct_io(fd); !why.empty()) {
    log_warn(strf("%s is used through the page cache: %s", path.c_str(), why.c_str()));
  }
  int handle;
  {
    std::lock_guard lock(mutex_);
    handle = narrow<int>(files_.size());
    files_.push_back(std::move(file));
  }
  opened(handle, fd);
  return handle;
}

Status PosixStorage::create_file(BulkFile* file) {
  const char* path = file->path.c_str();
  file->descriptor = Descriptor(::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const int fd = file->descriptor.get();
  if (fd < 0 && errno == EEXIST) {
    return cannot_create(path, "it exists already and was left alone; choose another directory");
  }
  if (fd < 0) {
    const int error = errno;
    return cannot_create(path, error_text(error) + "; " + remedy_of_open(error, "check the path"));
  }
  Status status = lock(*file, FileUse::kCreate);
  if (const int error = status.ok() ? allocate(fd, file->bytes) : 0; error != 0) {
    status = cannot_create(path, strf("need %s, free %s: %s; free space or use another disk",
                                      format_bytes(file->bytes).c_str(), free_bytes(fd).c_str(),
                                      error_text(error).c_str()));
  }
  if (!status.ok() && ::unlink(path) != 0) log_warn(strf("cannot remove %s", path));
  return status;
}

Status PosixStorage::open_existing(BulkFile* file, FileUse use) {
  const char* path = file->path.c_str();
  const bool read = use == FileUse::kRead;
  // Non-blocking only until it is known to be a file: the ring would hand back what has to wait.
  const int flags = (read ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  file->descriptor = Descriptor(::open(path, flags | O_NONBLOCK));
  const int fd = file->descriptor.get();
  struct stat info;
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    const int error = errno;
    return Status(Exit::kNoInput, strf("cannot open %s: %s; ", path, error_text(error).c_str()) +
                                      remedy_of_open(error, "check the path"));
  }
  if (S_ISREG(info.st_mode)) {
    CHECK(::fcntl(fd, F_SETFL, flags) == 0);
    RETURN_IF_ERROR(lock(*file, use));
  }
  if (file->bytes == kAnyLength) file->bytes = info.st_size;
  if (!S_ISREG(info.st_mode) || info.st_size != file->bytes) {
    return Status(Exit::kMismatch,
                  strf("%s has %lld bytes, this run's pages need %lld; it was left "
                       "alone",
                       path, (long long)info.st_size, (long long)file->bytes));
  }
  if (!read && info.st_nlink > 1) {
    return Status(Exit::kCannotCreate, strf("%s %s", path, kOtherName));
  }
  // What a crashed writer left in the page cache must be on disk before a run overwrites what is
  // older.
  if (!read && ::fsync(fd) != 0) {
    return Status(Exit::kIoError,
                  strf("cannot flush %s: %s; check the disk", path, error_text(errno).c_str()));
  }
  return Status();
}

Status PosixStorage::lock(const BulkFile& file, FileUse use) {
  const int kind = use == FileUse::kRead ? LOCK_SH : LOCK_EX;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.lock_wait_ms);
  while (::flock(file.descriptor.get(), kind | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      return cannot_create(file.path, "cannot lock: " + error_text(errno));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Exit::kCannotCreate,
                    strf("%s is in use by another run; wait for it to end or use another directory",
                         file.path.c_str()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kLockRetryMs));
  }
  return Status();
}

void PosixStorage::close(int handle) {
  closing(handle);
  std::unique_ptr<BulkFile> file;
  {
    std::lock_guard lock(mutex_);
    CHECK(handle >= 0 && handle < narrow<int>(files_.size()) && files_[handle]);
    file = std::move(files_[handle]);
  }
}

Status PosixStorage::sync(int handle) {
  BulkFile& bulk = file(handle);
  std::lock_guard lock(bulk.mutex);
  if (!bulk.flushed.ok()) return bulk.flushed;
  if (::fdatasync(bulk.descriptor.get()) != 0) {
    // Never tried again: after an error the kernel marks pages clean that are not on disk, and a
    // second flush would report success (Rebello et al., "Can applications recover from fsync
    // failures?", ATC'20).
    bulk.flushed = Status(
        Exit::kIoError,
        strf(
            "cannot flush %s: %s; this checkpoint was not saved, the one before is; check the disk "
            "and resume",
            bulk.path.c_str(), error_text(errno).c_str()));
  }
  RETURN_IF_ERROR(bulk.flushed);
  return check_held(bulk.descriptor.get(), bulk.path);
}

PosixStorage::BulkFile& PosixStorage::file(int handle) {
  std::lock_guard lock(mutex_);
  CHECK(handle >= 0 && handle < narrow<int>(files_.size()) && files_[handle], "no open file %d",
        handle);
  return *files_[handle];
}

Status PosixStorage::write_file(const std::string& path, const std::string& content) {
  return posix::write_file(path, content);
}
Status PosixStorage::reserve_file(const std::string& path, int64_t bytes) {
  return posix::reserve_file(path, bytes);
}
Result<std::string> PosixStorage::read_file(const std::string& path, int64_t limit_bytes) {
  return posix::read_file(path, limit_bytes);
}
Status PosixStorage::rename(const std::string& from, const std::string& to) {
  return posix::rename(from, to);
}
Status PosixStorage::make_directory(const std::string& path) { return posix::make_directory(path); }
Status PosixStorage::sync_directory(const std::string& path) { return posix::sync_directory(path); }
Result<std::vector<std::string>> PosixStorage::list_directory(const std::string& path) {
  return posix::list_directory(path);
}
Status PosixStorage::remove_file(const std::string& path) { return posix::remove_file(path); }
Status PosixStorage::remove_directory(const std::string& path) {
  return posix::remove_directory(path);
}
bool PosixStorage::exists(const std::string& path) { return posix::exists(path); }
bool PosixStorage::is_directory(const std::string& path) { return posix::is_directory(path); }

}  // namespace pagoda
