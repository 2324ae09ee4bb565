#include "plan/refusals.h"

#include <cmath>

namespace pagoda {

Status check_integer(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status();
  return Status(Exit::kUsage, strf("%s is %lld; it must be an integer from %lld to %lld", what,
                                   (long long)value, (long long)least, (long long)most));
}

Status check_rate(const char* what, double value) {
  if (std::isfinite(value) && value > 0) return Status();
  return Status(Exit::kUsage, strf("%s is %g; it must be a finite number above zero", what, value));
}

Status check_amount(const char* what, double value) {
  if (std::isfinite(value) && value >= 0) return Status();
  return Status(Exit::kUsage,
                strf("%s is %g; it must be a finite number not below zero", what, value));
}

}  // namespace pagoda
