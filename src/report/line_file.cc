#include "report/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/log.h"

namespace pagoda {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 16;
constexpr size_t kMostLineBytes = size_t{1} << 24;

bool write_all(int file, std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t moved = ::write(file, text.data() + done, text.size() - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<LineFile>> LineFile::open(const std::string& path, const char* what,
                                                 Must must) {
  // O_NONBLOCK: opening a FIFO must not wait for its other end.
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const int file =
      ::open(path.c_str(), kFlags | O_CLOEXEC | (must == Must::kBeNew ? O_EXCL : 0), 0600);
  if (file < 0) {
    const int error = errno;
    const char* need = error == EEXIST  ? "a new file"
                       : error == ELOOP ? "the file itself, no link to one"
                                        : "a file in a writable folder";
    return Status(Exit::kCannotCreate,
                  printable(path) + ": " + std::strerror(error) + "; " + what + " need " + need);
  }
  std::unique_ptr<LineFile> lines(new LineFile(file, path, what));
  struct stat status = {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    return Status(Exit::kCannotCreate,
                  printable(path) + ": is no regular file; " + what + " need one");
  }
  if (status.st_nlink > 1) {
    return Status(Exit::kCannotCreate, printable(path) + ": " + kOtherName);
  }
  lines->bytes_ = status.st_size;
  return lines;
}

LineFile::~LineFile() {
  if (::close(file_) != 0 && !warned_) {
    log_warn(printable(path_) + ": " + std::strerror(errno) + "; the last lines may be missing");
  }
}

Result<int64_t> LineFile::kept_bytes(const std::function<bool(std::string_view)>& keep) const {
  std::string text;  // read and not yet told
  int64_t kept = 0;
  for (int64_t at = 0;;) {
    char block[kBlockBytes];
    const ssize_t got = ::pread(file_, block, sizeof(block), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return Status(Exit::kIoError, printable(path_) + ": cannot be read: " +
                                        std::strerror(errno) + "; check the disk");
    }
    if (got == 0) break;
    at += got;
    text.append(block, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (!keep(std::string_view(text).substr(begin, end + 1 - begin))) return kept;
      kept += static_cast<int64_t>(end + 1 - begin);
    }
    text.erase(0, begin);
    if (text.size() > kMostLineBytes) {
      return Status(Exit::kCannotCreate, printable(path_) + ": has a line of more than 16 MiB, " +
                                             "so it holds no " + what_ + "; it stays as it is");
    }
  }
  if (!text.empty()) (void)keep(text);
  return kept;
}

Status LineFile::cut(int64_t bytes) {
  bytes_ = bytes;
  if (::ftruncate(file_, bytes) == 0) return Status();
  return Status(Exit::kCannotCreate,
                printable(path_) + ": cannot be cut to the resumed step: " + std::strerror(errno));
}

void LineFile::add(std::string_view lines) {
  if (write_all(file_, lines)) {
    bytes_ += static_cast<int64_t>(lines.size());
    return;
  }
  const std::string reason = std::strerror(errno);
  // Half a line would spoil the next one.
  const bool cut = ::ftruncate(file_, bytes_) == 0;
  if (warned_) return;
  warned_ = true;
  log_warn(printable(path_) + ": " + reason + "; training goes on, " + what_ + " are being lost" +
           (cut ? "" : " and a line is broken"));
}

}  // namespace pagoda
