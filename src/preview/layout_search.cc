#include "preview/layout_search.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "config/option_value.h"
#include "preview/few_layers.h"
#include "preview/layout_choice.h"
#include "preview/planned_layout.h"
#include "preview/stage_balance.h"

namespace pagoda {
namespace {

constexpr int64_t kMostChunks = 16, kMostStages = 16, kMostCopies = 16;

using Configs = std::vector<RunConfig>;  // [rank]

struct Choice {
  LayoutKind layout = LayoutKind::kExperts;
  int64_t chunks = 1, stages = 1;
};

// Both kinds of a zebra stage's devices have work of two chunks.
int64_t least_chunks(LayoutKind layout, int64_t stages) {
  return std::max<int64_t>(2, layout == LayoutKind::kZebra ? 2 * stages : stages);
}

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
      for (const LayoutKind layout : {LayoutKind::kPipeline, LayoutKind::kZebra}) {
        if (chunks >= least_chunks(layout, stages)) choices.push_back({layout, chunks, stages});
      }
    }
  }
  return choices;
}

template <typename Change>
Configs changed(std::span<const RunConfig> configs, const Change& change) {
  Configs copies(configs.begin(), configs.end());
  for (RunConfig& config : copies) change(config);
  return copies;
}

Configs with(const Choice& choice, std::span<const RunConfig> configs) {
  return changed(configs, [&](RunConfig& config) {
    config.parallel.layout = choice.layout;
    config.parallel.copies = 1;
    config.train.chunks = choice.chunks;
    if (choice.layout != LayoutKind::kExperts) {
      if (choice.stages != config.stages()) config.parallel.stage_layers = {"auto"};
      config.parallel.stages = choice.stages;
    }
  });
}

Configs measured(std::span<const RunConfig> configs) {
  return changed(configs, [](RunConfig& config) { config.parallel.shares = ShareKind::kMeasured; });
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

// Copies that are tried of a layout: as many as a stage has nodes, so that rows stay in these, and
// of few devices also 2, 4, 8 and 16.
std::set<int64_t> copy_choices(const RunConfig& config, int64_t nodes, bool few) {
  std::set<int64_t> copies;
  if (nodes / config.stages() > 1) copies.insert(nodes / config.stages());
  for (int64_t more = 2; more <= kMostCopies && !few; more *= 2) copies.insert(more);
  const int64_t of_copy = config.zebra() ? 2 : 1;  // devices at least
  const int64_t most = std::min(kMostCopies, config.num_devices() / (config.stages() * of_copy));
  copies.erase(copies.upper_bound(most), copies.end());
  return copies;
}

// Whether all devices have room for the weights of so many copies; else each copy would read its
// own from host or drives.
bool have_room(const ModelShape& model, const ClusterSheet& cluster, int64_t copies) {
  int64_t bytes = 0;
  for (const MachineSheet& node : cluster.nodes) {
    bytes += node.device_bytes() * (node.gpu() ? node.device.count : 1);
  }
  return 2 * copies * count_parameters(model).total <= bytes;
}

class LayoutSearcher {
 public:
  LayoutSearcher(const ModelSizes& model, std::span<const RunConfig> own,
                 const ClusterSheet& cluster, const CoarseLimits& limits)
      : model_(model), own_(own), cluster_(cluster), limits_(limits) {}

  LayoutSearch run();
  std::optional<SearchedLayout> fastest_experts();
  std::optional<SearchedLayout> forecast(Configs configs);

 private:
  void add_choice(const Choice& choice);
  void add_with_kept(Configs configs);
  bool may_measure(const RunConfig& config) const;
  void add(Configs configs) {
    auto layout = forecast(std::move(configs));
    if (!layout) return;
    const bool again =
        layout->as_it_is && std::ranges::any_of(found_.runs, &SearchedLayout::as_it_is);
    if (again) --found_.tried;
    if (!again) found_.runs.push_back(std::move(*layout));
  }
  void leave_open(RunConfig& config) const;
  Configs with_copies(const Configs& configs, int64_t copies) const;
  void add_copies();
  void sort();
  const SearchedLayout& improved() const { return found_.runs[improved_]; }
  const RunConfig& improved_config() const { return improved().configs.front(); }
  void improve_fastest(bool zebra);
  bool improve(const std::vector<Configs>& variants);
  void improve_layers();
  void improve_copies();
  void improve_order();
  void improve_chunks();
  void improve_shares();
  void improve_microbatch();
  void improve_exchange();
  void list_gpus(SearchedLayout& run) const;

  const ModelSizes& model_;
  std::span<const RunConfig> own_;
  const ClusterSheet& cluster_;
  const CoarseLimits& limits_;
  bool few_ = false;  // layouts are tried
  size_t improved_ = 0;  // of found_.runs
  LayoutSearch found_;
};

// None: no valid run, or one that does not fit or is too large.
std::optional<SearchedLayout> LayoutSearcher::forecast(Configs configs) {
  const RunConfig& first = configs.front();
  if (!first.validate_for_planning().ok()) return {};
  const int64_t layers = simulated_layers(model_.shape, first);
  const bool large = parcels(layers, first) > kMostParcels && first.train.chunks > 1;
  if (large || !may_be_few(model_.shape, first)) {
    ++found_.too_large;
    return {};
  }
  const auto refused = [&](const Status& status) -> std::optional<SearchedLayout> {
    if (status.code() != Exit::kUsage) ++found_.tried;
    return {};
  };
  const bool as_it_is = same_layout(first, own_.front());
  auto planned = plan_layout(model_, std::move(configs), cluster_);
  if (!planned.ok()) return refused(planned.status());
  if (planned->few && !planned->told) {
    ++found_.too_large;
    return {};
  }
  auto layout = forecast_planned(model_, planned.take(), cluster_, limits_);
  if (!layout.ok()) return refused(layout.status());
  ++found_.tried;
  layout->as_it_is = as_it_is;
  return layout.take();
}

// A copy sums by its own shards. What zebra leaves to the planner is chosen anew.
Configs LayoutSearcher::with_copies(const Configs& configs, int64_t copies) const {
  return changed(configs, [&](RunConfig& config) {
    config.parallel.copies = copies;
    config.train.shards = config.train.expert_shards = config.sums().shards;
    leave_open(config);
  });
}

// Leaves open what the run does. On many devices of equal nodes experts are all away from those
// that attend, since each number of them would take as long to plan.
void LayoutSearcher::leave_open(RunConfig& config) const {
  const RunConfig::Parallel& open = own_.front().parallel;
  config.parallel.attention_devices = open.attention_devices;
  config.parallel.offloaded = open.offloaded;
  config.parallel.lags = open.lags;
  config.parallel.kept_rows = open.kept_rows;
  const bool none = few_ && config.zebra() && config.auto_offloaded() && cluster_.equal_nodes();
  if (none) config.parallel.offloaded = {"0"};
}

// Tries copies of the fastest so far with zebra and without, of each number of stages.
void LayoutSearcher::add_copies() {
  std::set<std::pair<bool, int>> seen;  // zebra, stages
  std::vector<Configs> fastest;
  for (const SearchedLayout& run : found_.runs) {
    const RunConfig& config = run.configs.front();
    if (seen.emplace(config.zebra(), config.stages()).second) fastest.push_back(run.configs);
  }
  for (const Configs& configs : fastest) {
    for (const int64_t copies : copy_choices(configs.front(), std::ssize(cluster_.nodes), few_)) {
      if (have_room(model_.shape, cluster_, copies)) add(with_copies(configs, copies));
    }
  }
}

void LayoutSearcher::sort() {
  std::stable_sort(found_.runs.begin(), found_.runs.end(), [](const auto& a, const auto& b) {
    return a.forecast.step.step_s() < b.forecast.step.step_s();
  });
}

// Puts the fastest of the variants in the place of the run that is improved, if it is faster.
bool LayoutSearcher::improve(const std::vector<Configs>& variants) {
  std::optional<SearchedLayout> fastest;
  for (const Configs& variant : variants) {
    auto layout = forecast(variant);
    const SearchedLayout& before = fastest ? *fastest : improved();
    if (layout && layout->forecast.step.step_s() < before.forecast.step.step_s()) {
      fastest = std::move(layout);
    }
  }
  if (!fastest) return false;
  if (improved().as_it_is) {  // it stays among them
    improved_ = found_.runs.size();
    found_.runs.push_back(std::move(*fastest));
  } else {
    found_.runs[improved_] = std::move(*fastest);
  }
  return true;
}

// GPipe, which is hardly faster than 1F1B anywhere, is tried where little time is to be saved.
void LayoutSearcher::improve_order() {
  const Configs best = improved().configs;
  if (best.front().stages() == 1) return;
  std::vector<Configs> variants;
  for (const PipelineOrder order : {PipelineOrder::kOneForwardOneBackward, PipelineOrder::kGpipe,
                                    PipelineOrder::kBreadthFirst}) {
    if (order == best.front().parallel.order || (few_ && order == PipelineOrder::kGpipe)) continue;
    variants.push_back(changed(best, [&](RunConfig& of_rank) { of_rank.parallel.order = order; }));
  }
  improve(variants);
}

// Where unequal nodes have stages: as many layers as each would take in the same time, and then one
// after the other from the stage that is busy longest to the one that is busy least, while that
// helps. Speeds that train.devices name are those of throttles; a sheet knows what GPUs do.
void LayoutSearcher::improve_layers() {
  if (improved_config().stages() == 1 || cluster_.equal_nodes()) return;
  if (!own_.front().auto_stage_layers()) return;
  const auto with_layers = [&](const std::vector<int64_t>& layers) {
    return changed(improved().configs,
                   [&](RunConfig& config) { config.parallel.stage_layers = texts_of(layers); });
  };
  improve({with_layers(layers_by_time(improved().forecast))});
  std::vector<int64_t> moved;
  do {
    moved = one_layer_moved(improved().forecast);
  } while (!moved.empty() && improve({with_layers(moved)}));
}

// GPUs of unequal nodes count as equally fast, unless a run measures what they do.
bool LayoutSearcher::may_measure(const RunConfig& config) const {
  return !cluster_.equal_nodes() && cluster_.nodes.front().gpu() &&
         config.parallel.shares == ShareKind::kSpeed;
}

void LayoutSearcher::improve_shares() {
  if (may_measure(improved_config())) improve({measured(improved().configs)});
}

// Doubles them while that helps, unless none are faster than those of the nodes.
void LayoutSearcher::improve_copies() {
  const RunConfig& first = improved_config();
  if (first.copies() == 1 && std::ssize(cluster_.nodes) / first.stages() > 1) return;
  while (improve({with_copies(improved().configs, 2 * improved_config().copies())})) {
  }
}

// Doubles them while that helps.
void LayoutSearcher::improve_chunks() {
  const auto twice = [](RunConfig& config) { config.train.chunks *= 2; };
  while ((improved_config().stages() > 1 || improved_config().zebra()) &&
         improve({changed(improved().configs, twice)})) {
  }
}

// Doubles it while that helps, unless it alone was measured.
void LayoutSearcher::improve_microbatch() {
  if (any_has_profile_of(model_, cluster_, improved_config())) return;
  const auto twice = [](RunConfig& config) { config.train.micro_batch_tokens *= 2; };
  while (improve({changed(improved().configs, twice)})) {
  }
}

// Ordering the rounds of many devices takes long (plan/rounds/exchange_rounds.h); HALO does not.
void LayoutSearcher::improve_exchange() {
  constexpr int64_t kMostInRounds = 16;
  const RunConfig& config = improved_config();
  if (config.parallel.exchange != ExchangeSetting::kAuto || cluster_.nodes.size() < 2) return;
  std::vector<Configs> variants;
  for (const ExchangeSetting exchange : {ExchangeSetting::kRounds, ExchangeSetting::kHalo}) {
    if (exchange == ExchangeSetting::kRounds && config.num_devices() > kMostInRounds) continue;
    variants.push_back(changed(improved().configs,
                               [&](RunConfig& of_rank) { of_rank.parallel.exchange = exchange; }));
  }
  improve(variants);
}

// Improves the fastest of the runs with zebra, or of those without, unless it is far behind all.
void LayoutSearcher::improve_fastest(bool zebra) {
  constexpr double kNear = 1.1;
  const auto is_of_kind = [&](const SearchedLayout& run) {
    return run.configs.front().zebra() == zebra;
  };
  const auto fastest = std::ranges::find_if(found_.runs, is_of_kind);
  if (fastest == found_.runs.end()) return;
  const double least_s = found_.runs.front().forecast.step.step_s();
  if (fastest->forecast.step.step_s() > kNear * least_s) return;
  improved_ = static_cast<size_t>(fastest - found_.runs.begin());
  if (few_) improve_copies();
  improve_order();
  improve_shares();
  improve_layers();
  if (few_) improve_chunks();
  improve_microbatch();
  improve_exchange();
}

// A run takes one GPU of its machine, unless it lists others. It is planned on all.
void LayoutSearcher::list_gpus(SearchedLayout& run) const {
  for (size_t r = 0; r < run.configs.size(); ++r) {
    const MachineSheet& node = cluster_.nodes[r];
    std::vector<std::string>& devices = run.configs[r].train.devices;
    const auto listed = std::max<int64_t>(1, std::ssize(parse_devices(devices).value()));
    if (!node.gpu() || node.device.count == listed) continue;
    devices = {strf("cuda*%lld", (long long)node.device.count)};
  }
}

// Where devices are so many that a simulation is long, few are made: of each number of stages one
// number of chunks, the fewest.
bool is_first(const Choice& choice) {
  if (choice.layout == LayoutKind::kExperts) return true;
  return choice.chunks == least_chunks(choice.layout, choice.stages);
}

// The fast GPUs of several nodes are all to attend before the slow ones of any; equally fast ones
// attend in the order of nodes, as they do where nodes have one.
void LayoutSearcher::add_choice(const Choice& choice) {
  Configs configs = with(choice, own_);
  for (RunConfig& config : configs) leave_open(config);
  const bool several = std::ranges::any_of(
      cluster_.nodes, [](const MachineSheet& node) { return node.device.count > 1; });
  add_with_kept(configs);
  if (configs.front().zebra() && several && may_measure(configs.front())) {
    add_with_kept(measured(configs));
  }
}

// Between ranks the clock by which zebra's kept experts are chosen knows cards and lanes only
// about, so that where it keeps some, the tasks of a run without are simulated, too.
void LayoutSearcher::add_with_kept(Configs configs) {
  const bool open = configs.front().zebra() && configs.front().auto_offloaded();
  const Configs none =
      changed(configs, [](RunConfig& config) { config.parallel.offloaded = {"0"}; });
  auto for_all = with_shards_for_all(configs);
  const size_t before = found_.runs.size();
  add(std::move(configs));
  if (for_all) add(std::move(*for_all));
  if (!open || cluster_.nodes.size() == 1 || found_.runs.size() == before) return;
  const auto& kept = found_.runs.back().configs.front().parallel.offloaded;
  if (kept != none.front().parallel.offloaded) add(none);
}

std::optional<SearchedLayout> LayoutSearcher::fastest_experts() {
  add_choice({LayoutKind::kExperts, own_.front().train.chunks});
  if (found_.runs.empty()) return {};
  sort();
  improve_fastest(false);
  sort();
  return std::move(found_.runs.front());
}

LayoutSearch LayoutSearcher::run() {
  few_ = parcels(model_.shape.num_layers(), own_.front()) >
         kFewParcels * own_.front().train.chunks * own_.front().stages();
  for (const Choice& choice : choices(own_.front())) {
    if (few_ && !is_first(choice)) continue;
    add_choice(choice);
  }
  if (own_.front().copies() > 1) add(Configs(own_.begin(), own_.end()));
  sort();
  add_copies();
  sort();
  if (found_.runs.empty()) return std::move(found_);
  // What comes in another's place is none more.
  const int64_t tried = found_.tried - std::ssize(found_.runs), too_large = found_.too_large;
  const bool zebra = found_.runs.front().configs.front().zebra();
  for (const bool of_zebra : {!zebra, zebra}) improve_fastest(of_zebra);
  sort();
  found_.tried = tried + std::ssize(found_.runs);
  found_.too_large = too_large;
  for (SearchedLayout& run : found_.runs) list_gpus(run);
  return std::move(found_);
}

}  // namespace

LayoutSearch search_layouts(const ModelSizes& model, std::span<const RunConfig> configs,
                            const ClusterSheet& cluster, const CoarseLimits& limits) {
  return LayoutSearcher(model, configs, cluster, limits).run();
}

std::optional<SearchedLayout> search_experts(const ModelSizes& model,
                                             std::span<const RunConfig> configs,
                                             const ClusterSheet& cluster,
                                             const CoarseLimits& limits) {
  return LayoutSearcher(model, configs, cluster, limits).fastest_experts();
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
    if (other.copies() > 1) other.train.expert_shards = other.sums().shards;
    const Configs configs(cluster.nodes.size(), other);
    auto found = LayoutSearcher(model, configs, cluster, limits).forecast(configs);
    if (!found) return {};
    return PlannedCluster{found->text(), found->forecast.tokens_per_s()};
  };
}

}  // namespace pagoda
