// One class for the GPU and the emulation, its methods defined across this folder by subject.
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/machine/machine.cuh"

namespace pagoda::PAGODA_MACHINE {

class CudaOps : public Ops {
 public:
  explicit CudaOps(Processor processor) : processor_(processor) {}

#include "kernels/ops_overrides.inc"

 private:
  Processor processor_;
};

}  // namespace pagoda::PAGODA_MACHINE
