#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/process_limits.h"
#include "base/random.h"

namespace pagoda {

namespace {

constexpr char kUnfinished[] = ".tmp";

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
                         n == 0 ? "nothing written" : last_error().c_str()));
    }
    from += n;
    offset += n;
    bytes -= n;
  }
  return Status();
}

bool is_stream(const struct stat& info) { return S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode); }

// A rename would put a file in the place of whatever is there.
Status check_replaceable(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return Status();
  const char* what = S_ISDIR(info.st_mode)   ? "a folder"
                     : S_ISLNK(info.st_mode) ? "a symbolic link"
                                             : "a device, a pipe or a socket";
  return Status(Exit::kCannotCreate,
                strf("%s: is %s, which stays as it is; name a file, new or old",
                     printable(path).c_str(), what));
}

// Also by a link, but by none that another user may have put there.
bool leads_to_stream(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return false;
  if (S_ISLNK(info.st_mode)) {
    if (info.st_uid != 0 && info.st_uid != geteuid()) return false;
    if (stat(path.c_str(), &info) != 0) return false;
  }
  return is_stream(info);
}

// The device or pipe to write to; none where `path` is something else.
Result<Descriptor> open_stream(const std::string& path) {
  if (!leads_to_stream(path)) return Descriptor();
  struct stat info = {};
  // O_NONBLOCK: opening a FIFO must not wait for a reader.
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
  Descriptor stream(::open(path.c_str(), kFlags | O_NONBLOCK));
  const bool good = stream.ok() && fstat(stream.get(), &info) == 0 && is_stream(info) &&
                    fcntl(stream.get(), F_SETFL, kFlags) == 0;
  if (good) return stream;
  return Status(Exit::kCannotCreate,
                strf("%s: cannot be written to: %s; a pipe needs its reader first",
                     printable(path).c_str(), last_error().c_str()));
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  RETURN_IF_ERROR(check_replaceable(path));
  std::string temporary = path + "." + random_digits() + kUnfinished;
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    const int error = errno;
    return Status(Exit::kCannotCreate,
                  strf("%s: cannot create: %s; ", printable(path).c_str(), std::strerror(error)) +
                      remedy_of_open(error, "check the directory and its permissions"));
  }
  return OutputFile(path, std::move(temporary), fd);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  unlink(temporary_.c_str());
}

Status OutputFile::append(const void* data, int64_t bytes) {
  CHECK(fd_ >= 0 && bytes >= 0);
  RETURN_IF_ERROR(write_exact(fd_, path_, bytes_, data, bytes));
  bytes_ += bytes;
  return Status();
}

Status OutputFile::extend(int64_t bytes) {
  CHECK(fd_ >= 0 && bytes >= bytes_);
  if (ftruncate(fd_, bytes) != 0) {
    return Status(exit_of_write(errno),
                  strf("%s: cannot become %lld bytes long: %s; the incomplete "
                       "file is removed, use another disk",
                       printable(path_).c_str(), (long long)bytes, last_error().c_str()));
  }
  bytes_ = bytes;
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
                                                  printable(path_).c_str(), last_error().c_str()));
    discard();
    return error;
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    const Status error(exit_of_write(errno), strf("%s: rename failed: %s; the file is removed",
                                                  printable(path_).c_str(), last_error().c_str()));
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

bool is_unfinished(const std::string& name, const std::string& final_name) {
  const size_t begin = final_name.size() + 1, digits = random_digits().size();
  return name.size() == begin + digits + sizeof(kUnfinished) - 1 && name.ends_with(kUnfinished) &&
         name.starts_with(final_name + ".") &&
         name.substr(begin, digits).find_first_not_of("0123456789abcdef") == std::string::npos;
}

Status write_text_file(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  RETURN_IF_ERROR(file.append(content.data(), static_cast<int64_t>(content.size())));
  return file.commit();
}

Status write_output(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(const Descriptor stream, open_stream(path));
  if (!stream.ok()) return write_text_file(path, content);
  for (size_t done = 0; done < content.size();) {
    const ssize_t n = write(stream.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Status(exit_of_write(errno), strf("%s: write error: %s; the output is incomplete",
                                               printable(path).c_str(), last_error().c_str()));
    }
    done += static_cast<size_t>(n);
  }
  return Status();
}

Status check_output(const std::string& path) {
  // To open a pipe and close it would end it for its reader.
  if (leads_to_stream(path)) return Status();
  return OutputFile::create(path).status();  // the destructor removes it
}

Status sync_directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const char* directory = parent.empty() ? "." : parent.c_str();
  const int fd = ::open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const std::string why = synced ? "" : last_error();
  if (fd >= 0) ::close(fd);
  if (synced) return Status();
  return Status(Exit::kIoError,
                strf("%s: flush of the directory failed: %s; do not rely on %s",
                     printable(directory).c_str(), why.c_str(), printable(path).c_str()));
}

}  // namespace pagoda
