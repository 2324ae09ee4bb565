#include "preview/model_centric_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pagoda {
namespace {

constexpr int kMostSharing = 16;  // a plan stays one of seconds

// In small whole numbers, where speeds are in ratios of such.
std::vector<std::string> hidden_shares_by_speed(const PlannedRun& run) {
  constexpr double kFastest = 60;
  std::vector<double> speeds(static_cast<size_t>(run.shape.devices), 1);
  for (size_t d = 0; d < run.devices.size(); ++d) speeds[d] = run.devices[d].expert_speed();
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  std::vector<int64_t> shares;
  int64_t divisor = 0;
  for (const double speed : speeds) {
    shares.push_back(std::max<int64_t>(1, std::llround(kFastest * speed / fastest)));
    divisor = std::gcd(divisor, shares.back());
  }
  std::vector<std::string> texts;
  for (const int64_t share : shares) texts.push_back(std::to_string(share / divisor));
  return texts;
}

// Whether whole experts are computed together by all devices, which have more than one.
bool may_have_parts(const RunConfig& config, const PlannedRun& run) {
  return config.parallel.sharing != Sharing::kModel && run.shape.devices > 1 &&
         run.shape.devices <= kMostSharing;
}

}  // namespace

std::string ModelCentricChoice::text() const {
  std::string shares;
  for (const std::string& share : hidden_shares) {
    shares += (shares.empty() ? "\"" : ", \"") + share + "\"";
  }
  return strf(
             "%.0f %% faster in other bits: parallel.sharing = \"model\", "
             "parallel.hidden_shares = [",
             100 * gain) +
         shares + "]";
}

std::optional<ModelCentricChoice> recommend_model_centric(const ModelSizes& model,
                                                          std::span<const RunConfig> configs,
                                                          const ClusterSheet& cluster,
                                                          const CoarseLimits& limits) {
  auto runs = planned_ranks(model, configs, cluster);
  if (!runs.ok() || !may_have_parts(configs.front(), runs->front())) return {};
  ModelCentricChoice choice{hidden_shares_by_speed(runs->front())};
  std::vector<RunConfig> changed(configs.begin(), configs.end());
  for (RunConfig& config : changed) {
    config.parallel.sharing = Sharing::kModel;
    config.parallel.hidden_shares = choice.hidden_shares;
    if (!config.validate_for_planning().ok()) return {};
  }
  ModelSizes cut = model;
  if (!cut.cut_experts(changed.front().hidden_shares()).ok()) return {};
  auto before = forecast_ranks(model, configs, cluster, limits);
  auto after = forecast_ranks(cut, changed, cluster, limits);
  if (!before.ok() || !after.ok()) return {};
  choice.step_s = after->step.step_s();
  choice.gain = before->step.step_s() / choice.step_s - 1;
  if (choice.gain <= kForecastError) return {};
  return choice;
}

}  // namespace pagoda
