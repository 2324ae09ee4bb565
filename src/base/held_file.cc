#include "base/held_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace pagoda {

Status check_held(int fd, const std::string& path) {
  struct stat held, found;
  const bool known = ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &found) == 0;
  if (known && held.st_dev == found.st_dev && held.st_ino == found.st_ino) return Status();
  const std::string why = known ? "another one is there now" : std::strerror(errno);
  return Status(Exit::kIoError,
                strf("%s was removed, moved or replaced while this run wrote to it: %s; a "
                     "removed one is lost; a moved one is intact, so put it back and resume",
                     printable(path).c_str(), why.c_str()));
}

}  // namespace pagoda
