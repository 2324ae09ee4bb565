// Names what a run computes with, so that one who resumes it elsewhere is told where bits may
// differ.
#pragma once

#include <optional>
#include <string>

#include "device/gpus.h"

namespace pagoda {

// The names of the GPU and its kernels, if there is one, then of the CPU's (kernels/kernel_set.h).
std::string kernel_set_with(const std::optional<Gpu>& gpu);

// What the bits of results depend on beside options and data: version, kernels, libraries.
std::string build_with(const std::optional<Gpu>& gpu);

}  // namespace pagoda
