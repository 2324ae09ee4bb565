#include "base/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/log.h"
#include "base/random.h"

namespace pagoda {
namespace {

constexpr int kDeepest = 8;  // folders within each other; nothing that pagoda makes has more
constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

Result<Descriptor> opened_folder(int fd, const std::string& path) {
  if (fd >= 0) return Descriptor(fd);
  const int error = errno;
  if (error == ENOTDIR || error == ELOOP) {
    return Status(Exit::kBadData, strf("%s: is not a folder, or is a link to one; links are "
                                       "refused here, and nothing was touched",
                                       printable(path).c_str()));
  }
  const bool no_fault = error == ENOENT || error == EACCES || error == EPERM;
  return Status(no_fault ? Exit::kNoInput : Exit::kIoError,
                strf("%s: cannot be opened: %s; check the path and its permissions",
                     printable(path).c_str(), std::strerror(error)));
}

bool is_regular(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

Result<Directory> Directory::open(const std::string& path, Links links) {
  const int flags = kOpenFolder | (links == Links::kRefuse ? O_NOFOLLOW : 0);
  ASSIGN_OR_RETURN(Descriptor handle, opened_folder(::open(path.c_str(), flags), path));
  return Directory(std::move(handle), path);
}

Result<Directory> Directory::folder(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  const int fd = ::openat(handle_.get(), name.c_str(), kOpenFolder | O_NOFOLLOW);
  ASSIGN_OR_RETURN(Descriptor handle, opened_folder(fd, path));
  return Directory(std::move(handle), path);
}

Result<Directory> Directory::make_folder(const std::string& prefix) const {
  const std::string name = prefix + random_digits();
  if (::mkdirat(handle_.get(), name.c_str(), 0700) != 0) {
    return failure(Exit::kCannotCreate, "cannot be created", name, errno);
  }
  ASSIGN_OR_RETURN(Directory made, folder(name));
  // Who may rename what is here could have put another one in its place.
  ASSIGN_OR_RETURN(const std::vector<std::string> inside, made.names());
  if (made.is_own() && inside.empty()) return made;
  return failure(Exit::kCannotCreate, "was replaced by another one", name, EPERM);
}

Result<Descriptor> Directory::file(const std::string& name) const {
  // O_NONBLOCK: opening a FIFO must not wait for its other end.
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Descriptor file(::openat(handle_.get(), name.c_str(), kFlags));
  if (!file.ok()) {
    const Exit code = errno == ENOENT ? Exit::kNoInput : Exit::kBadData;
    return failure(code, "cannot be opened", name, errno);
  }
  if (!is_regular(file.get())) return failure(Exit::kBadData, "is no regular file", name, EINVAL);
  return file;
}

Status Directory::make_file(const std::string& name, const std::string& content) const {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const Descriptor file(::openat(handle_.get(), name.c_str(), kFlags, 0600));
  const auto bytes = static_cast<ssize_t>(content.size());
  if (file.ok() && ::write(file.get(), content.data(), content.size()) == bytes) return Status();
  return failure(Exit::kCannotCreate, "cannot be created", name, errno);
}

Result<std::vector<std::string>> Directory::names() const {
  // A descriptor of its own: fdopendir() takes it away, and reading moves its place.
  const int fd = ::openat(handle_.get(), ".", kOpenFolder);
  const std::unique_ptr<DIR, int (*)(DIR*)> listed(fd >= 0 ? ::fdopendir(fd) : nullptr, ::closedir);
  if (!listed) {
    const Status status = failure(Exit::kIoError, "cannot be listed", "", errno);
    if (fd >= 0) ::close(fd);
    return status;
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listed.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return failure(Exit::kIoError, "cannot be listed", "", errno);
  std::sort(names.begin(), names.end());
  return names;
}

bool Directory::has_folder(const std::string& name) const { return S_ISDIR(kind_of(name)); }

bool Directory::has_link(const std::string& name) const { return S_ISLNK(kind_of(name)); }

// 0: nothing has that name.
mode_t Directory::kind_of(const std::string& name) const {
  struct stat info;
  const bool there = ::fstatat(handle_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  return there ? info.st_mode & S_IFMT : 0;
}

bool Directory::is_own() const {
  struct stat info;
  return ::fstat(handle_.get(), &info) == 0 && info.st_uid == ::geteuid();
}

Directory::Lock Directory::lock() const {
  if (::flock(handle_.get(), LOCK_EX | LOCK_NB) == 0) return Lock::kTaken;
  return errno == EWOULDBLOCK ? Lock::kTakenByAnother : Lock::kImpossible;
}

Status Directory::remove_file(const std::string& name) const {
  if (::unlinkat(handle_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return Status();
  const Exit code = errno == EISDIR ? Exit::kBadData : Exit::kIoError;
  return failure(code, "cannot be removed", name, errno);
}

Status Directory::remove_empty(const std::string& name) const {
  if (::unlinkat(handle_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
    return Status();
  }
  const bool other = errno == ENOTDIR || errno == ENOTEMPTY || errno == EEXIST;
  return failure(other ? Exit::kBadData : Exit::kIoError, "cannot be removed", name, errno);
}

Status Directory::remove_folder(const std::string& name) const {
  const Result<Directory> inner = folder(name);
  if (inner.status().code() == Exit::kNoInput) return Status();
  RETURN_IF_ERROR(inner.status());
  RETURN_IF_ERROR(inner.value().remove_all(kDeepest));
  return remove_empty(name);
}

Status Directory::remove_all(int deepest) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> inside, names());
  for (const std::string& name : inside) {
    if (!has_folder(name)) {
      RETURN_IF_ERROR(remove_file(name));
      continue;
    }
    if (deepest == 0) return failure(Exit::kIoError, "is too deep to be removed", name, ELOOP);
    ASSIGN_OR_RETURN(const Directory inner, folder(name));
    RETURN_IF_ERROR(inner.remove_all(deepest - 1));
    RETURN_IF_ERROR(remove_empty(name));
  }
  return Status();
}

Status Directory::failure(Exit code, const char* what, const std::string& name, int error) const {
  const std::string path = name.empty() ? path_ : path_ + "/" + name;
  return Status(code, strf("%s: %s: %s; check it and its permissions", printable(path).c_str(),
                           what, std::strerror(error)));
}

}  // namespace pagoda
