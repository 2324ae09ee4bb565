#include "preview/layout_search.h"

#include <algorithm>
#include <optional>

#include "preview/few_layers.h"
#include "preview/zebra_choice.h"

namespace pagoda {
namespace {

constexpr int64_t kMostChunks = 16, kMostStages = 16;

// The largest simulation that is made, some seconds, and the largest that is made many times.
constexpr int64_t kMostParcels = 15'000, kFewParcels = 2'000;

// About how many parcels of rows are exchanged in a pass: each chunk has one from each device of a
// stage to each other. Coarse runs have at least four experts, whatever the devices.
int64_t parcels(int64_t layers, const RunConfig& config) {
  const int64_t of_stage = config.num_devices() / config.stages();
  return layers * config.train.chunks * config.num_devices() * std::max<int64_t>(4, of_stage);
}

bool by_few_layers(const ModelShape& model, const RunConfig& config) {
  const FewLayers few = few_layers(config.stages());
  return parcels(model.num_layers(), config) > kFewParcels &&
         few.more + few.fewer < model.num_layers() && has_alike_layers(model);
}
int64_t simulated_layers(const ModelShape& model, const RunConfig& config) {
  const FewLayers few = few_layers(config.stages());
  return by_few_layers(model, config) ? few.more + few.fewer : model.num_layers();
}

struct Choice {
  LayoutKind layout = LayoutKind::kExperts;
  int64_t chunks = 1, stages = 1;
};

// Chunks are what zebra works at side by side, and what follows each other through stages; without
// these they bring nothing.
std::vector<Choice> choices(const RunConfig& config) {
  std::vector<Choice> choices = {{LayoutKind::kExperts, config.train.chunks}};
  std::vector<int64_t> several;
  if (config.train.chunks >= 2) several.push_back(config.train.chunks);
  for (int64_t chunks = 2; chunks <= kMostChunks; chunks *= 2) {
    if (chunks != config.train.chunks) several.push_back(chunks);
  }
  for (const int64_t chunks : several) choices.push_back({LayoutKind::kZebra, chunks});
  std::vector<int64_t> divisions;  // in stages; a run's own may be any number
  if (config.stages() > 1) divisions.push_back(config.stages());
  for (int64_t stages = 2; stages <= std::min(kMostStages, config.num_devices()); stages *= 2) {
    if (stages != config.stages()) divisions.push_back(stages);
  }
  for (const int64_t stages : divisions) {
    for (const int64_t chunks : several) {
      if (chunks < stages) continue;
      choices.push_back({LayoutKind::kPipeline, chunks, stages});
      // Both kinds of a stage's devices have work of two chunks.
      if (chunks >= 2 * stages) choices.push_back({LayoutKind::kZebra, chunks, stages});
    }
  }
  return choices;
}

using Configs = std::vector<RunConfig>;  // [rank]

template <typename Change>
Configs changed(std::span<const RunConfig> configs, const Change& change) {
  Configs copies(configs.begin(), configs.end());
  for (RunConfig& config : copies) change(config);
  return copies;
}

Configs with(const Choice& choice, std::span<const RunConfig> configs) {
  return changed(configs, [&](RunConfig& config) {
    config.parallel.layout = choice.layout;
    config.train.chunks = choice.chunks;
    if (choice.layout != LayoutKind::kExperts) config.parallel.stages = choice.stages;
  });
}

// With as many shards as a stage has devices, so that all attend; none where these do already, or
// the run says how many shards there are, or microbatches do not divide.
std::optional<Configs> with_shards_for_all(const Configs& configs) {
  const RunConfig& config = configs.front();
  const int64_t devices = config.num_devices() / config.stages();
  const int64_t columns = config.micro_batches() / config.train.chunks;
  if (config.zebra() || config.train.shards > 0 || config.sums().shards >= devices) return {};
  if (columns % devices != 0) return {};
  return changed(configs, [&](RunConfig& of_rank) { of_rank.train.shards = devices; });
}

class LayoutSearcher {
 public:
  LayoutSearcher(const ModelSizes& model, std::span<const RunConfig> own,
                 const ClusterSheet& cluster, const CoarseLimits& limits)
      : model_(model), own_(own), cluster_(cluster), limits_(limits) {}

  LayoutSearch run();
  std::optional<SearchedLayout> forecast(Configs configs);

 private:
  void add(Configs configs) {
    auto layout = forecast(std::move(configs));
    if (layout) found_.runs.push_back(std::move(*layout));
  }
  bool improve(const std::vector<Configs>& variants);
  void improve_order(bool few);
  void improve_chunks();
  void improve_microbatch();
  void improve_exchange();

  const ModelSizes& model_;
  std::span<const RunConfig> own_;
  const ClusterSheet& cluster_;
  const CoarseLimits& limits_;
  LayoutSearch found_;
};

// None: no valid run, or one that does not fit or is too large.
std::optional<SearchedLayout> LayoutSearcher::forecast(Configs configs) {
  const RunConfig& first = configs.front();
  if (!first.validate_for_planning().ok()) return {};
  const int64_t layers = simulated_layers(model_.shape, first);
  if (parcels(layers, first) > kMostParcels && first.train.chunks > 1) {
    ++found_.too_large;
    return {};
  }
  auto layout = forecast_layout(model_, std::move(configs), cluster_, limits_);
  if (layout.ok() || layout.status().code() != Exit::kUsage) ++found_.tried;
  if (!layout.ok()) return {};
  const RunConfig &own = own_.front(), &config = layout->configs.front();
  // auto is experts without a profile.
  layout->as_it_is = own.zebra() == config.zebra() && own.stages() == config.stages() &&
                     own.train.chunks == config.train.chunks &&
                     own.train.shards == config.train.shards &&
                     own.train.micro_batch_tokens == config.train.micro_batch_tokens &&
                     (own.stages() == 1 || own.parallel.order == config.parallel.order) &&
                     own.parallel.exchange == config.parallel.exchange;
  return layout.take();
}

// Puts the fastest of the variants first, if it is faster than all so far.
bool LayoutSearcher::improve(const std::vector<Configs>& variants) {
  std::optional<SearchedLayout> fastest;
  for (const Configs& variant : variants) {
    auto layout = forecast(variant);
    const SearchedLayout& before = fastest ? *fastest : found_.runs.front();
    if (layout && layout->forecast.step.step_s() < before.forecast.step.step_s()) {
      fastest = std::move(layout);
    }
  }
  if (!fastest) return false;
  if (found_.runs.front().as_it_is) {  // it stays among them
    found_.runs.insert(found_.runs.begin(), std::move(*fastest));
  } else {
    found_.runs.front() = std::move(*fastest);
  }
  return true;
}

// GPipe, which is hardly faster than 1F1B anywhere, is tried where little time is to be saved.
void LayoutSearcher::improve_order(bool few) {
  const Configs best = found_.runs.front().configs;
  if (best.front().stages() == 1) return;
  std::vector<Configs> variants;
  for (const PipelineOrder order : {PipelineOrder::kOneForwardOneBackward, PipelineOrder::kGpipe,
                                    PipelineOrder::kBreadthFirst}) {
    if (order == best.front().parallel.order || (few && order == PipelineOrder::kGpipe)) continue;
    variants.push_back(changed(best, [&](RunConfig& of_rank) { of_rank.parallel.order = order; }));
  }
  improve(variants);
}

// Doubles them while that helps.
void LayoutSearcher::improve_chunks() {
  const auto twice = [](RunConfig& config) { config.train.chunks *= 2; };
  while (found_.runs.front().configs.front().stages() > 1 &&
         improve({changed(found_.runs.front().configs, twice)})) {
  }
}

// Doubles it while that helps.
void LayoutSearcher::improve_microbatch() {
  const auto twice = [](RunConfig& config) { config.train.micro_batch_tokens *= 2; };
  while (improve({changed(found_.runs.front().configs, twice)})) {
  }
}

// Ordering the rounds of more devices takes long (plan/rounds/exchange_order.h).
void LayoutSearcher::improve_exchange() {
  constexpr int64_t kMostExchanging = 16;
  const SearchedLayout& fastest = found_.runs.front();
  const RunConfig& config = fastest.configs.front();
  if (config.parallel.exchange != ExchangeSetting::kAuto) return;
  if (cluster_.nodes.size() < 2 || config.num_devices() > kMostExchanging) return;
  std::vector<Configs> variants;
  for (const ExchangeSetting exchange : {ExchangeSetting::kRounds, ExchangeSetting::kHalo}) {
    variants.push_back(changed(fastest.configs,
                               [&](RunConfig& of_rank) { of_rank.parallel.exchange = exchange; }));
  }
  improve(variants);
}

// Where devices are so many that a simulation is long, few are made: of each number of stages one
// number of chunks, and zebra with two.
bool is_first(const Choice& choice) {
  if (choice.layout == LayoutKind::kExperts) return true;
  return choice.chunks == std::max<int64_t>(2, choice.stages);
}

LayoutSearch LayoutSearcher::run() {
  const bool few = parcels(model_.shape.num_layers(), own_.front()) >
                   kFewParcels * own_.front().train.chunks * own_.front().stages();
  for (const Choice& choice : choices(own_.front())) {
    if (few && !is_first(choice)) continue;
    Configs configs = with(choice, own_);
    auto for_all = with_shards_for_all(configs);
    if (!for_all || choice.layout == LayoutKind::kExperts) add(std::move(configs));
    if (for_all) add(std::move(*for_all));
  }
  std::stable_sort(found_.runs.begin(), found_.runs.end(), [](const auto& a, const auto& b) {
    return a.forecast.step.step_s() < b.forecast.step.step_s();
  });
  const int64_t tried = found_.tried;
  if (found_.runs.empty()) return std::move(found_);
  improve_order(few);
  if (few) improve_chunks();
  improve_microbatch();
  improve_exchange();
  found_.tried = tried;
  return std::move(found_);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SearchedLayout::settings() const {
  RunConfig copy = configs.front();
  OptionTable table;
  copy.declare(table);
  std::vector<const char*> keys = {"train.micro_batch_tokens", "train.chunks"};
  if (copy.train.shards > 0) keys.push_back("train.shards");
  keys.push_back("parallel.layout");
  if (copy.zebra()) {
    keys.insert(keys.end(), {"parallel.attention_devices", "parallel.offloaded", "parallel.lags"});
  }
  if (copy.stages() > 1) keys.insert(keys.end(), {"parallel.stages", "parallel.order"});
  if (copy.parallel.exchange != ExchangeSetting::kAuto) keys.push_back("parallel.exchange");
  std::vector<std::pair<std::string, std::string>> settings;
  for (const char* key : keys) settings.emplace_back(key, table.find(key)->toml());
  return settings;
}

std::string SearchedLayout::text() const {
  std::string text;
  for (const auto& [key, value] : settings()) {
    text += (text.empty() ? "" : ", ") + key + " = " + value;
  }
  return (as_it_is ? "(as it is) " : "") + text;
}

std::string SearchedLayout::section() const {
  std::string text, section;
  for (const auto& [key, value] : settings()) {
    const size_t dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      text += "[" + section + "]\n";
    }
    text += key.substr(dot + 1) + " = " + value + "\n";
  }
  return text;
}

Result<SearchedLayout> forecast_layout(const ModelSizes& model, std::vector<RunConfig> configs,
                                       const ClusterSheet& cluster, const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(std::vector<PlannedRun> planned, planned_ranks(model, configs, cluster));
  for (RunConfig& config : configs) {
    if (config.zebra()) write_zebra(planned.front().shape, config);
  }
  const bool few = by_few_layers(model.shape, configs.front());
  ASSIGN_OR_RETURN(RanksForecast forecast,
                   few ? forecast_few_layers(model, configs, cluster, std::move(planned), limits)
                       : forecast_ranks(model, configs, cluster, std::move(planned), limits));
  return SearchedLayout{std::move(configs), false, std::move(forecast), few};
}

LayoutSearch search_layouts(const ModelSizes& model, std::span<const RunConfig> configs,
                            const ClusterSheet& cluster, const CoarseLimits& limits) {
  return LayoutSearcher(model, configs, cluster, limits).run();
}

ClusterPlanner layout_planner(const ModelSizes& model, const SearchedLayout& layout,
                              const CoarseLimits& limits) {
  return [&model, limits, config = layout.configs.front()](
             const ClusterSheet& cluster,
             const ClusterDemand& demand) -> std::optional<PlannedCluster> {
    RunConfig other = config;
    other.train.tokens_per_step = demand.sequence_len * demand.sequences;
    // Devices of a stage that were all to attend are to do so among others, too.
    const int64_t devices = config.num_devices() / config.stages();
    other.total_devices = devices_of_nodes(other, cluster);
    if (other.train.shards == devices) other.train.shards = other.num_devices() / other.stages();
    const Configs configs(cluster.nodes.size(), other);
    auto found = LayoutSearcher(model, configs, cluster, limits).forecast(configs);
    if (!found) return {};
    return PlannedCluster{found->text(), found->forecast.tokens_per_s()};
  };
}

}  // namespace pagoda
