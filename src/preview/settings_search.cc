#include "preview/settings_search.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "preview/plan_changes.h"

namespace pagoda {
namespace {

// How to divide memory that device and host share, beside the division of `auto`: as much in all,
// with less or more of it on the device.
struct Division {
  double device_percent = 0, host_percent = 0;
};
constexpr Division kDivisions[] = {{15, 55}, {50, 20}};

// The part of the host's memory to use where the device has its own; the rest is left to the
// system.
constexpr double kHostPercent = 80;

bool budgets_free(const RunConfig& config, const MachineSheet& sheet) {
  return config.memory.host == MemorySize() &&
         (sheet.gpu() || config.memory.device == MemorySize());
}

std::vector<RunConfig::Memory> memory_choices(const RunConfig& config, const MachineSheet& sheet) {
  std::vector<RunConfig::Memory> choices = {config.memory};
  if (!budgets_free(config, sheet)) return choices;
  if (sheet.gpu()) {
    choices.front().host = MemorySize::of_percent(kHostPercent);
    return choices;
  }
  for (const Division& division : kDivisions) {
    RunConfig::Memory& memory = choices.emplace_back(config.memory);
    memory.device = MemorySize::of_percent(division.device_percent);
    memory.host = MemorySize::of_percent(division.host_percent);
  }
  return choices;
}

// The clipping modes to try: updates wait for the norm of all gradients, or begin in the backward.
std::vector<ClipKind> clip_choices(const RunConfig& config) {
  const ClipKind eager =
      config.optim.clip == ClipKind::kNone ? ClipKind::kNone : ClipKind::kPerExpert;
  return {ClipKind::kGlobal, eager};
}

bool same_settings(const RunConfig& a, const RunConfig& b) {
  return a.train.micro_batch_tokens == b.train.micro_batch_tokens &&
         a.optim.state == b.optim.state && a.optim.clip == b.optim.clip &&
         a.memory.device == b.memory.device && a.memory.host == b.memory.host;
}

int64_t lacking_bytes(const RunForecast& plan) {
  const auto lacks = [](int64_t needed, int64_t has) { return std::max<int64_t>(0, needed - has); };
  return lacks(plan.device_needs, plan.device_bytes) +
         lacks(plan.least.host_bytes, plan.host_bytes) +
         (plan.disk_bytes > 0 ? lacks(plan.store_bytes, plan.disk_bytes) : 0);
}

SearchedRun searched_run(const RunConfig& config, const RunForecast& plan) {
  const StepForecast& step = *plan.step;
  SearchedRun run;
  run.config = config;
  run.step_s = step.step_s();
  run.tokens_per_s = plan.tokens_per_s();
  run.mfu = plan.mfu();
  run.bottleneck = step.bottleneck();
  run.device_bytes = step.device_bytes;
  run.host_bytes = step.host_bytes;
  run.written_bytes = plan.written_bytes();
  for (const KindBytes& kind : step.kinds) {
    if (std::string(kind.name) == "state") run.state = kind;
  }
  return run;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SearchedRun::settings() const {
  RunConfig copy = config;
  OptionTable table;
  copy.declare(table);
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<const char*> keys = {"train.micro_batch_tokens", "optim.state", "optim.clip"};
  if (budgets_searched) keys.insert(keys.end(), {"memory.device", "memory.host"});
  for (const char* key : keys) settings.emplace_back(key, table.find(key)->toml());
  return settings;
}

std::string SearchedRun::text() const {
  std::string text;
  for (const auto& [key, value] : settings()) {
    text += (text.empty() ? "" : ", ") + key + " = " + value;
  }
  return text;
}

std::string SearchedRun::state_place() const {
  const int64_t device = state.device, host = std::min(state.host, state.all - device);
  const std::pair<const char*, int64_t> places[] = {
      {"device", device}, {"host", host}, {"disk", state.all - device - host}};
  std::string text;
  for (const auto& [name, bytes] : places) {
    if (bytes == state.all) return name;
    const double percent = 100 * static_cast<double>(bytes) / static_cast<double>(state.all);
    if (bytes > 0) text += strf("%s%.0f %% %s", text.empty() ? "" : ", ", percent, name);
  }
  return text;
}

std::vector<RunConfig> setting_choices(const RunConfig& config, const MachineSheet& sheet) {
  std::vector<RunConfig> choices;
  for (const int64_t tokens : micro_batch_choices(config)) {
    for (const StateFormat state : {StateFormat::kFp32, StateFormat::kBf16, StateFormat::k8Bit}) {
      for (const ClipKind clip : clip_choices(config)) {
        for (const RunConfig::Memory& memory : memory_choices(config, sheet)) {
          RunConfig& choice = choices.emplace_back(config);
          choice.train.micro_batch_tokens = tokens;
          choice.optim.state = state;
          choice.optim.clip = clip;
          choice.memory = memory;
        }
      }
    }
  }
  const bool own = std::any_of(choices.begin(), choices.end(), [&](const RunConfig& choice) {
    return same_settings(choice, config);
  });
  if (!own && config.train.micro_batch_tokens > 0) choices.push_back(config);
  return choices;
}

Result<SettingsSearch> search_settings(const ModelSizes& model, const RunConfig& config,
                                       const MachineSheet& sheet, const CoarseLimits& limits) {
  SettingsSearch search;
  Status refused;
  const RunConfig* leanest = nullptr;
  int64_t least_lacking = 0;
  const std::vector<RunConfig> choices = setting_choices(config, sheet);
  for (const RunConfig& choice : choices) {
    const auto planned = forecast_run(model, choice, sheet, limits);
    if (!planned.ok()) {
      refused = planned.status();
      continue;
    }
    ++search.tried;
    const RunForecast& plan = planned.value();
    if (!plan.fits.ok()) {
      const int64_t lacking = lacking_bytes(plan);
      if (leanest != nullptr && lacking >= least_lacking) continue;
      leanest = &choice;
      least_lacking = lacking;
      search.fits = plan.fits;
      continue;
    }
    SearchedRun& run = search.runs.emplace_back(searched_run(choice, plan));
    run.as_it_is = same_settings(choice, config);
    run.budgets_searched = budgets_free(config, sheet);
  }
  if (search.tried == 0) return refused;
  std::stable_sort(
      search.runs.begin(), search.runs.end(),
      [](const SearchedRun& a, const SearchedRun& b) { return a.step_s < b.step_s; });
  if (!search.runs.empty()) {
    search.fits = Status();
    return search;
  }
  const std::vector<PlanChange> changes = fitting_changes(model, *leanest, sheet);
  if (!changes.empty()) search.fits_with = changes.front().text;
  return search;
}

}  // namespace pagoda
