#include "offload/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "base/bytes.h"

namespace pagoda {

uint32_t crc32c(const void* data, int64_t bytes) {
  CHECK(bytes >= 0);
  // ISA-L takes an int length and a mutable pointer it only reads.
  auto* next = static_cast<unsigned char*>(const_cast<void*>(data));
  unsigned int crc = 0xffffffffu;
  while (bytes > 0) {
    const int64_t piece = std::min(bytes, kGiB);
    crc = crc32_iscsi(next, static_cast<int>(piece), crc);
    next += piece;
    bytes -= piece;
  }
  return ~crc;
}

}  // namespace pagoda
