// The best places of experts by trying all, for small numbers of devices: what plans are judged by.
#pragma once

#include <vector>

#include "plan/exchange/heterogeneous_colocation.h"

namespace pagoda {

// The least time of the slowest device (plan/exchange/heterogeneous_colocation.h) over all ways to
// give every device an expert of each model. O(n!^2) for n devices.
double fastest_colocation_s(const std::vector<ExpertDemand>& a, const std::vector<ExpertDemand>& b,
                            const std::vector<ServingDevice>& devices);

}  // namespace pagoda
