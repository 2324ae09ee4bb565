#include "plan/exchange/routed_traffic.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "plan/refusals.h"

namespace pagoda {
namespace {

Status check_routing(const LayerRouting& routing, const ExpertDevices& device_of_expert,
                     int32_t devices, std::span<const int32_t> attends) {
  RETURN_IF_ERROR(check_integer("the number of devices", devices));
  RETURN_IF_ERROR(
      check_integer("the number of microbatches", static_cast<int64_t>(routing.size())));
  RETURN_IF_ERROR(
      check_integer("the number of experts", static_cast<int64_t>(device_of_expert.size())));
  for (const int32_t device : device_of_expert) {
    RETURN_IF_ERROR(check_integer("the device of an expert", device, 0, devices - 1));
  }
  if (!attends.empty()) {
    RETURN_IF_ERROR(check_count("the devices of microbatches", attends.size(), routing.size()));
    RETURN_IF_ERROR(check_indices("the devices of microbatches", attends, devices));
  }
  // The count of all rows times all devices must not overflow.
  const auto most = std::numeric_limits<int64_t>::max() / devices /
                    static_cast<int64_t>(routing.size() * device_of_expert.size());
  for (const std::vector<int64_t>& tokens : routing) {
    RETURN_IF_ERROR(check_count("the tokens of experts", tokens.size(), device_of_expert.size()));
    for (const int64_t count : tokens) {
      RETURN_IF_ERROR(check_integer("the tokens of an expert", count, 0, most));
    }
  }
  return Status();
}

SquareMatrix<double> attended_traffic(const LayerRouting& routing,
                                      const ExpertDevices& device_of_expert, int32_t devices,
                                      std::span<const int32_t> attends) {
  SquareMatrix<double> traffic(devices);
  for (size_t b = 0; b < routing.size(); ++b) {
    for (size_t e = 0; e < device_of_expert.size(); ++e) {
      traffic.at(attends[b], device_of_expert[e]) += static_cast<double>(routing[b][e]);
    }
  }
  return traffic;
}

}  // namespace

Result<SquareMatrix<double>> routed_traffic(const LayerRouting& routing,
                                            const ExpertDevices& device_of_expert, int32_t devices,
                                            std::span<const int32_t> attends) {
  RETURN_IF_ERROR(check_routing(routing, device_of_expert, devices, attends));
  if (!attends.empty()) return attended_traffic(routing, device_of_expert, devices, attends);
  const auto rows_of = [](const std::vector<int64_t>& tokens) {
    return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  };
  int64_t rows = 0;
  for (const std::vector<int64_t>& tokens : routing) rows += rows_of(tokens);
  SquareMatrix<double> traffic(devices);
  // Counts in parts of a row. A row has as many parts as there are devices, and a device's tokens
  // are `rows` parts.
  int64_t first = 0;
  for (const std::vector<int64_t>& tokens : routing) {
    const int64_t last = first + rows_of(tokens) * devices;
    for (int32_t i = 0; i < devices; ++i) {
      const int64_t own = std::min(last, (i + 1) * rows) - std::max(first, i * rows);
      if (own <= 0) continue;
      const double share = static_cast<double>(own) / static_cast<double>(last - first);
      for (size_t e = 0; e < tokens.size(); ++e) {
        traffic.at(i, device_of_expert[e]) += static_cast<double>(tokens[e]) * share;
      }
    }
    first = last;
  }
  return traffic;
}

}  // namespace pagoda
