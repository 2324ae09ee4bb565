#include "device/gpus.h"

#include <cstdlib>
#include <sstream>

#include "base/bytes.h"

namespace pagoda {

std::string Gpu::text() const {
  return strf("GPU %d (%s, sm_%d%d, %s)", index, name.c_str(), major, minor,
              format_bytes(memory_bytes).c_str());
}

bool runs_on(const std::string& architectures, const Gpu& gpu) {
  const long own = 10 * gpu.major + gpu.minor;
  std::istringstream list(architectures);
  for (std::string entry; std::getline(list, entry, ',');) {
    char* rest = nullptr;
    const long architecture = std::strtol(entry.c_str(), &rest, 10);
    if (rest == entry.c_str()) continue;
    if (*rest == '\0' ? architecture <= own : architecture == own) return true;
  }
  return false;
}

}  // namespace pagoda
