#include "plan/exchange/expert_assignment.h"

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

std::vector<int> largest_first(std::span<const double> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[a] > values[b]; });
  return order;
}

}  // namespace

Result<std::vector<int>> assign_by_load(std::span<const double> loads,
                                        std::span<const double> rates) {
  RETURN_IF_ERROR(check_count("loads of experts", loads.size(), rates.size()));
  RETURN_IF_ERROR(check_amounts("loads of experts", loads));
  RETURN_IF_ERROR(check_rates("rates of devices", rates));
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

}  // namespace pagoda
