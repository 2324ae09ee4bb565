// Refusals of nonsense among the numbers that planning is given, a line each: kUsage, naming the
// number and what it may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace pagoda {

// No size of a model or a cluster comes near it; products of five are exact in 128 bits.
inline constexpr int64_t kMaxCount = int64_t{1} << 24;

Status check_integer(const char* what, int64_t value, int64_t least = 1, int64_t most = kMaxCount);
// Finite and above zero: bytes or operations a second, bytes of something that exists.
Status check_rate(const char* what, double value);
// Finite and not below zero: seconds, a load.
Status check_amount(const char* what, double value);

// Of lists `what` is the plural of what the values are: "bandwidths of devices".

// At least one value, each a rate.
Status check_rates(const char* what, std::span<const double> values);
// Each value an amount.
Status check_amounts(const char* what, std::span<const double> values);
// There are as many as there must be, at least one.
Status check_count(const char* what, size_t count, size_t wanted);
// Each value is of [0, limit).
Status check_indices(const char* what, std::span<const int> values, int limit);

}  // namespace pagoda
