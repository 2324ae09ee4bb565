// Reads the sizes of families that are planned and not yet trained from their config.json. Fields,
// defaults and rules are those of Transformers 5.23 (models/deepseek_v2, deepseek_v3).
#pragma once

#include <string>

#include "model/json_type.h"
#include "plan/machine/model_shape.h"

namespace pagoda {

bool is_planned_family(const std::string& model_type);

// REQUIRES: an object of a planned family. kBadData, naming `where` and the field. It does not
// repeat the checks of check_model.
Result<ModelShape> planned_family_shape(const Json& config, const std::string& where);

}  // namespace pagoda
