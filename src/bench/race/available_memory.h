// Whether this machine has the memory that a measurement wants to touch.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace pagoda {

// kHostMemory, with what is available, where that is less than `bytes`.
Status check_available(int64_t bytes);

}  // namespace pagoda
