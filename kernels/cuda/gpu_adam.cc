#include "kernels/gpu_adam.h"

#include "kernels/cuda/adam.h"

namespace pagoda {

void gpu_adam(const AdamStep& step, const AdamRecord& record, const void* grad, float grad_scale,
              int32_t* finite, Stream& s) {
  gpu::adam_update_on_device(step, record, grad, grad_scale, finite, s);
}

}  // namespace pagoda
