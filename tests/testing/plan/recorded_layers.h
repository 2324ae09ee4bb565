// Layers as a recorded run had them (plan/step/routing_trace.h), for what drawn ones are used for
// too.
#pragma once

#include <string>

#include "plan/step/routing_trace.h"
#include "tests/testing/plan/served_layers.h"

namespace pagoda {

// The trace in a file. REQUIRES: it is one.
RoutingTrace read_routing(const std::string& path);
// tests/golden/routing_shakespeare.txt.
RoutingTrace golden_routing();

// A layer of a step, drawn from those of the trace, on 8 devices with as many experts each, which
// count as one. Bytes and seconds of a row as random_layer() has them. REQUIRES: experts that 8
// divides.
LayerSource recorded_layers(const RoutingTrace& trace);

}  // namespace pagoda
