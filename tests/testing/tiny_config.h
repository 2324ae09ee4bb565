// config.json of a Qwen3-MoE small enough for tests: 2 layers (the first dense), 3 experts.
#pragma once

#include "model/json_type.h"

namespace pagoda {

Json tiny_config();

}  // namespace pagoda
