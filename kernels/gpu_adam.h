// Adam on the GPU that device/gpus.h opens: kernels/cuda's, where kernels/gpu_ops.h's are linked.
#pragma once

#include <cstdint>

#include "optim/adam.h"

namespace pagoda {

// adam_update, to the bit, of a record in the GPU's memory, with a gradient there or none.
// Asynchronous; *finite, there too, becomes 1, or 0 where adam_update returns false.
void gpu_adam(const AdamStep& step, const AdamRecord& record, const void* grad, float grad_scale,
              int32_t* finite, Stream& s);

}  // namespace pagoda
