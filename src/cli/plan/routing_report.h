// The part of `pagoda plan --routing`'s report that is on recorded routing: what other homes of
// experts, and another order of all-to-alls, would bring.
#pragma once

#include <string>

#include "model/json_type.h"
#include "preview/routed_forecast.h"

namespace pagoda {

std::string routing_text(const RoutedForecast& routed);  // lines, each with its end
Json routing_json(const RoutedForecast& routed);

}  // namespace pagoda
