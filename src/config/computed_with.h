// What a run computes with, in words: who resumes it elsewhere is told where bits may differ.
#pragma once

#include <optional>
#include <string>

#include "device/gpus.h"

namespace pagoda {

// By name: the GPU and its kernels, if there is one, then the CPU's (kernels/kernel_set.h).
std::string kernel_set_with(const std::optional<Gpu>& gpu);

// All that the bits of results depend on beside options and data: version, kernels, libraries.
std::string build_with(const std::optional<Gpu>& gpu);

}  // namespace pagoda
