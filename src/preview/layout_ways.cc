#include "preview/layout_ways.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace pagoda {
namespace {

using Configs = std::vector<RunConfig>;  // [rank]

// A kind of devices: what a cluster has of it.
struct Kind {
  Configs configs;
  ClusterSheet cluster;
};

// The run on some of its devices, with their budgets.
RunConfig with_devices(RunConfig config, const std::string& text,
                       const std::vector<size_t>& places) {
  config.train.devices.assign(places.size(), text);
  if (config.memory.device.listed().size() == 1) return config;
  std::vector<MemorySize> budgets;
  for (const size_t place : places) budgets.push_back(config.memory.device.of(place));
  config.memory.device = MemorySizes(std::move(budgets));
  return config;
}

// Returns the kinds, which differ in the sheet of their node or in how they are listed.
std::vector<Kind> kinds_of(std::span<const RunConfig> configs, const ClusterSheet& cluster) {
  std::map<std::string, Kind> kinds;
  for (size_t r = 0; r < configs.size(); ++r) {
    const MachineSheet& node = cluster.nodes[r];
    std::map<std::string, std::vector<size_t>> places;  // of CPU devices; a node's GPUs are alike
    const std::vector<ListedDevice> devices = configs[r].devices();
    for (size_t d = 0; d < devices.size(); ++d) {
      places[node.gpu() ? "" : devices[d].text()].push_back(d);
    }
    for (const auto& [text, of_kind] : places) {
      Kind& kind = kinds[node.to_toml() + text];
      kind.cluster.network = cluster.network;
      kind.cluster.nodes.push_back(node);
      kind.configs.push_back(node.gpu() ? configs[r] : with_devices(configs[r], text, of_kind));
    }
  }
  std::vector<Kind> all;
  for (auto& [key, kind] : kinds) all.push_back(std::move(kind));
  return all;
}

Configs as_experts(Configs configs) {
  for (RunConfig& config : configs) {
    RunConfig::Parallel& parallel = config.parallel;
    parallel.layout = LayoutKind::kExperts;
    parallel.copies = parallel.stages = 1;
    parallel.attention_devices = 0;
    parallel.offloaded = parallel.lags = parallel.stage_layers = {"auto"};
    parallel.kept_rows = "auto";
  }
  return configs;
}

class Ways {
 public:
  Ways(const ModelSizes& model, const ClusterSheet& cluster, const CoarseLimits& limits,
       const LayoutSearch& found)
      : model_(model), cluster_(cluster), limits_(limits), found_(found) {}

  std::vector<LayoutWay> of(std::span<const RunConfig> configs, const std::vector<Kind>& kinds);

 private:
  template <typename Is>
  const SearchedLayout* fastest(const Is& is) const {
    const auto at = std::ranges::find_if(
        found_.runs, [&](const SearchedLayout& run) { return is(run.configs.front()); });
    return at == found_.runs.end() ? nullptr : &*at;
  }
  void add_fastest(const char* name, const SearchedLayout* run) {
    ways_.push_back({name, run ? run->forecast.step.step_s() : 0, run ? run->text() : ""});
  }
  void add_in_shares(const char* name, Configs configs, ShareKind shares);
  void add_ideal(const std::vector<Kind>& kinds);
  void add_in_turn(const SearchedLayout* zebra);

  const ModelSizes& model_;
  const ClusterSheet& cluster_;
  const CoarseLimits& limits_;
  const LayoutSearch& found_;
  std::vector<LayoutWay> ways_;
};

void Ways::add_in_shares(const char* name, Configs configs, ShareKind shares) {
  for (RunConfig& config : configs) config.parallel.shares = shares;
  auto fastest = search_experts(model_, configs, cluster_, limits_);
  if (configs.front().copies() > 1) {
    auto with_copies = forecast_layout(model_, std::move(configs), cluster_, limits_);
    const bool faster = with_copies.ok() && (!fastest || with_copies->forecast.step.step_s() <
                                                             fastest->forecast.step.step_s());
    if (faster) fastest = with_copies.take();
  }
  add_fastest(name, fastest ? &*fastest : nullptr);
}

// Both have the step's tokens, so that what they do in a second together is what one step that is
// shared without loss would take.
void Ways::add_ideal(const std::vector<Kind>& kinds) {
  double steps_per_s = 0;
  for (const Kind& kind : kinds) {
    Configs configs = as_experts(kind.configs);
    const int64_t devices = devices_of_nodes(configs, kind.cluster);
    for (RunConfig& config : configs) config.total_devices = devices;
    const auto alone = search_experts(model_, configs, kind.cluster, limits_);
    if (alone) steps_per_s += 1 / alone->forecast.step.step_s();
  }
  ways_.push_back({"each kind of devices alone, added up (EP (Ideal))",
                   steps_per_s > 0 ? 1 / steps_per_s : 0,
                   {}});
}

void Ways::add_in_turn(const SearchedLayout* zebra) {
  LayoutWay way{"attention and experts apart, in turn (DistEP)", 0, {}};
  if (zebra != nullptr) {
    Configs configs = zebra->configs;
    for (RunConfig& config : configs) {
      config.train.chunks = 1;
      config.parallel.offloaded = {"0"};
      config.parallel.lags = {"0", "0", "0"};
      config.parallel.kept_rows = "auto";
    }
    const RunConfig& first = configs.front();
    const int64_t most = std::min(first.sums().shards, first.num_devices() / first.copies() - 1);
    for (int64_t attending = 1; attending <= most;
         attending += std::max<int64_t>(1, attending / 8)) {
      for (RunConfig& config : configs) config.parallel.attention_devices = attending;
      auto layout = forecast_layout(model_, configs, cluster_, limits_);
      if (!layout.ok()) continue;
      const double step_s = layout->forecast.step.step_s();
      if (way.step_s == 0 || step_s < way.step_s) way.step_s = step_s;
    }
  }
  ways_.push_back(std::move(way));
}

std::vector<LayoutWay> Ways::of(std::span<const RunConfig> configs,
                                const std::vector<Kind>& kinds) {
  const auto together = [](const RunConfig& c) { return !c.zebra() && c.stages() == 1; };
  const SearchedLayout* experts = fastest(together);
  const Configs own =
      experts ? experts->configs : as_experts(Configs(configs.begin(), configs.end()));
  add_in_shares("experts in equal shares (EP)", own, ShareKind::kUniform);
  add_in_shares("experts in shares by speed", own, ShareKind::kMeasured);
  add_ideal(kinds);
  const auto zebra = [](const RunConfig& c) { return c.zebra() && c.stages() == 1; };
  const SearchedLayout* fastest_zebra = fastest(zebra);
  add_in_turn(fastest_zebra);
  add_fastest("zebra", fastest_zebra);
  add_fastest("zebra in stages",
              fastest([](const RunConfig& c) { return c.zebra() && c.stages() > 1; }));
  add_fastest("a pipeline of layers",
              fastest([](const RunConfig& c) { return !c.zebra() && c.stages() > 1; }));
  return std::move(ways_);
}

}  // namespace

std::vector<LayoutWay> layout_ways(const ModelSizes& model, std::span<const RunConfig> configs,
                                   const ClusterSheet& cluster, const CoarseLimits& limits,
                                   const LayoutSearch& found) {
  const std::vector<Kind> kinds = kinds_of(configs, cluster);
  if (kinds.size() < 2) return {};
  return Ways(model, cluster, limits, found).of(configs, kinds);
}

}  // namespace pagoda
