#include "preview/layout_choice.h"

#include <algorithm>

#include "base/log.h"
#include "plan/machine/device_profile.h"
#include "preview/run_forecast.h"
#include "train/run_setup.h"

namespace pagoda {

bool has_profile_of(const ModelSizes& model, const MachineSheet& sheet, const RunConfig& config) {
  const std::string key =
      profile_key(model.shape, config.train.micro_batch_tokens, config.data.sequence_len);
  const std::vector<ListedDevice> devices = config.devices();
  return !devices.empty() &&
         std::all_of(devices.begin(), devices.end(), [&](const ListedDevice& device) {
           return measured_costs(sheet.profile, key, device.text()).has_value();
         });
}

bool any_has_profile_of(const ModelSizes& model, const ClusterSheet& cluster,
                        const RunConfig& config) {
  return std::ranges::any_of(
      cluster.nodes, [&](const MachineSheet& node) { return has_profile_of(model, node, config); });
}

std::optional<RunConfig> as_zebra(const ModelShape& model, RunConfig config) {
  if (config.parallel.layout == LayoutKind::kAuto) config.parallel.layout = LayoutKind::kZebra;
  if (!config.zebra() || !config.validate_for_planning().ok()) return std::nullopt;
  if (!check_layers(model, run_setup(config)).ok()) return std::nullopt;
  return config;
}

namespace {

// 0: it does not fit.
Result<double> step_s(const ModelSizes& model, const MachineSheet& sheet, const RunConfig& config) {
  ASSIGN_OR_RETURN(const RunForecast run, forecast_run(model, config, sheet, kFinePlan));
  return run.step ? run.step->step_s() : 0.0;
}

std::string step_text(double seconds) {
  return seconds > 0 ? strf("takes %.3f s", seconds) : "does not fit";
}

}  // namespace

Result<LayoutChoice> choose_layout(const ModelSizes& model, const MachineSheet& sheet,
                                   RunConfig& config) {
  LayoutChoice choice;
  if (config.parallel.layout != LayoutKind::kAuto) return choice;
  const std::optional<RunConfig> zebra = as_zebra(model.shape, config);
  if (!zebra || !has_profile_of(model, sheet, config)) return choice;
  RunConfig experts = config;
  experts.parallel.layout = LayoutKind::kExperts;
  choice.simulated = true;
  ASSIGN_OR_RETURN(choice.zebra_s, step_s(model, sheet, *zebra));
  ASSIGN_OR_RETURN(choice.experts_s, step_s(model, sheet, experts));
  config = choice.zebra() ? *zebra : experts;
  return choice;
}

Status choose_layout(const MachineSheet& measured, RunConfig& config) {
  ASSIGN_OR_RETURN(const ModelSizes model, read_model_sizes(config.model.path));
  ASSIGN_OR_RETURN(const LayoutChoice choice, choose_layout(model, measured, config));
  if (choice.simulated) {
    log_info(strf("parallel.layout %s, as planned for %s: a step with zebra %s, with experts %s",
                  choice.zebra() ? "zebra" : "experts", measured.machine.name.c_str(),
                  step_text(choice.zebra_s).c_str(), step_text(choice.experts_s).c_str()));
  }
  return Status();
}

}  // namespace pagoda
