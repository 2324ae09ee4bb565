#include "bench/race/available_memory.h"

#include "base/bytes.h"
#include "hardware/machine.h"

namespace pagoda {

Status check_available(int64_t bytes) {
  const int64_t available = machine_memory().available_bytes;
  if (bytes <= available) return Status();
  return Status(Exit::kHostMemory,
                strf("this measurement needs %s of memory, and %s are available; lower --bytes or "
                     "--page_bytes",
                     format_bytes_up(bytes).c_str(), format_bytes(available).c_str()));
}

}  // namespace pagoda
