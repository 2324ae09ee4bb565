#include "preview/stage_balance.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "plan/step/stages.h"

namespace pagoda {
namespace {

// [stage] how long the busiest of its devices computes in the step.
std::vector<double> busy_of_stages(const RanksForecast& forecast) {
  const int stages = static_cast<int>(std::ssize(forecast.stage_layers));
  const std::vector<double>& busy_s = forecast.step.device_busy_s;
  std::vector<double> of_stages;
  for (int stage = 0; stage < stages; ++stage) {
    const DeviceRange own = devices_of_stage(stage, stages, static_cast<int>(busy_s.size()));
    of_stages.push_back(*std::max_element(busy_s.begin() + own.first, busy_s.begin() + own.end()));
  }
  return of_stages;
}

}  // namespace

std::vector<int64_t> layers_by_time(const RanksForecast& forecast) {
  const std::vector<int64_t>& now = forecast.stage_layers;
  std::vector<double> speeds = busy_of_stages(forecast);
  for (size_t s = 0; s < speeds.size(); ++s) speeds[s] = static_cast<double>(now[s]) / speeds[s];
  const int64_t layers = std::accumulate(now.begin(), now.end(), int64_t{0});
  const int stages = static_cast<int>(std::ssize(now));
  return divide_into_stages(stages, PipelineOrder::kGpipe, layers, stages, speeds)
      .layer_counts(layers);
}

std::vector<int64_t> one_layer_moved(const RanksForecast& forecast) {
  std::vector<int64_t> layers = forecast.stage_layers;
  const std::vector<double> busy_s = busy_of_stages(forecast);
  const auto at = [&](auto found) { return static_cast<size_t>(found - busy_s.begin()); };
  const size_t longest = at(std::ranges::max_element(busy_s));
  if (layers[longest] == 1) return {};
  --layers[longest];
  ++layers[at(std::ranges::min_element(busy_s))];
  return layers;
}

}  // namespace pagoda
