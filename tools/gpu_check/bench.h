// The benchmarks of gpu_check: times on the GPU by events, warm, of random data, in turns with what
// they are compared to; a line each with the median ratio and its goal.
#pragma once

#include "device/device.h"

namespace pagoda::check {

void run_benches(Device& device, Stream& stream);

}  // namespace pagoda::check
