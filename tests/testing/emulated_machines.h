// The cases of tools/gpu_check on emulated machines (kernels/cuda/machine/machine.cuh), instead of
// a GPU.
#pragma once

#include <vector>

#include "tools/gpu_check/trial.h"

namespace pagoda {

// What ops ask of the processor: nothing; whether it multiplies bf16; how many tiles occupy it too.
enum class Asks { kNothing, kUnit, kUnitAndTiles };

// Tries each case on the processors that differ for it; on a case's second run blocks and warps go
// backwards, and bits must be the same.
void try_emulated(const std::vector<check::OpCase>& cases, Asks asks);

}  // namespace pagoda
