// Names what a run computes with, so that one who resumes it elsewhere is told where bits may
// differ.
#pragma once

#include <string>
#include <vector>

#include "device/gpus.h"

namespace pagoda {

// The names of the GPUs' models and their kernels, if there are any, then of the CPU's
// (kernels/kernel_set.h).
std::string kernel_set_with(const std::vector<Gpu>& gpus);

// What the bits of results depend on beside options and data: version, kernels, libraries.
std::string build_with(const std::vector<Gpu>& gpus);

}  // namespace pagoda
