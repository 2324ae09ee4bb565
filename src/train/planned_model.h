// The architecture of a config.json as planning takes it.
#pragma once

#include "model/model_config.h"
#include "plan/model_shape.h"

namespace pagoda {

// Of a family that is trained, so that count_parameters equals what TensorTable holds.
ModelShape model_shape(const ModelConfig& config);

}  // namespace pagoda
