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

}  // namespace pagoda
