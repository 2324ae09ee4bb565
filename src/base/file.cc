#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process_limits.h"

namespace pagoda {

namespace {

std::string reason() { return std::strerror(errno); }

// One read(2) or write(2) moves at most 2 GiB; larger transfers go in parts.
constexpr int64_t kMaxTransferBytes = int64_t{1} << 30;

Status write_exact(int fd, const std::string& path, int64_t offset, const void* data,
                   int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n =
        pwrite(fd, from, static_cast<size_t>(std::min(bytes, kMaxTransferBytes)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Status(exit_of_write(n == 0 ? ENOSPC : errno),
                    strf("%s: write error at byte %lld: %s; the incomplete file is removed, make "
                         "room or use another disk",
                         printable(path).c_str(), (long long)offset,
                         n == 0 ? "nothing written" : reason().c_str()));
    }
    from += n;
    offset += n;
    bytes -= n;
  }
  return Status();
}

Status sync_directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const char* directory = parent.empty() ? "." : parent.c_str();
  const int fd = ::open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const std::string why = synced ? "" : reason();
  if (fd >= 0) ::close(fd);
  if (synced) return Status();
  return Status(Exit::kIoError,
                strf("%s: flush of the directory failed: %s; do not rely on %s",
                     printable(directory).c_str(), why.c_str(), printable(path).c_str()));
}

}  // namespace

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
                  strf("%s: cannot stat: %s", printable(path).c_str(), reason().c_str()));
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
                         n == 0 ? "the file became shorter" : reason().c_str()));
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

Result<OutputFile> OutputFile::create(const std::string& path) {
  const std::string temporary = path + ".tmp";
  if (unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    return Status(Exit::kCannotCreate,
                  strf("%s: cannot replace: %s", printable(temporary).c_str(), reason().c_str()));
  }
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    const int error = errno;
    return Status(Exit::kCannotCreate,
                  strf("%s: cannot create: %s; ", printable(temporary).c_str(),
                       std::strerror(error)) +
                      remedy_of_open(error, "check the directory and its permissions"));
  }
  return OutputFile(path, fd);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  unlink((path_ + ".tmp").c_str());
}

Status OutputFile::append(const void* data, int64_t bytes) {
  CHECK(fd_ >= 0 && bytes >= 0);
  RETURN_IF_ERROR(write_exact(fd_, path_, bytes_, data, bytes));
  bytes_ += bytes;
  return Status();
}

Status OutputFile::write_at(int64_t offset, const void* data, int64_t bytes) {
  CHECK(fd_ >= 0 && offset >= 0 && bytes >= 0 && offset + bytes <= bytes_);
  return write_exact(fd_, path_, offset, data, bytes);
}

Status OutputFile::commit() {
  CHECK(fd_ >= 0);
  if (fsync(fd_) != 0) {
    const Status error(exit_of_write(errno), strf("%s: flush failed: %s; the file is removed",
                                                  printable(path_).c_str(), reason().c_str()));
    discard();
    return error;
  }
  if (rename((path_ + ".tmp").c_str(), path_.c_str()) != 0) {
    const Status error(exit_of_write(errno), strf("%s: rename failed: %s; the file is removed",
                                                  printable(path_).c_str(), reason().c_str()));
    discard();
    return error;
  }
  ::close(std::exchange(fd_, -1));
  return sync_directory_of(path_);
}

Exit exit_of_write(int error) {
  const bool no_room = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return no_room ? Exit::kCannotCreate : Exit::kIoError;
}

Status write_text_file(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  RETURN_IF_ERROR(file.append(content.data(), static_cast<int64_t>(content.size())));
  return file.commit();
}

std::string absolute_path(const std::string& path) {
  std::error_code failed;  // the working directory was removed
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  return failed ? path : absolute.lexically_normal().string();
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

namespace {

// Each new name is made durable: what is saved inside must not vanish with its folder. False leaves
// the reason in errno.
Result<bool> make_directory(const std::string& path, std::vector<std::string>* created) {
  if (mkdir(path.c_str(), 0700) != 0) return false;
  if (created != nullptr) created->push_back(path);
  RETURN_IF_ERROR(sync_directory_of(path));
  return true;
}

}  // namespace

int64_t free_disk_bytes(const std::string& path) {
  struct statvfs disk;
  if (statvfs(path.c_str(), &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
}

Status create_empty_directory(const std::string& path, std::vector<std::string>* created) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> parents;
  for (fs::path at = fs::path(path).parent_path(); !at.empty() && !fs::exists(at, error);
       at = at.parent_path()) {
    parents.push_back(at.string());
  }
  for (size_t i = parents.size(); i-- > 0;) {
    RETURN_IF_ERROR(make_directory(parents[i], created).status());
  }
  ASSIGN_OR_RETURN(const bool made, make_directory(path, created));
  if (made) return Status();
  if (errno != EEXIST) {
    return Status(Exit::kCannotCreate, strf("%s: cannot create the directory: %s",
                                            printable(path).c_str(), reason().c_str()));
  }
  const bool empty = fs::is_empty(path, error);
  if (error) {
    return Status(Exit::kCannotCreate,
                  strf("%s: cannot be used: %s", printable(path).c_str(), error.message().c_str()));
  }
  if (!empty || !fs::is_directory(path, error)) {
    return Status(Exit::kCannotCreate,
                  strf("%s: already exists and is not an empty directory; nothing was changed, "
                       "name another one",
                       printable(path).c_str()));
  }
  return Status();
}

}  // namespace pagoda
