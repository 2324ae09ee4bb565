#include "preview/sharing_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "preview/row_speeds.h"

namespace pagoda {
namespace {

constexpr int kMostSharing = 16;  // a plan stays one of seconds

using Configs = std::vector<RunConfig>;  // [rank]

// In small whole numbers, where speeds are in ratios of such.
std::vector<std::string> hidden_shares_by_speed(const ModelShape& model,
                                                std::span<const PlannedRank> ranks) {
  constexpr double kFastest = 60;
  std::vector<int64_t> shares;
  int64_t divisor = 0;
  for (const double speed : row_speeds(model, ranks)) {
    shares.push_back(std::max<int64_t>(1, std::llround(kFastest * speed)));
    divisor = std::gcd(divisor, shares.back());
  }
  std::vector<std::string> texts;
  for (const int64_t share : shares) texts.push_back(std::to_string(share / divisor));
  return texts;
}

Configs model_centric(std::span<const RunConfig> configs,
                      const std::vector<std::string>& hidden_shares) {
  Configs changed(configs.begin(), configs.end());
  for (RunConfig& config : changed) {
    config.parallel.sharing = Sharing::kModel;
    config.parallel.hidden_shares = hidden_shares;
  }
  return changed;
}

Configs data_centric(std::span<const RunConfig> configs) {
  Configs changed(configs.begin(), configs.end());
  for (RunConfig& config : changed) {
    config.train.shards = config.train.expert_shards = config.sums().shards;
  }
  return changed;
}

// Whether weights do not travel yet, and `auto` would let them.
bool may_be_data_centric(const RunConfig& config) {
  return config.train.expert_shards == 1 && config.sums().shards > 1 && config.copies() == 1 &&
         config.stages() == 1 && !config.zebra() && config.parallel.sharing == Sharing::kAuto;
}

// What a step takes with these settings; none: the run is refused or does not fit.
std::optional<double> shared_step_s(const ModelSizes& model, const Configs& configs,
                                    const ClusterSheet& cluster, const CoarseLimits& limits) {
  for (const RunConfig& config : configs) {
    if (!config.validate_for_planning().ok()) return {};
  }
  ModelSizes cut = model;
  if (!cut.cut_experts(configs.front().hidden_shares()).ok()) return {};
  auto forecast = forecast_ranks(cut, configs, cluster, limits);
  if (!forecast.ok()) return {};
  return forecast->step.step_s();
}

std::vector<std::pair<std::string, std::string>> named_settings(RunConfig config,
                                                                std::span<const char* const> keys) {
  OptionTable table;
  config.declare(table);
  std::vector<std::pair<std::string, std::string>> settings;
  for (const char* key : keys) settings.emplace_back(key, table.find(key)->toml());
  return settings;
}

}  // namespace

std::string SharingChoice::text() const {
  std::string text = strf("%.0f %% faster in other bits: ", 100 * gain);
  for (size_t i = 0; i < settings.size(); ++i) {
    text += (i == 0 ? "" : ", ") + settings[i].first + " = " + settings[i].second;
  }
  return text;
}

std::vector<SharingChoice> recommend_sharing(const ModelSizes& model,
                                             std::span<const RunConfig> configs,
                                             const ClusterSheet& cluster,
                                             const CoarseLimits& limits) {
  static constexpr const char* kDataKeys[] = {"train.shards", "train.expert_shards"};
  static constexpr const char* kModelKeys[] = {"parallel.sharing", "parallel.hidden_shares"};
  auto runs = planned_ranks(model, configs, cluster);
  if (!runs.ok() || configs.front().parallel.sharing == Sharing::kModel) return {};
  const RunShape& shape = runs->front().shape;
  if (shape.num_experts == 0 || shape.devices == 1 || shape.devices > kMostSharing) return {};
  const auto before_s = shared_step_s(model, {configs.begin(), configs.end()}, cluster, limits);
  if (!before_s) return {};
  std::vector<SharingChoice> choices;
  const auto add = [&](const Configs& changed, std::span<const char* const> keys) {
    const auto changed_s = shared_step_s(model, changed, cluster, limits);
    if (!changed_s || *before_s / *changed_s - 1 <= kForecastError) return;
    choices.push_back(
        {named_settings(changed.front(), keys), *changed_s, *before_s / *changed_s - 1});
  };
  if (may_be_data_centric(configs.front())) add(data_centric(configs), kDataKeys);
  std::vector<PlannedRank> ranks;
  for (size_t r = 0; r < runs->size(); ++r) {
    ranks.push_back({std::move((*runs)[r]), &cluster.nodes[r]});
  }
  add(model_centric(configs, hidden_shares_by_speed(model.shape, ranks)), kModelKeys);
  std::ranges::stable_sort(choices, std::ranges::greater(), &SharingChoice::gain);
  return choices;
}

}  // namespace pagoda
