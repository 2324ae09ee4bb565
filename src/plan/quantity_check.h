// Refuses quantities that make no sense, with Exit::kUsage and one line. `what` is the plural of
// what the values are, for the line: "bandwidths of devices".
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace pagoda {

// At least one value, each finite and above 0: bandwidths, speeds.
Status check_rates(const char* what, std::span<const double> values);

// Each value finite and not negative: seconds, bytes, tokens.
Status check_amounts(const char* what, std::span<const double> values);

// There are as many as there must be, at least one.
Status check_count(const char* what, size_t count, size_t wanted);

// Each value is of [0, limit).
Status check_indices(const char* what, std::span<const int> values, int limit);

}  // namespace pagoda
