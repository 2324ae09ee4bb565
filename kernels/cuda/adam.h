// Adam for records that stay on the device: it gives every bit of the update of optim/adam.h, for
// all formats of state. Square root and division are correctly rounded on both, nothing is fused,
// and stochastic rounding draws the same noise (optim/moments.h). Only a record that an update with
// NaN has ruined may differ.
#pragma once

#include "optim/adam.h"

namespace pagoda {

// The record's pages and the gradient lie in device memory. Asynchronous; *finite (device memory)
// becomes 1, or 0 where adam_update would return false.
using DeviceAdam = void(const AdamStep& step, const AdamRecord& record, const void* grad,
                        float grad_scale, int32_t* finite, Stream& s);

namespace gpu {
DeviceAdam adam_update_on_device;  // where the build has CUDA
}
namespace emulated {
DeviceAdam adam_update_on_device;  // for tests, on a host stream
}

}  // namespace pagoda
