#include "preview/planned_layout.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "preview/few_layers.h"
#include "preview/zebra_choice.h"

namespace pagoda {
namespace {

// The layers of both runs with few, where stages have so many.
int64_t layers_of_both(std::span<const int64_t> whole, const RunConfig& config) {
  const std::vector<int64_t> few = few_layers(whole, config.copies() > 1);
  return 3 * std::accumulate(few.begin(), few.end(), int64_t{0});
}
// The same before it is planned how unequal stages are.
int64_t layers_of_both(const RunConfig& config) {
  return layers_of_both(std::vector<int64_t>(static_cast<size_t>(config.stages()), 1), config);
}

bool by_few_layers(const ModelShape& model, const RunConfig& config) {
  return parcels(model.num_layers(), config) > kFewParcels &&
         layers_of_both(config) < model.num_layers() && has_alike_layers(model);
}

}  // namespace

int64_t parcels(int64_t layers, const RunConfig& config) {
  const int64_t copies = config.copies();
  const int64_t together = config.num_devices() / (config.stages() * copies);
  const int64_t of_device = std::max({int64_t{4}, together, copies});
  return layers * config.train.chunks * config.num_devices() * of_device;
}

int64_t simulated_layers(const ModelShape& model, const RunConfig& config) {
  return by_few_layers(model, config) ? layers_of_both(config) : model.num_layers();
}

bool may_be_few(const ModelShape& model, const RunConfig& config) {
  if (!config.zebra() || config.stages() == 1 || !by_few_layers(model, config)) return true;
  return config.parallel.order == PipelineOrder::kBreadthFirst &&
         config.train.chunks == 2 * config.stages();
}

Result<PlannedLayout> plan_layout(const ModelSizes& model, std::vector<RunConfig> configs,
                                  const ClusterSheet& cluster) {
  for (RunConfig& config : configs) take_network_rates(cluster, config);
  ASSIGN_OR_RETURN(std::vector<PlannedRun> planned, planned_ranks(model, configs, cluster));
  const int64_t layers = model.shape.num_layers();
  const std::vector<int64_t> counts = planned.front().shape.stages.layer_counts(layers);
  const bool told = tell_all(configs.front().parallel.order, counts);
  // What few do not tell is simulated whole, if it is not too large.
  const bool few = by_few_layers(model.shape, configs.front()) &&
                   layers_of_both(counts, configs.front()) < layers &&
                   (told || parcels(layers, configs.front()) > kMostParcels);
  if (configs.front().zebra()) {
    const bool open = configs.front().auto_offloaded();
    for (RunConfig& config : configs) write_zebra(planned.front().shape, config);
    if (few && open && configs.front().parallel.offloaded.size() > 1) {
      for (RunConfig& config : configs) offload_alike(model.shape, config);
      ASSIGN_OR_RETURN(planned, planned_ranks(model, configs, cluster));
    }
  }
  return PlannedLayout{std::move(configs), std::move(planned), few, told};
}

Result<SearchedLayout> forecast_planned(const ModelSizes& model, PlannedLayout layout,
                                        const ClusterSheet& cluster, const CoarseLimits& limits) {
  auto& [configs, ranks, few, told] = layout;
  ASSIGN_OR_RETURN(RanksForecast forecast,
                   few ? forecast_few_layers(model, configs, cluster, std::move(ranks), limits)
                       : forecast_ranks(model, configs, cluster, std::move(ranks), limits));
  return SearchedLayout{std::move(configs), false, std::move(forecast), few};
}

Result<SearchedLayout> forecast_layout(const ModelSizes& model, std::vector<RunConfig> configs,
                                       const ClusterSheet& cluster, const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(PlannedLayout layout, plan_layout(model, std::move(configs), cluster));
  return forecast_planned(model, std::move(layout), cluster, limits);
}

}  // namespace pagoda
