#include "plan/machine/device_speeds.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pagoda {
namespace {

// The mean ratio of speeds to those that are listed, over devices that had work; 0: none had.
double mean_ratio(std::span<const double> measured, std::span<const double> listed) {
  double sum = 0;
  int count = 0;
  for (size_t d = 0; d < measured.size(); ++d) {
    sum += measured[d] / listed[d];
    count += measured[d] > 0;
  }
  return count > 0 ? sum / count : 0;
}

double sum_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

std::vector<double> speeds_of_all(std::span<const double> measured, std::span<const double> listed,
                                  std::span<const double> measured_other,
                                  std::span<const double> listed_other) {
  const double mean = mean_ratio(measured, listed);
  const double mean_other = mean_ratio(measured_other, listed_other);
  if (mean == 0) return {};
  std::vector<double> all(measured.begin(), measured.end());
  for (size_t d = 0; d < all.size(); ++d) {
    if (all[d] > 0) continue;
    const double ratio = measured_other[d] / listed_other[d];
    all[d] = listed[d] * mean * (ratio > 0 ? ratio / mean_other : 1);
  }
  return all;
}

bool shares_differ(std::span<const double> before, std::span<const double> after) {
  const double all_before = sum_of(before), all_after = sum_of(after);
  for (size_t d = 0; d < before.size(); ++d) {
    const double was = before[d] / all_before, is = after[d] / all_after;
    if (std::abs(is - was) > kLeastChange * was) return true;
  }
  return false;
}

std::vector<int64_t> attended_tokens(const RunShape& shape, const std::vector<int>& shard_device) {
  std::vector<int64_t> tokens(static_cast<size_t>(shape.devices), 0);
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    for (int64_t b = 0; b < shape.microbatches; ++b) {
      const int64_t shard = stage * shape.sums.shards + shape.sums.shard(b, shape.microbatches);
      tokens[static_cast<size_t>(device_of_shard(shard_device, shard))] += shape.microbatch_tokens;
    }
  }
  return tokens;
}

int64_t rows_with_token(const RunShape& shape) {
  if (shape.sharing != Sharing::kData) return 0;
  return shape.experts_per_token *
         (std::ssize(shape.is_moe) - std::count(shape.is_moe.begin(), shape.is_moe.end(), 0));
}

double busiest_device_s(const RunShape& shape, const std::vector<int>& shard_device,
                        std::span<const DeviceSetup> devices) {
  const std::vector<int64_t> tokens = attended_tokens(shape, shard_device);
  const int64_t rows = rows_with_token(shape);
  double busiest_s = 0;
  for (size_t d = 0; d < tokens.size(); ++d) {
    busiest_s = std::max(busiest_s, static_cast<double>(tokens[d]) / devices[d].token_speed(rows));
  }
  return busiest_s;
}

bool deal_pays(double gain_s, double step_s, double deal_s, int64_t steps_left) {
  const auto steps = static_cast<double>(std::min(kDealHorizon, steps_left));
  return gain_s > 0 && gain_s >= kLeastDealGain * step_s && gain_s * steps >= kDealWorth * deal_s;
}

}  // namespace pagoda
