#include "report/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace pagoda {
namespace {

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
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (must == Must::kBeNew ? O_EXCL : 0);
  const int file = ::open(path.c_str(), flags, 0600);
  if (file < 0) {
    const int error = errno;
    return Status(Exit::kCannotCreate,
                  printable(path) + ": " + std::strerror(error) + "; " + what + " need " +
                      (error == EEXIST ? "a new file" : "a file in a writable folder"));
  }
  std::unique_ptr<LineFile> lines(new LineFile(file, path, what));
  struct stat status;
  if (::fstat(file, &status) == 0) lines->bytes_ = status.st_size;
  return lines;
}

LineFile::~LineFile() {
  if (::close(file_) != 0 && !warned_) {
    log_warn(printable(path_) + ": " + std::strerror(errno) + "; the last lines may be missing");
  }
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
