#include "plan/exchange/inference_time.h"

#include <algorithm>

#include "plan/refusals.h"
#include "plan/rounds/traffic.h"

namespace pagoda {
namespace {

std::span<const int> places_of_parts(const PlacedLayer& layer) {
  return layer.device_of_part.empty() ? layer.device_of_expert : layer.device_of_part;
}

Status check_layer(const PlacedLayer& layer, int devices) {
  const MoeLayerLoad& load = layer.load;
  RETURN_IF_ERROR(check_traffic(load.traffic_bytes));
  const auto experts = static_cast<size_t>(load.traffic_bytes.size());
  RETURN_IF_ERROR(check_count("gate times of experts", load.gate_s.size(), experts));
  RETURN_IF_ERROR(check_count("computing times of experts", load.ffn_s.size(), experts));
  RETURN_IF_ERROR(check_count("aggregation times of experts", load.aggregate_s.size(), experts));
  RETURN_IF_ERROR(check_amounts("gate times of experts", load.gate_s));
  RETURN_IF_ERROR(check_amounts("computing times of experts", load.ffn_s));
  RETURN_IF_ERROR(check_amounts("aggregation times of experts", load.aggregate_s));
  RETURN_IF_ERROR(check_count("devices of experts", layer.device_of_expert.size(), experts));
  RETURN_IF_ERROR(check_indices("devices of experts", layer.device_of_expert, devices));
  RETURN_IF_ERROR(check_count("devices of parts", places_of_parts(layer).size(), experts));
  return check_indices("devices of parts", places_of_parts(layer), devices);
}

std::vector<double> rates_of(std::span<const ServingDevice> devices,
                             double ServingDevice::*rate) {
  std::vector<double> rates;
  for (const ServingDevice& device : devices) rates.push_back(device.*rate);
  return rates;
}

// [device] seconds of work whose places are these.
std::vector<double> on_devices(const std::vector<double>& work_s, std::span<const int> places,
                               std::span<const ServingDevice> devices) {
  std::vector<double> seconds(devices.size(), 0);
  for (size_t e = 0; e < work_s.size(); ++e) {
    const int device = places[e];
    seconds[device] += work_s[e] / devices[device].speed;
  }
  return seconds;
}

std::vector<double> busier_direction(const SquareMatrix<double>& seconds) {
  std::vector<double> most = sent_by_device(seconds);
  const std::vector<double> received = received_by_device(seconds);
  for (size_t d = 0; d < most.size(); ++d) most[d] = std::max(most[d], received[d]);
  return most;
}

SquareMatrix<double> between_devices(const PlacedLayer& layer, size_t devices) {
  return placed(layer.load.traffic_bytes, places_of_parts(layer), layer.device_of_expert,
                static_cast<int>(devices));
}

double most(const std::vector<double>& seconds) {
  return *std::max_element(seconds.begin(), seconds.end());
}

double most_together(const std::vector<double>& first_s, const std::vector<double>& then_s) {
  double longest_s = 0;
  for (size_t d = 0; d < first_s.size(); ++d) {
    longest_s = std::max(longest_s, first_s[d] + then_s[d]);
  }
  return longest_s;
}

ModelPhases longest(const DevicePhases& phases) {
  return {most(phases.gate_s), most(phases.all_to_all_s), most(phases.ffn_s),
          most(phases.aggregate_s)};
}

}  // namespace

Status check_devices(std::span<const ServingDevice> devices) {
  const auto bytes_per_s = rates_of(devices, &ServingDevice::bytes_per_s);
  RETURN_IF_ERROR(check_rates("bandwidths of devices", bytes_per_s));
  return check_rates("speeds of devices", rates_of(devices, &ServingDevice::speed));
}

Result<DevicePhases> device_phases(const PlacedLayer& layer,
                                   std::span<const ServingDevice> devices) {
  RETURN_IF_ERROR(check_devices(devices));
  RETURN_IF_ERROR(check_layer(layer, static_cast<int>(devices.size())));
  ASSIGN_OR_RETURN(const auto seconds,
                   link_seconds(between_devices(layer, devices.size()),
                                rates_of(devices, &ServingDevice::bytes_per_s)));
  const std::span<const int> parts = places_of_parts(layer);
  return DevicePhases{on_devices(layer.load.gate_s, parts, devices),
                      on_devices(layer.load.ffn_s, layer.device_of_expert, devices),
                      on_devices(layer.load.aggregate_s, parts, devices),
                      busier_direction(seconds)};
}

double exclusive_time_s(const DevicePhases& phases) {
  return most_together(phases.gate_s, phases.all_to_all_s) +
         most_together(phases.ffn_s, phases.all_to_all_s) + most(phases.aggregate_s);
}

ColocatedTimes colocated_times(const ColocatedPhases& phases) {
  const auto& [a, b, both_s] = phases;
  ColocatedTimes end;
  end.gate_b_s = b.gate_s;
  end.dispatch_a_s = a.all_to_all_s;
  end.ffn_a_s = std::max(end.gate_b_s, end.dispatch_a_s) + a.ffn_s;
  end.dispatch_b_s = std::max(both_s, end.gate_b_s + b.all_to_all_s);
  end.ffn_b_s = std::max(end.ffn_a_s, end.dispatch_b_s) + b.ffn_s;
  end.combine_a_s = std::max(both_s, end.ffn_a_s) + a.all_to_all_s;
  end.aggregate_a_s = std::max(end.ffn_b_s, end.combine_a_s) + a.aggregate_s;
  end.combine_b_s =
      std::max(std::max(both_s, end.ffn_a_s) + both_s, end.ffn_b_s + b.all_to_all_s);
  end.aggregate_b_s = std::max(end.aggregate_a_s, end.combine_b_s) + b.aggregate_s;
  end.gate_a_s = end.aggregate_b_s + a.gate_s;
  return end;
}

Result<ColocatedPhases> colocated_phases(const PlacedLayer& a, const PlacedLayer& b,
                                         std::span<const ServingDevice> devices) {
  ASSIGN_OR_RETURN(const auto of_a, device_phases(a, devices));
  ASSIGN_OR_RETURN(const auto of_b, device_phases(b, devices));
  const auto both = added(between_devices(a, devices.size()), between_devices(b, devices.size()));
  ASSIGN_OR_RETURN(const auto seconds,
                   link_seconds(both, rates_of(devices, &ServingDevice::bytes_per_s)));
  return ColocatedPhases{longest(of_a), longest(of_b), line_bound(seconds)};
}

}  // namespace pagoda
