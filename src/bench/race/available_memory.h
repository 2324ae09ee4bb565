// Checks that this machine has the memory that a measurement touches.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace pagoda {

// kHostMemory, naming the available bytes, if they are fewer than `bytes`.
Status check_available(int64_t bytes);

}  // namespace pagoda
