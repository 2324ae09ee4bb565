// The cases of tools/gpu_check on emulated machines (kernels/cuda/machine.cuh), instead of a GPU.
#pragma once

#include <vector>

#include "tools/gpu_check/trial.h"

namespace pagoda {

// Tries each case on processors with and without tensor cores; on a case's second run blocks and
// warps go backwards, and bits must be the same.
void try_emulated(const std::vector<check::OpCase>& cases);

}  // namespace pagoda
