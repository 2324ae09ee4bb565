// What a config.json says of each layer: whether it has experts, attends or convolves, and how far
// back it looks.
#pragma once

#include "model/config_fields.h"
#include "model/model_config.h"

namespace pagoda {

// Sets the layers that are dense, the convolutions, and how many layers predict further tokens.
// REQUIRES: family and num_layers are set.
void parse_layers(ConfigFields& f, ModelConfig& c);

// Sets sliding_window and sliding_layers. REQUIRES: likewise.
void parse_window(ConfigFields& f, ModelConfig& c);

}  // namespace pagoda
