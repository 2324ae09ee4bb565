#include "plan/refusals.h"

#include <cmath>

namespace pagoda {

bool is_rate(double value) { return std::isfinite(value) && value > 0; }
bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

Status Refusal::operator()(const std::string& what) const {
  return Status(Exit::kUsage, subject_ + (": " + what));
}

namespace {

Status refusal(const std::string& line) {
  return Status(Exit::kUsage, line + "; nothing was planned, correct it");
}

}  // namespace

Status check_integer(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status();
  return Status(Exit::kUsage, strf("%s is %lld; it must be an integer from %lld to %lld", what,
                                   (long long)value, (long long)least, (long long)most));
}

Status check_rate(const char* what, double value) {
  if (is_rate(value)) return Status();
  return Status(Exit::kUsage, strf("%s is %g; it must be a finite number above zero", what, value));
}

Status check_amount(const char* what, double value) {
  if (is_amount(value)) return Status();
  return Status(Exit::kUsage,
                strf("%s is %g; it must be a finite number not below zero", what, value));
}

Status check_rates(const char* what, std::span<const double> values) {
  if (values.empty()) return refusal(strf("%s: there are none", what));
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_rate(values[i])) continue;
    return refusal(strf("%s: number %zu is %g, not a finite number above 0", what, i, values[i]));
  }
  return Status();
}

Status check_amounts(const char* what, std::span<const double> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_amount(values[i])) continue;
    return refusal(strf("%s: number %zu is %g, not a finite number of at least 0", what, i,
                        values[i]));
  }
  return Status();
}

Status check_count(const char* what, size_t count, size_t wanted) {
  if (count == 0) return refusal(strf("%s: there are none", what));
  if (count == wanted) return Status();
  return refusal(strf("%s: there are %zu, not %zu", what, count, wanted));
}

Status check_indices(const char* what, std::span<const int> values, int limit) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] < limit) continue;
    return refusal(strf("%s: number %zu is %d, not of [0, %d)", what, i, values[i], limit));
  }
  return Status();
}

}  // namespace pagoda
