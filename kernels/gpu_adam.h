// Adam on the GPU that device/gpus.h opens. It is linked together with the ops of
// kernels/gpu_ops.h.
#pragma once

#include <cstdint>

#include "optim/adam.h"

namespace pagoda {

// Does what adam_update does, to the bit, to a record in the GPU's memory, with a gradient there or
// none. Asynchronous; *finite, in the GPU's memory too, becomes 1, or 0 if adam_update would return
// false.
void gpu_adam(const AdamStep& step, const AdamRecord& record, const void* grad, float grad_scale,
              int32_t* finite, Stream& s);

}  // namespace pagoda
