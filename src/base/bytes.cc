#include "base/bytes.h"

#include <cmath>

namespace pagoda {
namespace {

// `round` takes the number of hundredths or tenths to the whole one that is shown.
std::string format(int64_t bytes, double (*round)(double)) {
  const double b = static_cast<double>(bytes);
  if (bytes >= kGiB) return strf("%.2f GiB", round(b / kGiB * 100) / 100);
  if (bytes >= kMiB) return strf("%.2f MiB", round(b / kMiB * 100) / 100);
  if (bytes >= 10 * kKiB) return strf("%.1f KiB", round(b / kKiB * 10) / 10);
  return strf("%lld B", static_cast<long long>(bytes));
}

}  // namespace

std::string format_bytes(int64_t bytes) { return format(bytes, std::nearbyint); }

std::string format_bytes_up(int64_t bytes) {
  // A multiple of 1/100 is not a binary fraction: what is typed back may be a byte short.
  return format(bytes, [](double hundredths) { return std::ceil(hundredths + 1e-6); });
}

}  // namespace pagoda
