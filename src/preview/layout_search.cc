#include "preview/layout_search.h"

#include <algorithm>
#include <optional>

#include "preview/zebra_choice.h"

namespace pagoda {
namespace {

constexpr int64_t kMostChunks = 16, kMostStages = 8;

// The most groups of experts' rows in a pass that are simulated: about ten seconds and a gigabyte.
constexpr int64_t kMostGroups = 400'000;

// Each chunk has rows of each expert from each device.
bool too_large(const ModelShape& model, const RunConfig& config) {
  if (config.train.chunks == 1) return false;
  return model.num_layers() * model.num_experts * config.train.chunks * config.num_devices() >
         kMostGroups;
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
      if (chunks >= stages) choices.push_back({LayoutKind::kPipeline, chunks, stages});
    }
  }
  return choices;
}

// Ordering the rounds of more devices takes long (plan/rounds/exchange_order.h).
constexpr int64_t kMostExchanging = 16;

// Sets the exchange of the fastest layout, where the run leaves it open and another than flat is
// faster.
void choose_exchange(const ModelSizes& model, const ClusterSheet& cluster,
                     const CoarseLimits& limits, std::vector<SearchedLayout>& runs) {
  if (runs.empty() || cluster.nodes.size() < 2) return;
  const RunConfig& config = runs.front().configs.front();
  if (config.parallel.exchange != ExchangeSetting::kAuto) return;
  if (config.num_devices() > kMostExchanging) return;
  std::optional<SearchedLayout> fastest;
  for (const ExchangeSetting exchange : {ExchangeSetting::kRounds, ExchangeSetting::kHalo}) {
    std::vector<RunConfig> changed = runs.front().configs;
    for (RunConfig& of_rank : changed) of_rank.parallel.exchange = exchange;
    auto forecast = forecast_ranks(model, changed, cluster, limits);
    const SearchedLayout& before = fastest ? *fastest : runs.front();
    if (!forecast.ok() || forecast->step.step_s() >= before.forecast.step.step_s()) continue;
    fastest = SearchedLayout{std::move(changed), false, forecast.take()};
  }
  if (!fastest) return;
  if (runs.front().as_it_is) {  // it stays among them
    runs.insert(runs.begin(), std::move(*fastest));
  } else {
    runs.front() = std::move(*fastest);
  }
}

std::vector<RunConfig> with(const Choice& choice, std::span<const RunConfig> configs) {
  std::vector<RunConfig> changed(configs.begin(), configs.end());
  for (RunConfig& config : changed) {
    config.parallel.layout = choice.layout;
    config.train.chunks = choice.chunks;
    if (choice.stages > 1) config.parallel.stages = choice.stages;
  }
  return changed;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SearchedLayout::settings() const {
  RunConfig copy = configs.front();
  OptionTable table;
  copy.declare(table);
  std::vector<const char*> keys = {"train.micro_batch_tokens", "train.chunks", "parallel.layout"};
  if (copy.zebra()) {
    keys.insert(keys.end(), {"parallel.attention_devices", "parallel.offloaded", "parallel.lags"});
  }
  if (copy.stages() > 1) keys.insert(keys.end(), {"parallel.stages", "parallel.order"});
  if (copy.parallel.exchange != ExchangeSetting::kAuto) keys.push_back("parallel.exchange");
  std::vector<std::pair<std::string, std::string>> settings;
  for (const char* key : keys) settings.emplace_back(key, table.find(key)->toml());
  return settings;
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

LayoutSearch search_layouts(const ModelSizes& model, std::span<const RunConfig> configs,
                            const ClusterSheet& cluster, const CoarseLimits& limits) {
  LayoutSearch search;
  for (const Choice& choice : choices(configs.front())) {
    std::vector<RunConfig> changed = with(choice, configs);
    if (!changed.front().validate_for_planning().ok()) continue;
    if (too_large(model.shape, changed.front())) {
      ++search.too_large;
      continue;
    }
    auto planned = planned_ranks(model, changed, cluster);
    if (!planned.ok()) continue;
    ++search.tried;
    for (RunConfig& config : changed) {
      if (config.zebra()) write_zebra(planned->front().shape, config);
    }
    auto forecast = forecast_ranks(model, changed, cluster, limits);
    if (!forecast.ok()) continue;
    const RunConfig& own = configs.front();
    // auto is experts without a profile.
    const bool as_it_is = own.zebra() == changed.front().zebra() &&
                          own.stages() == changed.front().stages() &&
                          own.train.chunks == choice.chunks;
    search.runs.push_back({std::move(changed), as_it_is, forecast.take()});
  }
  std::stable_sort(search.runs.begin(), search.runs.end(), [](const auto& a, const auto& b) {
    return a.forecast.step.step_s() < b.forecast.step.step_s();
  });
  choose_exchange(model, cluster, limits, search.runs);
  return search;
}

}  // namespace pagoda
