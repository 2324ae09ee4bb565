#include "base/bytes.h"

namespace pagoda {

std::string format_bytes(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= kGiB) return strf("%.2f GiB", b / kGiB);
  if (bytes >= kMiB) return strf("%.2f MiB", b / kMiB);
  if (bytes >= 10 * kKiB) return strf("%.1f KiB", b / kKiB);
  return strf("%lld B", static_cast<long long>(bytes));
}

}  // namespace pagoda
