#include "tests/testing/plan/random_traffic.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace pagoda {
namespace {

double lognormal(double sigma, uint64_t seed, uint64_t a, uint64_t b) {
  return std::exp(sigma * random_normal(seed, RandomPurpose::kTest, a, b));
}

}  // namespace

SquareMatrix<double> lognormal_traffic(int devices, double sigma, uint64_t seed) {
  SquareMatrix<double> traffic(devices);
  for (int i = 0; i < devices; ++i) {
    for (int j = 0; j < devices; ++j) traffic.at(i, j) = i == j ? 0 : lognormal(sigma, seed, i, j);
  }
  return traffic;
}

MoeLayerLoad random_layer(int experts, double sigma, uint64_t seed) {
  constexpr double kTokens = 1024, kTokenBytes = 4096, kFfnTokenS = 60e-9;
  MoeLayerLoad layer;
  layer.traffic_bytes = SquareMatrix<double>(experts);
  layer.gate_s.assign(experts, 20e-6);
  layer.aggregate_s.assign(experts, 20e-6);
  layer.ffn_s.assign(experts, 0);
  std::vector<double> popularity;
  for (int e = 0; e < experts; ++e) popularity.push_back(lognormal(sigma, seed, 1000, e));
  const double all = std::accumulate(popularity.begin(), popularity.end(), 0.0);
  for (int i = 0; i < experts; ++i) {
    for (int e = 0; e < experts; ++e) {
      const double tokens = kTokens * popularity[e] / all * lognormal(0.2, seed, i, e);
      layer.traffic_bytes.at(i, e) = tokens * kTokenBytes;
      layer.ffn_s[e] += tokens * kFfnTokenS;
    }
  }
  return layer;
}

void each_permutation(int n, const std::function<void(const std::vector<int>&)>& call) {
  std::vector<int> permutation(n);
  std::iota(permutation.begin(), permutation.end(), 0);
  do {
    call(permutation);
  } while (std::next_permutation(permutation.begin(), permutation.end()));
}

}  // namespace pagoda
