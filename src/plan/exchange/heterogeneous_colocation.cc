#include "plan/exchange/heterogeneous_colocation.h"

#include <algorithm>

#include "plan/refusals.h"
#include "plan/rounds/bipartite_matching.h"

namespace pagoda {
namespace {

ModelPhases phases_on(const ExpertDemand& expert, const ServingDevice& device) {
  return {expert.gate_s / device.speed,
          std::max(expert.bytes.sent, expert.bytes.received) / device.bytes_per_s,
          expert.ffn_s / device.speed, expert.aggregate_s / device.speed};
}

std::vector<ExpertTraffic> traffic_of(std::span<const ExpertDemand> experts) {
  std::vector<ExpertTraffic> traffic;
  for (const ExpertDemand& expert : experts) traffic.push_back(expert.bytes);
  return traffic;
}

Status check_experts(std::span<const ExpertDemand> experts, size_t devices) {
  RETURN_IF_ERROR(check_count("experts of a model", experts.size(), devices));
  for (const ExpertDemand& expert : experts) {
    const double amounts[] = {expert.gate_s, expert.ffn_s, expert.aggregate_s, expert.bytes.sent,
                              expert.bytes.received};
    RETURN_IF_ERROR(check_amounts("seconds and bytes of an expert", amounts));
  }
  return Status();
}

Status check_triples(std::span<const ExpertDemand> a, std::span<const ExpertDemand> b,
                     std::span<const ServingDevice> devices) {
  RETURN_IF_ERROR(check_devices(devices));
  RETURN_IF_ERROR(check_experts(a, devices.size()));
  return check_experts(b, devices.size());
}

}  // namespace

std::vector<ExpertDemand> expert_demands(const MoeLayerLoad& layer) {
  std::vector<ExpertDemand> loads;
  for (const ExpertTraffic& bytes : expert_traffic(layer.traffic_bytes)) {
    const size_t e = loads.size();
    loads.push_back({layer.gate_s[e], layer.ffn_s[e], layer.aggregate_s[e], bytes});
  }
  return loads;
}

double colocated_device_s(const ExpertDemand& a, const ExpertDemand& b,
                          const ServingDevice& device) {
  const double both_bytes =
      std::max(a.bytes.sent + b.bytes.sent, a.bytes.received + b.bytes.received);
  return colocated_times(
             {phases_on(a, device), phases_on(b, device), both_bytes / device.bytes_per_s})
      .gate_a_s;
}

Result<HeterogeneousColocation> decoupled_colocation(std::span<const ExpertDemand> a,
                                                     std::span<const ExpertDemand> b,
                                                     std::span<const ServingDevice> devices) {
  RETURN_IF_ERROR(check_triples(a, b, devices));
  ASSIGN_OR_RETURN(const auto pairs, colocate(traffic_of(a), traffic_of(b)));
  SquareMatrix<double> weights(static_cast<int>(devices.size()));
  for (int d = 0; d < weights.size(); ++d) {
    for (int i = 0; i < weights.size(); ++i) {
      weights.at(d, i) = colocated_device_s(a[i], b[pairs.b_of_a[i]], devices[d]);
    }
  }
  ASSIGN_OR_RETURN(const auto matching, bottleneck_matching(weights));
  HeterogeneousColocation found{std::vector<int>(a.size()), std::vector<int>(b.size()),
                                matching.largest_weight};
  for (int d = 0; d < weights.size(); ++d) {
    const int i = matching.column_of_row[d];
    found.device_of_a[i] = d;
    found.device_of_b[pairs.b_of_a[i]] = d;
  }
  return found;
}

}  // namespace pagoda
