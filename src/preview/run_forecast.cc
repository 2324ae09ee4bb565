#include "preview/run_forecast.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/si_units.h"
#include "offload/page_file.h"
#include "plan/machine/model_cost.h"
#include "plan/step/expert_seats.h"
#include "train/run_setup.h"
#include "train/session.h"

namespace pagoda {
namespace {

// The run whose devices are the machine's.
Result<RunConfig> on_machine(RunConfig config, const MachineSheet& sheet) {
  if (!sheet.gpu()) return config;
  auto listed = parse_devices(config.train.devices);
  if (listed.ok() && !listed->empty() && !names_gpus(*listed)) {
    return Status(Exit::kUsage,
                  "train.devices names CPU devices, and the sheet has the rates of GPUs alone; "
                  "leave train.devices out, or plan with a sheet of kind cpu");
  }
  if (sheet.device.count > kMostDevices) {
    return Status(Exit::kUsage, strf("the sheet has %lld devices; a run has at most %d",
                                     (long long)sheet.device.count, kMostDevices));
  }
  config.train.devices = {strf("cuda*%lld", (long long)sheet.device.count)};
  return config;
}

Status refuse(const char* what, int64_t has, const char* wants, int64_t needed) {
  return Status(Exit::kDoesNotFit,
                strf("%s %s for %s of at least %s", what, format_bytes(has).c_str(), wants,
                     format_bytes_up(needed).c_str()));
}

Status check_fit(const RunForecast& plan) {
  if (plan.device_bytes < plan.least.device_bytes) {
    return refuse(plan.devices.size() > 1 ? "each device has" : "the device has", plan.device_bytes,
                  "a step", plan.least.device_bytes);
  }
  if (plan.host_bytes < plan.least.host_bytes) {
    return refuse("the host has", plan.host_bytes, "a step", plan.least.host_bytes);
  }
  if (plan.disk_bytes > 0 && plan.store_bytes > plan.disk_bytes) {
    return refuse("the drives hold", plan.disk_bytes, "a store", plan.store_bytes);
  }
  return Status();
}

std::vector<RunForecast::DeviceWork> works_of(const RunShape& shape) {
  std::vector<RunForecast::DeviceWork> works(static_cast<size_t>(shape.devices));
  for (int64_t b = 0; b < shape.microbatches; ++b) {
    ++works[static_cast<size_t>(shape.attending(b))].microbatches;
  }
  const auto moe = std::find(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1});
  if (moe == shape.is_moe.end()) return works;
  for (const int home : layer_seats(shape, moe - shape.is_moe.begin(), {})) {
    ++works[static_cast<size_t>(home)].experts;
  }
  return works;
}

RunForecast begin_forecast(const ModelSizes& model, const RunConfig& config,
                           const MachineSheet& sheet, const PlannedRun& run,
                           const ModelCost& cost) {
  RunForecast plan;
  plan.devices = works_of(run.shape);
  plan.seats_by_step = !run.shape.seat_speeds.empty();
  plan.parameters = count_parameters(model.shape);
  plan.tokens = config.train.tokens_per_step;
  plan.flops = model_flops(cost, config.data.sequence_len,
                           static_cast<double>(plan.tokens / config.data.sequence_len));
  plan.peak_flops_per_s =
      sheet.device.peak_tflops * kTera * static_cast<double>(sheet.device.count);
  plan.device_bytes = run.budget.device_bytes.least();
  plan.host_bytes = run.budget.host_bytes;
  plan.disk_bytes = sheet.disk_bytes();
  plan.least = least_memory(run);
  plan.store_bytes = PageFile::disk_bytes(page_specs(run.shape, PageTable(run.shape)),
                                          config.train.save_steps > 0 ? 2 : 1,
                                          static_cast<int>(sheet.disk.drives));
  plan.fits = check_fit(plan);
  return plan;
}

}  // namespace

double RunForecast::read_bytes() const {
  const PageTraffic::Link& link = step->traffic.fetch;
  return static_cast<double>(link.bytes + link.moves * kPageHeaderBytes);
}

double RunForecast::written_bytes() const {
  const PageTraffic::Link& link = step->traffic.write_back;
  return static_cast<double>(link.bytes + link.moves * kPageHeaderBytes);
}

Result<PlannedRun> planned_run(const ModelSizes& model, const RunConfig& planned,
                               const MachineSheet& sheet) {
  ASSIGN_OR_RETURN(const RunConfig config, on_machine(planned, sheet));
  RETURN_IF_ERROR(config.check_sums());
  RunSetup setup = run_setup(config);
  setup.size.on_gpu = sheet.gpu();
  PlannedRun run;
  RETURN_IF_ERROR(check_layers(model.shape, setup));
  run.shape = make_run_shape(model.shape, setup);
  run.header_bytes = kPageHeaderBytes;
  run.sequence_len = config.data.sequence_len;
  if (!sheet.gpu() && setup.num_devices() > 1) run.devices = setup.devices;
  // Families that are trained are planned with the workspace that `train` takes, which has room for
  // the sums of every record.
  if (!model.trained) setup.size.records = std::ssize(run.shape.records);
  // Devices of a CPU share its memory.
  const int64_t own = sheet.gpu() ? sheet.device_bytes() : sheet.device_bytes() / run.shape.devices;
  const DeviceBudget device_bytes = config.device_budget(
      std::vector(static_cast<size_t>(run.shape.devices), own),
      sheet.gpu() ? kAutoGpu : kAutoDevice);
  const int64_t host_bytes =
      config.memory.host.resolve(sheet.host_bytes(), sheet.auto_host_bytes());
  const GroupChoice group = choose_group(run.shape, model.shape, setup, device_bytes);
  run.shape.group_blocks = setup.size.group_blocks = group.blocks;
  run.group_bytes = group.bytes;
  run.budget = make_budget(model.shape, setup, device_bytes, host_bytes);
  if (!run.shape.options.same_blocks()) return run;
  setup.size.saved_layers = run.shape.num_layers;
  run.kept_layer_bytes =
      (workspace_bytes(model.shape, setup.size, 0) - run.budget.fixed_bytes.front()) /
      run.shape.num_layers;
  return run;
}

Result<RunForecast> forecast_memory(const ModelSizes& model, const RunConfig& config,
                                    const MachineSheet& sheet) {
  ASSIGN_OR_RETURN(const PlannedRun run, planned_run(model, config, sheet));
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model.shape));
  return begin_forecast(model, config, sheet, run, cost);
}

Result<RunForecast> forecast_run(const ModelSizes& model, const RunConfig& config,
                                 const MachineSheet& sheet, const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(const PlannedRun run, planned_run(model, config, sheet));
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model.shape));
  RunForecast plan = begin_forecast(model, config, sheet, run, cost);
  const bool memory = plan.device_bytes >= plan.least.device_bytes &&
                      run.budget.host_bytes >= plan.least.host_bytes;
  if (!memory) return plan;
  ASSIGN_OR_RETURN(plan.step, forecast_step(run, model.shape, sheet, limits));
  return plan;
}

}  // namespace pagoda
