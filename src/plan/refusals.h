// Checks of the numbers that planning is given. A refusal is kUsage in one line that names the
// number and what it may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace pagoda {

// Whether a value is finite and above zero; and whether it is finite and not below zero.
bool is_rate(double value);
bool is_amount(double value);

// Refuses one subject: kUsage, "SUBJECT: what".
class Refusal {
 public:
  constexpr explicit Refusal(const char* subject) : subject_(subject) {}
  Status operator()(const std::string& what) const;

 private:
  const char* subject_;
};

// The largest accepted size. No model or cluster comes near it, and products of five sizes are
// exact in 128 bits.
inline constexpr int64_t kMaxCount = int64_t{1} << 24;

Status check_integer(const char* what, int64_t value, int64_t least = 1, int64_t most = kMaxCount);
// Checks a rate: bytes or operations a second, bytes of something that exists.
Status check_rate(const char* what, double value);
// Checks an amount: seconds, a load.
Status check_amount(const char* what, double value);

// For lists `what` is a plural: "bandwidths of devices".

// Checks that there is a value and that each is a rate.
Status check_rates(const char* what, std::span<const double> values);
// Checks that each value is an amount.
Status check_amounts(const char* what, std::span<const double> values);
// Checks that there are `wanted` values, and at least one.
Status check_count(const char* what, size_t count, size_t wanted);
// Checks that each value is in [0, limit).
Status check_indices(const char* what, std::span<const int> values, int limit);

}  // namespace pagoda
