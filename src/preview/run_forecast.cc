#include "preview/run_forecast.h"

#include "base/bytes.h"
#include "offload/page_file.h"
#include "plan/machine/model_cost.h"
#include "train/run_setup.h"
#include "train/session.h"

namespace pagoda {
namespace {

Status check_division(const ModelShape& model, int64_t microbatches, int64_t peers) {
  if (model.num_experts % peers != 0) {
    return Status(Exit::kUsage, strf("%lld devices do not divide the %lld experts of a layer; plan "
                                     "for as many as do",
                                     (long long)peers, (long long)model.num_experts));
  }
  if (microbatches % peers == 0) return Status();
  return Status(Exit::kUsage, strf("%lld devices do not divide the %lld microbatches of a step; "
                                   "raise train.tokens_per_step or lower train.micro_batch_tokens",
                                   (long long)peers, (long long)microbatches));
}

RunSetup on_one_device(RunSetup setup) {
  setup.devices.resize(1);
  setup.size.shard_device.clear();
  return setup;
}

// The share of one of `peers` equal devices.
RunShape peers_share(const RunShape& whole, int64_t peers) {
  if (peers == 1) return whole;
  RunShape share = whole;
  share.num_experts /= peers;
  share.set_microbatches(share.microbatches / peers);
  share.ep_degree = peers;  // the router's probabilities are of all
  share.records.clear();
  share.layer_record.clear();
  for (RecordShape record : whole.records) {
    if (record.expert >= share.num_experts) continue;
    if (record.expert < 0) record.state_bytes = div_ceil(record.state_bytes, peers);
    if (record.layer >= 0 && record.expert < 0) {
      share.layer_record.push_back(static_cast<int64_t>(share.records.size()));
    }
    share.records.push_back(record);
  }
  return share;
}

Status refuse(const char* what, int64_t has, const char* wants, int64_t needed) {
  return Status(Exit::kDoesNotFit, strf("%s %s for %s of at least %s", what,
                                        format_bytes(has).c_str(), wants,
                                        format_bytes_up(needed).c_str()));
}

Status check_fit(const RunForecast& plan) {
  const int64_t host = plan.host_bytes / plan.peers;
  if (plan.device_bytes < plan.least.device_bytes) {
    return refuse("the device has", plan.device_bytes, "a step", plan.least.device_bytes);
  }
  if (host < plan.least.host_bytes) {
    return refuse("the host has", host, "a step", plan.least.host_bytes);
  }
  if (plan.disk_bytes > 0 && plan.store_bytes > plan.disk_bytes) {
    return refuse("the drives hold", plan.disk_bytes, "a store", plan.store_bytes);
  }
  return Status();
}

RunForecast begin_forecast(const ModelSizes& model, const RunConfig& config,
                           const MachineSheet& sheet, const DeviceRun& run, const ModelCost& cost) {
  RunForecast plan;
  plan.peers = run.peers;
  plan.parameters = count_parameters(model.shape);
  plan.tokens = config.train.tokens_per_step;
  plan.flops = model_flops(cost, config.data.sequence_len,
                           static_cast<double>(plan.tokens / config.data.sequence_len));
  plan.peak_flops_per_s = sheet.device.peak_tflops * 1e12 * static_cast<double>(run.peers);
  plan.device_bytes = run.budget.device_bytes.least();
  plan.host_bytes = run.budget.host_bytes * run.peers;
  plan.disk_bytes = sheet.disk_bytes();
  plan.least = least_memory(run);
  const PageTable pages(make_run_shape(model.shape, on_one_device(run_setup(config))));
  plan.store_bytes = PageFile::disk_bytes(page_specs(pages), config.train.save_steps > 0 ? 2 : 1,
                                          static_cast<int>(sheet.disk.drives));
  plan.fits = check_fit(plan);
  return plan;
}

}  // namespace

double RunForecast::read_bytes() const {
  const PageTraffic::Link& link = step->traffic.fetch;
  return static_cast<double>(peers * (link.bytes + link.moves * kPageHeaderBytes));
}

double RunForecast::written_bytes() const {
  const PageTraffic::Link& link = step->traffic.write_back;
  return static_cast<double>(peers * (link.bytes + link.moves * kPageHeaderBytes));
}

Result<DeviceRun> device_run(const ModelSizes& model, const RunConfig& config,
                             const MachineSheet& sheet) {
  const int64_t peers = sheet.device.count;
  RETURN_IF_ERROR(config.check_sums());
  RETURN_IF_ERROR(check_division(model.shape, config.micro_batches(), peers));
  RunSetup setup = run_setup(config);
  setup.size.on_gpu = sheet.gpu();
  if (peers > 1) setup = on_one_device(setup);
  DeviceRun run;
  run.shape = peers_share(make_run_shape(model.shape, setup), peers);
  run.header_bytes = kPageHeaderBytes;
  run.sequence_len = config.data.sequence_len;
  run.peers = peers;
  if (!sheet.gpu() && setup.num_devices() > 1) run.devices = setup.devices;
  setup.size.microbatches = run.shape.microbatches;
  setup.size.sums = run.shape.sums;
  // Families that are trained are planned with the workspace that `train` takes, which has room for
  // the sums of every record.
  if (!model.trained) setup.size.records = std::ssize(run.shape.records);
  // Devices of a CPU share its memory.
  const int64_t own = sheet.gpu() ? sheet.device_bytes() : sheet.device_bytes() / run.shape.devices;
  const DeviceBudget device_bytes = config.device_budget(
      std::vector(static_cast<size_t>(run.shape.devices), own),
      sheet.gpu() ? kAutoGpu : kAutoDevice);
  const int64_t host_bytes =
      config.memory.host.resolve(sheet.host_bytes(), sheet.auto_host_bytes()) / peers;
  const GroupChoice group = choose_group(run.shape, model.shape, setup, device_bytes);
  run.shape.group_blocks = setup.size.group_blocks = group.blocks;
  run.group_bytes = group.bytes;
  run.budget = make_budget(model.shape, setup, device_bytes, host_bytes);
  if (!run.shape.options.same_blocks()) return run;
  setup.size.saved_layers = run.shape.num_layers;
  run.kept_layer_bytes = (workspace_bytes(model.shape, setup.size, 0) -
                          run.budget.fixed_bytes.front()) / run.shape.num_layers;
  return run;
}

Result<RunForecast> forecast_memory(const ModelSizes& model, const RunConfig& config,
                                    const MachineSheet& sheet) {
  ASSIGN_OR_RETURN(const DeviceRun run, device_run(model, config, sheet));
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model.shape));
  return begin_forecast(model, config, sheet, run, cost);
}

Result<RunForecast> forecast_run(const ModelSizes& model, const RunConfig& config,
                         const MachineSheet& sheet, const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(const DeviceRun run, device_run(model, config, sheet));
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model.shape));
  RunForecast plan = begin_forecast(model, config, sheet, run, cost);
  const bool memory = plan.device_bytes >= plan.least.device_bytes &&
                      run.budget.host_bytes >= plan.least.host_bytes;
  if (!memory) return plan;
  ASSIGN_OR_RETURN(plan.step, forecast_step(run, model.shape, share_of_device(sheet), limits));
  return plan;
}

}  // namespace pagoda
