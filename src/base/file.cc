#include "base/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/process_limits.h"

namespace pagoda {

Result<InputFile> InputFile::open(const std::string& path, Links links) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::kRefuse ? O_NOFOLLOW : 0);
  const int fd = ::open(path.c_str(), flags);
  if (fd < 0 && errno == ELOOP && links == Links::kRefuse) {
    return Status(Exit::kBadData, strf("%s: is a symbolic link, which is refused here; copy the "
                                       "file itself there",
                                       printable(path).c_str()));
  }
  if (fd < 0) {
    const int error = errno;
    return Status(Exit::kNoInput,
                  strf("%s: cannot open: %s; ", printable(path).c_str(), std::strerror(error)) +
                      remedy_of_open(error, "check the path and its permissions"));
  }
  InputFile file(path, fd);
  struct stat st;
  if (fstat(fd, &st) != 0) {
    return Status(Exit::kNoInput,
                  strf("%s: cannot stat: %s", printable(path).c_str(), last_error().c_str()));
  }
  if (!S_ISREG(st.st_mode)) {
    return Status(Exit::kBadData,
                  strf("%s: is not a regular file; give a file", printable(path).c_str()));
  }
  file.bytes_ = st.st_size;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read(int64_t offset, void* out, int64_t bytes) const {
  CHECK(offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset);
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n =
        pread(fd_, to, static_cast<size_t>(std::min(bytes, kMaxTransferBytes)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Status(Exit::kIoError,
                    strf("%s: read error at byte %lld: %s; check the disk and that nothing "
                         "changes the file",
                         printable(path_).c_str(), (long long)offset,
                         n == 0 ? "the file became shorter" : last_error().c_str()));
    }
    to += n;
    offset += n;
    bytes -= n;
  }
  return Status();
}

Result<std::string> read_text_file(const std::string& path, Links links, int64_t limit_bytes) {
  ASSIGN_OR_RETURN(InputFile file, InputFile::open(path, links));
  if (file.bytes() > limit_bytes) {
    return Status(Exit::kBadData,
                  strf("%s: %lld bytes, more than the limit of %lld", printable(path).c_str(),
                       (long long)file.bytes(), (long long)limit_bytes));
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  RETURN_IF_ERROR(file.read(0, text.data(), file.bytes()));
  return text;
}

Result<std::string> read_file_or_pipe(const std::string& path, int64_t limit_bytes) {
  const auto refused = [&](Exit code, const std::string& why) {
    return Status(code, printable(path) + ": " + why);
  };
  // O_NONBLOCK: neither opening a FIFO nor reading it may wait for a writer that never comes.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  std::string text;
  while (file.ok()) {
    char block[size_t{1} << 16];
    const ssize_t n = ::read(file.get(), block, sizeof(block));
    if (n == 0) {
      struct stat info = {};
      const bool pipe = fstat(file.get(), &info) == 0 && S_ISFIFO(info.st_mode);
      if (!pipe || !text.empty()) return text;
      return refused(Exit::kNoInput, "nothing was written to this pipe; start its writer first");
    }
    if (n > 0) text.append(block, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > limit_bytes) {
      return refused(Exit::kUsage, strf("larger than %s; that is something else",
                                        format_bytes(limit_bytes).c_str()));
    }
    if (n > 0 || errno == EINTR) continue;
    if (errno != EAGAIN) break;
    struct pollfd waited = {file.get(), POLLIN, 0};
    if (::poll(&waited, 1, -1) < 0 && errno != EINTR) break;
  }
  if (errno == EISDIR) return refused(Exit::kNoInput, "is a folder; name a file");
  return refused(Exit::kNoInput, last_error() + "; name a file that can be read");
}

Descriptor unnamed_file(const std::string& directory) {
  Descriptor file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.ok() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  // A file system that cannot: with a name for a moment.
  std::string name = directory + "/pagoda-probe-XXXXXX";
  file = Descriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (file.ok() && ::unlink(name.c_str()) != 0) log_warn("cannot remove " + printable(name));
  return file;
}

std::string absolute_path(const std::string& path) {
  std::error_code failed;  // the working directory was removed
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  return failed ? path : absolute.lexically_normal().string();
}

std::string path_inside(const std::string& path, const std::string& folder) {
  std::string above = absolute_path(folder);
  if (!above.ends_with('/')) above += '/';
  const std::string whole = absolute_path(path);
  return whole.starts_with(above) ? whole.substr(above.size()) : "";
}

std::string nearest_directory(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path at = path;
  while (!at.empty() && !fs::is_directory(at, error) && at != at.parent_path()) {
    at = at.parent_path();
  }
  return at.empty() ? "." : at.string();
}

int64_t free_disk_bytes(const std::string& path) {
  struct statvfs disk;
  if (statvfs(path.c_str(), &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
}

std::string disk_of(const std::string& path) {
  struct stat of;
  if (stat(path.c_str(), &of) != 0) return "?";
  return strf("%llu", (unsigned long long)of.st_dev);
}

}  // namespace pagoda
