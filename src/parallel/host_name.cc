#include "parallel/host_name.h"

#include <unistd.h>

#include "base/log.h"

namespace pagoda {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? printable(name) : "?";
}

}  // namespace pagoda
