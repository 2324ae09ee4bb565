// JSON as values of templates.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "template/value.h"

namespace pagoda {

// JSON whose objects keep the order of their keys, which tojson shows.
using OrderedJson = nlohmann::ordered_json;

// REQUIRES: strings are well-formed UTF-8. An integer above 64 bits with a sign becomes a float.
jinja::Value template_value(const OrderedJson& json);

}  // namespace pagoda
