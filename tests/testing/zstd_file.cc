#include "tests/testing/zstd_file.h"

#include <zstd.h>

#include "base/check.h"
#include "tests/testing/files.h"

namespace pagoda {

std::string get_zstd_file(const std::string& path) {
  const std::string packed = get_file(path);
  const unsigned long long bytes = ZSTD_getFrameContentSize(packed.data(), packed.size());
  CHECK(bytes < (1ull << 30), "%s: %llu bytes", path.c_str(), bytes);
  std::string text(bytes, '\0');
  const size_t got = ZSTD_decompress(text.data(), text.size(), packed.data(), packed.size());
  CHECK(got == bytes, "%s: %s", path.c_str(), ZSTD_getErrorName(got));
  return text;
}

}  // namespace pagoda
