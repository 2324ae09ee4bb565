#include "plan/rounds/traffic.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "plan/refusals.h"

namespace pagoda {
namespace {

template <typename T>
constexpr double kMostTraffic = std::numeric_limits<double>::max();
template <>
constexpr double kMostTraffic<int64_t> = 0x1p62;

Status check_links(const SquareMatrix<double>& traffic, std::span<const double> bytes_per_s) {
  RETURN_IF_ERROR(check_traffic(traffic));
  RETURN_IF_ERROR(check_count("bandwidths of devices", bytes_per_s.size(),
                              static_cast<size_t>(traffic.size())));
  return check_rates("bandwidths of devices", bytes_per_s);
}

}  // namespace

template <typename T>
Status check_traffic(const SquareMatrix<T>& traffic) {
  if (traffic.size() == 0) {
    return Status(Exit::kUsage, "traffic without devices; nothing was planned, name one");
  }
  double total = 0;
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) {
      const double amount = static_cast<double>(traffic.at(i, j));
      total += amount;
      if (std::isfinite(amount) && amount >= 0) continue;
      return Status(Exit::kUsage,
                    strf("traffic from device %d to device %d is %g, not a finite number of at "
                         "least 0; nothing was planned, correct it", i, j, amount));
    }
  }
  if (total < kMostTraffic<T>) return Status();
  return Status(Exit::kUsage, strf("traffic of all devices is %g, not below %g; nothing was "
                                   "planned, use a larger unit", total, kMostTraffic<T>));
}

template <typename T>
std::vector<T> sent_by_device(const SquareMatrix<T>& traffic) {
  std::vector<T> sums(traffic.size(), T());
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) sums[i] += i == j ? T() : traffic.at(i, j);
  }
  return sums;
}

template <typename T>
std::vector<T> received_by_device(const SquareMatrix<T>& traffic) {
  std::vector<T> sums(traffic.size(), T());
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) sums[j] += i == j ? T() : traffic.at(i, j);
  }
  return sums;
}

template <typename T>
T line_bound(const SquareMatrix<T>& traffic) {
  T most = T();
  for (T amount : sent_by_device(traffic)) most = std::max(most, amount);
  for (T amount : received_by_device(traffic)) most = std::max(most, amount);
  return most;
}

template Status check_traffic(const SquareMatrix<int64_t>&);
template Status check_traffic(const SquareMatrix<double>&);
template std::vector<int64_t> sent_by_device(const SquareMatrix<int64_t>&);
template std::vector<double> sent_by_device(const SquareMatrix<double>&);
template std::vector<int64_t> received_by_device(const SquareMatrix<int64_t>&);
template std::vector<double> received_by_device(const SquareMatrix<double>&);
template int64_t line_bound(const SquareMatrix<int64_t>&);
template double line_bound(const SquareMatrix<double>&);

SquareMatrix<double> reversed(const SquareMatrix<double>& traffic) {
  SquareMatrix<double> back(traffic.size());
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) back.at(j, i) = traffic.at(i, j);
  }
  return back;
}

SquareMatrix<double> placed(const SquareMatrix<double>& traffic,
                            std::span<const int> device_of_part,
                            std::span<const int> device_of_expert, int devices) {
  SquareMatrix<double> between(devices);
  for (int i = 0; i < traffic.size(); ++i) {
    for (int j = 0; j < traffic.size(); ++j) {
      between.at(device_of_part[i], device_of_expert[j]) += traffic.at(i, j);
    }
  }
  return between;
}

SquareMatrix<double> added(const SquareMatrix<double>& a, const SquareMatrix<double>& b) {
  CHECK(a.size() == b.size(), "a sum of %d and %d rows", a.size(), b.size());
  SquareMatrix<double> both = a;
  for (int i = 0; i < a.size(); ++i) {
    for (int j = 0; j < a.size(); ++j) both.at(i, j) += b.at(i, j);
  }
  return both;
}

Result<SquareMatrix<double>> link_seconds(const SquareMatrix<double>& traffic_bytes,
                                          std::span<const double> bytes_per_s) {
  RETURN_IF_ERROR(check_links(traffic_bytes, bytes_per_s));
  SquareMatrix<double> seconds = traffic_bytes;
  for (int i = 0; i < seconds.size(); ++i) {
    for (int j = 0; j < seconds.size(); ++j) {
      seconds.at(i, j) /= std::min(bytes_per_s[i], bytes_per_s[j]);
    }
  }
  RETURN_IF_ERROR(check_traffic(seconds));
  return seconds;
}

}  // namespace pagoda
