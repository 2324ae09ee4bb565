#include "plan/step/stages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/step/assignment.h"

namespace pagoda {

int64_t Stages::ordinal(int64_t layer) const {
  if (layers.empty()) return layer;
  return std::count(layers.begin(), layers.begin() + layer, of_layer(layer));
}

std::vector<int64_t> Stages::layer_counts(int64_t num_layers) const {
  std::vector<int64_t> counts(static_cast<size_t>(count), 0);
  for (int64_t l = 0; l < num_layers; ++l) ++counts[static_cast<size_t>(of_layer(l))];
  return counts;
}

int64_t Stages::most_layers(int64_t num_layers) const {
  const std::vector<int64_t> counts = layer_counts(num_layers);
  return *std::max_element(counts.begin(), counts.end());
}

DeviceRange devices_of_stage(int stage, int stages, int devices) {
  const auto begin = [&](int s) { return (s * devices + stages - 1) / stages; };
  return {begin(stage), begin(stage + 1) - begin(stage)};
}

namespace {

// [stage] its layers. One that is too slow for any takes one of those that would end last.
std::vector<int64_t> counts_by_speed(int64_t num_layers, std::span<const double> speeds) {
  std::vector<int64_t> counts(speeds.size(), 0);
  for (const int stage : deal(num_layers, speeds)) ++counts[static_cast<size_t>(stage)];
  const auto ends = [&](size_t s) { return static_cast<double>(counts[s]) / speeds[s]; };
  for (size_t none = 0; none < counts.size(); ++none) {
    if (counts[none] > 0) continue;
    size_t last = 0;
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] > 1 && (counts[last] < 2 || ends(s) > ends(last))) last = s;
    }
    --counts[last];
    ++counts[none];
  }
  return counts;
}

// [layer] its stage, of stages that differ in speed. In turns, a stage's k-th layer of n stands
// (k + 1/2) / n of the way through the model, so that no stage waits for all layers of another.
std::vector<int> layers_by_speed(bool in_turns, int64_t num_layers,
                                 std::span<const double> speeds) {
  const std::vector<int64_t> counts = counts_by_speed(num_layers, speeds);
  std::vector<std::pair<double, int>> turns;
  for (size_t s = 0; s < counts.size(); ++s) {
    for (int64_t k = 0; k < counts[s]; ++k) {
      const double way = (static_cast<double>(k) + 0.5) / static_cast<double>(counts[s]);
      turns.emplace_back(in_turns ? way : 0, static_cast<int>(s));
    }
  }
  std::sort(turns.begin(), turns.end());
  std::vector<int> layers;
  for (const auto& turn : turns) layers.push_back(turn.second);
  return layers;
}

}  // namespace

Stages divide_into_stages(int count, PipelineOrder order, int64_t num_layers, int devices,
                          std::span<const double> speeds) {
  CHECK(count > 0 && count <= num_layers && count <= devices);
  CHECK(speeds.empty() || std::ssize(speeds) == count);
  Stages stages;
  stages.count = count;
  stages.order = order;
  if (count == 1) return stages;
  const bool in_turns = order == PipelineOrder::kBreadthFirst;
  const bool unequal = std::ranges::any_of(speeds, [&](double s) { return s != speeds.front(); });
  if (unequal) {
    stages.speeds.assign(speeds.begin(), speeds.end());
    stages.layers = layers_by_speed(in_turns, num_layers, speeds);
  }
  for (int64_t l = 0; l < num_layers && !unequal; ++l) {
    stages.layers.push_back(static_cast<int>(in_turns ? l % count : l * count / num_layers));
  }
  for (int d = 0; d < devices; ++d) stages.devices.push_back(d * count / devices);
  return stages;
}

}  // namespace pagoda
