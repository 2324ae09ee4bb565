// Declares the type of a JSON value, for headers that only pass one on (model/json.h reads it).
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace pagoda {

using Json = nlohmann::json;

}  // namespace pagoda
