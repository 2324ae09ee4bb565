// CRC32C (Castagnoli), the checksum of every page and header. The only user of ISA-L, which runs it
// in hardware at several times the speed of an NVMe drive.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda {

// CRC32C of `bytes` bytes, as in RFC 3720 (initial value and final xor all ones).
uint32_t crc32c(const void* data, int64_t bytes);

}  // namespace pagoda
