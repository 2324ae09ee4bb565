// The ops of GPUs that device/gpus.h opens. kernels/cuda is linked where it was built, and
// gpu_ops_none.cc elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "device/gpus.h"
#include "kernels/ops.h"

namespace pagoda {

// The architectures that the kernels were compiled for, as runs_on() takes them; empty: there are
// none.
std::string gpu_ops_architectures();

// What the bits of results depend on beside the inputs and the GPU; like cpu_ops_build().
std::string gpu_ops_build();

// Head sizes that attention has kernels for.
bool gpu_ops_take_head(int64_t head_dim);

// REQUIRES: the device is a GPU that the kernels run on, and outlives them.
std::unique_ptr<Ops> make_gpu_ops(Device& device);

}  // namespace pagoda
