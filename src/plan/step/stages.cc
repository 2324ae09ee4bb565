#include "plan/step/stages.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda {

int64_t Stages::ordinal(int64_t layer) const {
  if (layers.empty()) return layer;
  return std::count(layers.begin(), layers.begin() + layer, of_layer(layer));
}

int64_t Stages::most_layers(int64_t num_layers) const {
  int64_t most = 0;
  for (int64_t l = 0; l < num_layers; ++l) most = std::max(most, ordinal(l) + 1);
  return most;
}

DeviceRange devices_of_stage(int stage, int stages, int devices) {
  const auto begin = [&](int s) { return (s * devices + stages - 1) / stages; };
  return {begin(stage), begin(stage + 1) - begin(stage)};
}

Stages divide_into_stages(int count, PipelineOrder order, int64_t num_layers, int devices) {
  CHECK(count > 0 && count <= num_layers && count <= devices);
  Stages stages;
  stages.count = count;
  stages.order = order;
  if (count == 1) return stages;
  for (int64_t l = 0; l < num_layers; ++l) {
    const bool in_turns = order == PipelineOrder::kBreadthFirst;
    stages.layers.push_back(static_cast<int>(in_turns ? l % count : l * count / num_layers));
  }
  for (int d = 0; d < devices; ++d) stages.devices.push_back(d * count / devices);
  return stages;
}

}  // namespace pagoda
