#include "tests/testing/plan/aurora_baselines.h"

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "plan/rounds/traffic.h"

namespace pagoda {

SendingOrder random_sending_order(int devices, uint64_t seed) {
  SendingOrder order(devices);
  for (int s = 0; s < devices; ++s) {
    for (int k = 0; k < devices; ++k) {
      order[s].push_back(static_cast<int>(random_permutation(seed, s, devices, k)));
    }
  }
  return order;
}

double concurrent_bound_s(const SquareMatrix<double>& traffic_bytes,
                          std::span<const double> bytes_per_s) {
  const std::vector<double> sent = sent_by_device(traffic_bytes);
  const std::vector<double> received = received_by_device(traffic_bytes);
  double most = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    most = std::max(most, std::max(sent[i], received[i]) / bytes_per_s[i]);
  }
  return most;
}

namespace {

std::vector<int> largest_first(std::span<const double> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  return order;
}

double most(const std::vector<double>& seconds) {
  return *std::max_element(seconds.begin(), seconds.end());
}

}  // namespace

std::vector<int> lina_packing(std::span<const double> loads) {
  CHECK(loads.size() % 2 == 0);
  std::vector<int> ascending(loads.size()), device_of_expert(loads.size());
  std::iota(ascending.begin(), ascending.end(), 0);
  std::stable_sort(ascending.begin(), ascending.end(),
                   [&](int a, int b) { return loads[a] < loads[b]; });
  for (size_t k = 0; k < loads.size() / 2; ++k) {
    device_of_expert[ascending[loads.size() - 1 - k]] = static_cast<int>(k);
    device_of_expert[ascending[k]] = static_cast<int>(k);
  }
  return device_of_expert;
}

std::vector<int> assign_by_load(std::span<const double> loads, std::span<const double> rates) {
  CHECK(loads.size() == rates.size());
  const std::vector<int> experts = largest_first(loads), devices = largest_first(rates);
  std::vector<int> device_of_expert(experts.size());
  for (size_t k = 0; k < experts.size(); ++k) device_of_expert[experts[k]] = devices[k];
  return device_of_expert;
}

std::vector<int> random_assignment(int count, uint64_t seed) {
  std::vector<int> permutation(count);
  for (int i = 0; i < count; ++i) {
    permutation[i] = static_cast<int>(random_permutation(seed, 0, count, i));
  }
  return permutation;
}

double barrier_time_s(const DevicePhases& phases, double dispatch_s, double combine_s) {
  return most(phases.gate_s) + dispatch_s + most(phases.ffn_s) + combine_s +
         most(phases.aggregate_s);
}

double utilisation(std::span<const DevicePhases> models, double time_s) {
  CHECK(!models.empty() && !models[0].gate_s.empty(), "utilisation of nothing");
  if (time_s == 0) return 0;
  double computed_s = 0;
  for (const DevicePhases& phases : models) {
    CHECK(phases.gate_s.size() == models[0].gate_s.size(), "models on different devices");
    for (size_t d = 0; d < phases.gate_s.size(); ++d) {
      computed_s += phases.gate_s[d] + phases.ffn_s[d] + phases.aggregate_s[d];
    }
  }
  return computed_s / (time_s * static_cast<double>(models[0].gate_s.size()));
}

}  // namespace pagoda
