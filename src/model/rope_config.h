// Rotary embedding as a config.json states it.
#pragma once

#include "model/config_fields.h"
#include "model/model_config.h"

namespace pagoda {

// Sets rotation, rotary_dim and query_scale. REQUIRES: the sizes of heads are set.
void parse_rope(ConfigFields& f, ModelConfig& c);

}  // namespace pagoda
