// One class for the GPU and the emulation, its methods defined across this folder by subject.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/machine/machine.cuh"

namespace pagoda::PAGODA_MACHINE {

// Calls launch(part) for parts of `all`, in order, that a launch has room for.
template <typename T, typename Launch>
void in_launches(std::span<const T> all, const Launch& launch) {
  while (!all.empty()) {
    const size_t count = std::min(all.size(), size_t{kMostTogether});
    launch(all.first(count));
    all = all.subspan(count);
  }
}

class CudaOps : public Ops {
 public:
  explicit CudaOps(Processor processor) : processor_(processor) {}

#include "kernels/ops_overrides.inc"

 private:
  Processor processor_;
};

}  // namespace pagoda::PAGODA_MACHINE
