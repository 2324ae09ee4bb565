#include "preview/run_forecast.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/si_units.h"
#include "offload/page_file.h"
#include "plan/machine/model_cost.h"
#include "plan/machine/task_costs.h"
#include "plan/machine/work_cost.h"
#include "plan/step/expert_seats.h"
#include "preview/sheet_budgets.h"
#include "preview/zebra_choice.h"
#include "train/process_memory.h"
#include "train/run_setup.h"
#include "train/session.h"

namespace pagoda {
namespace {

// The run whose devices and threads are those of the sheet's machine, not of the one that plans.
Result<RunConfig> on_machine(RunConfig config, const MachineSheet& sheet) {
  int64_t& threads = config.train.threads;
  if (threads == 0) threads = std::max<int64_t>(1, static_cast<int64_t>(sheet.host.cores));
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
  if (plan.device_bytes < plan.device_needs) {
    const std::string who = plan.devices.size() > 1 ? plan.device_text() : "the device";
    return refuse((who + " has").c_str(), plan.device_bytes, "a step", plan.device_needs);
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
    for (int stage = 0; stage < shape.stages.count; ++stage) {
      const int64_t shard = shape.sums.shard(b, shape.microbatches);
      ++works[static_cast<size_t>(device_of_shard(shape.shards_of(stage), shard))].microbatches;
    }
  }
  const std::vector<int64_t> layers = shape.stages.layer_counts(shape.num_layers);
  for (int d = 0; d < shape.devices; ++d) {
    works[static_cast<size_t>(d)].layers = layers[static_cast<size_t>(shape.stages.of_device(d))];
  }
  std::vector<uint8_t> counted(static_cast<size_t>(shape.stages.count), 0);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    uint8_t& once = counted[static_cast<size_t>(shape.stage_of(l))];
    if (shape.is_moe[static_cast<size_t>(l)] == 0 || std::exchange(once, uint8_t{1}) != 0) continue;
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      for (int copy = 0; copy < shape.copies.count; ++copy) {
        ++works[static_cast<size_t>(shape.seat_of(shape.expert(l, e), copy))].experts;
      }
    }
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
  plan.least = least_memory(run);
  const int tightest = tightest_device(run.budget.device_bytes, plan.least);
  const bool differ = config.memory.device.listed().size() > 1;
  plan.tightest = differ ? std::optional(tightest) : std::nullopt;
  plan.device_bytes = run.budget.device_bytes.of(tightest);
  plan.device_needs = plan.least.on_device[static_cast<size_t>(tightest)];
  plan.host_bytes = run.budget.host_bytes;
  plan.disk_bytes = sheet.disk_bytes();
  plan.store_bytes = PageFile::disk_bytes(page_specs(run.shape, PageTable(run.shape)),
                                          config.train.save_steps > 0 ? 2 : 1,
                                          static_cast<int>(sheet.disk.drives));
  plan.fits = check_fit(plan);
  return plan;
}

}  // namespace

std::string RunForecast::device_text() const {
  if (tightest) return strf("device %d", *tightest);
  return devices.size() > 1 ? "each device" : "device";
}

double RunForecast::read_bytes() const {
  const PageTraffic::Link& link = step->traffic.fetch;
  return static_cast<double>(link.bytes + link.moves * kPageHeaderBytes);
}

double RunForecast::written_bytes() const {
  const PageTraffic::Link& link = step->traffic.write_back;
  return static_cast<double>(link.bytes + link.moves * kPageHeaderBytes);
}

namespace {

// What a transfer between two nodes takes.
Cost link_between(const ClusterSheet& cluster) {
  return WorkClock::link(cluster.network.gb_s, cluster.network.latency_us);
}

// A rank's settings, and what it has of its machine.
struct RankSettings {
  RunConfig config;
  const MachineSheet& sheet;
  RunSetup setup;  // with the devices of all ranks
  DeviceBudget device_bytes = {};
};

Result<RankSettings> settings_on(const RunConfig& planned, const MachineSheet& sheet) {
  ASSIGN_OR_RETURN(const RunConfig config, on_machine(planned, sheet));
  RETURN_IF_ERROR(config.check_sums());
  RankSettings settings{config, sheet, run_setup(config)};
  settings.setup.size.on_gpu = sheet.gpu();
  settings.device_bytes = device_budget(config, sheet, std::ssize(settings.setup.devices));
  return settings;
}

// What all ranks know of each other's devices.
Status join(std::vector<RankSettings>& ranks) {
  std::vector<DeviceSetup> all;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankSettings& rank = ranks[r];
    if (rank.sheet.gpu() != ranks.front().sheet.gpu()) {
      return Status(Exit::kUsage,
                    "some nodes have GPUs and others have none; a run computes on "
                    "devices of one kind");
    }
    for (DeviceSetup device : rank.setup.devices) {
      device.rank = static_cast<int>(r);
      device.gpu = rank.sheet.gpu();
      all.push_back(device);
    }
  }
  if (std::ssize(all) > kMostDevices) {
    return Status(Exit::kUsage, strf("the nodes have %zu devices in all, and a run has at most %d",
                                     all.size(), kMostDevices));
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    RunSetup& setup = ranks[r].setup;
    setup.devices = all;
    setup.rank = static_cast<int>(r);
    setup.deal_attention(ranks[r].config.attention_devices(std::ssize(all)));
  }
  return Status();
}

// What a GPU does by its sheet: tokens that it attends to in a second, and rows of experts.
void take_speeds(const ModelShape& model, const RankSettings& rank, DeviceSetup& device) {
  CostSettings work;
  work.sequence_len = rank.config.data.sequence_len;
  const RunShape run = make_run_shape(model, rank.setup);
  const TaskCosts costs = task_costs(rank.sheet, model, run, work).tasks;
  device.measured_attention = token_speed(costs, run) / static_cast<double>(model.num_layers());
  if (model.num_experts > 0) device.measured_experts = row_speed(costs, run);
}

// With parallel.shares = measured GPUs have the shares that a run gives them once it has measured
// them. CPU devices have those that their throttles say, as with speed.
void share_by_sheets(const ModelShape& model, std::vector<RankSettings>& ranks) {
  std::vector<DeviceSetup> devices = ranks.front().setup.devices;
  for (DeviceSetup& device : devices) {
    const RankSettings& rank = ranks[static_cast<size_t>(device.rank)];
    if (!device.gpu || rank.setup.shares != ShareKind::kMeasured) return;
    take_speeds(model, rank, device);
  }
  for (RankSettings& rank : ranks) {
    rank.setup.devices = devices;
    rank.setup.deal_attention(rank.config.attention_devices(std::ssize(devices)));
  }
}

// Leaves to each of a run's equal copies a part of every record's elements. The others have no
// gradient and no state here, as if they were frozen.
void divide_homes(const ModelShape& model, int64_t copies, FrozenTensors& frozen) {
  if (copies == 1) return;
  const std::vector<ModelRecord> records = model_records(model);
  frozen.trailing.resize(records.size(), 0);
  for (size_t r = 0; r < records.size(); ++r) {
    const int64_t trained = records[r].num_elements - frozen.trailing[r];
    frozen.trailing[r] = records[r].num_elements - div_ceil(trained, copies);
  }
}

PlannedRun plan_rank(const ModelSizes& model, RankSettings& rank) {
  RunSetup& setup = rank.setup;
  PlannedRun run;
  run.header_bytes = kPageHeaderBytes;
  run.sequence_len = rank.config.data.sequence_len;
  if (rank.sheet.knows_devices()) run.devices = setup.devices;
  run.shape = make_run_shape(model.shape, setup);
  run.group_bytes = group_bytes(run.shape, model.shape, setup);
  run.guest_bytes = guest_layer_bytes(run.shape);
  run.budget = make_budget(model.shape, setup, rank.device_bytes,
                           host_budget(rank.config, rank.sheet));
  // Stages save no layers (train/saved_layers.h).
  if (!run.shape.options.same_blocks() || run.shape.stages.several()) return run;
  setup.size.saved_layers = run.shape.num_layers;
  for (size_t d = 0; d < run.budget.fixed_bytes.size(); ++d) {
    const int device = setup.own_devices().first + static_cast<int>(d);
    const int64_t all = workspace_bytes(model.shape, setup.size, device);
    run.kept_layer_bytes.push_back((all - run.budget.fixed_bytes[d]) / run.shape.num_layers);
  }
  return run;
}

// Gives tables homes where ranks have room for them, as choose_table_ranks() does in a run.
void choose_tables(const ModelShape& model, std::vector<RankSettings>& ranks) {
  if (ranks.size() == 1) return;
  std::vector<MemoryBudget> budgets;
  for (const RankSettings& rank : ranks) {
    budgets.push_back(
        make_budget(model, rank.setup, rank.device_bytes, host_budget(rank.config, rank.sheet)));
  }
  const TableRanks chosen =
      choose_table_ranks(make_run_shape(model, ranks.front().setup), budgets, kPageHeaderBytes);
  for (RankSettings& rank : ranks) rank.setup.table_ranks = chosen;
}

Result<std::vector<PlannedRun>> plan_ranks(const ModelSizes& model,
                                           std::vector<RankSettings>& ranks,
                                           const Cost& network = {}) {
  for (RankSettings& rank : ranks) {
    RETURN_IF_ERROR(set_frozen(rank.config, model.config, rank.setup));
    divide_homes(model.shape, rank.config.equal_copies, rank.setup.frozen);
    RETURN_IF_ERROR(check_losses(model.config, rank.setup.losses));
    RETURN_IF_ERROR(check_layers(model.shape, rank.setup));
    RETURN_IF_ERROR(check_ranks(model.shape, rank.setup));
    RETURN_IF_ERROR(check_pages(make_run_shape(model.shape, rank.setup)));
  }
  share_by_sheets(model.shape, ranks);
  // Rank 0's settings are those of all.
  RankSettings& first = ranks.front();
  RankMachines machines{{}, network};
  for (const RankSettings& rank : ranks) machines.sheets.push_back(&rank.sheet);
  choose_zebra(model.shape, machines, first.config, first.setup);
  for (RankSettings& rank : ranks) {
    RunSetup& setup = rank.setup;
    setup.lags = first.setup.lags;
    setup.offloaded = first.setup.offloaded;
    setup.kept_rows = first.setup.kept_rows;
    setup.size.shard_device = first.setup.size.shard_device;
    setup.stages = first.setup.stages;
  }
  choose_tables(model.shape, ranks);
  int64_t blocks = kMostGroupBlocks, waves = kMostWaves;
  for (RankSettings& rank : ranks) {
    const RunShape shape = make_run_shape(model.shape, rank.setup);
    const GroupChoice own = choose_group(shape, model.shape, rank.setup, rank.device_bytes);
    blocks = std::min(blocks, own.blocks);
    waves = std::min(waves, own.waves);
  }
  int64_t guest_layers = model.shape.num_layers();
  for (RankSettings& rank : ranks) {
    rank.setup.size.group_blocks = blocks;
    rank.setup.waves_in_flight = waves;
    const RunShape shape = make_run_shape(model.shape, rank.setup);
    guest_layers = std::min(guest_layers,
                            choose_guest_layers(shape, model.shape, rank.setup, rank.device_bytes));
  }
  std::vector<PlannedRun> runs;
  for (RankSettings& rank : ranks) {
    rank.setup.guest_layers = guest_layers;
    runs.push_back(plan_rank(model, rank));
    RETURN_IF_ERROR(check_pages(runs.back().shape));  // with all that was chosen
  }
  return runs;
}

}  // namespace

Result<PlannedRun> planned_run(const ModelSizes& model, const RunConfig& planned,
                               const MachineSheet& sheet) {
  std::vector<RankSettings> alone;
  ASSIGN_OR_RETURN(RankSettings settings, settings_on(planned, sheet));
  alone.push_back(std::move(settings));
  ASSIGN_OR_RETURN(std::vector<PlannedRun> runs, plan_ranks(model, alone));
  return std::move(runs.front());
}

int64_t devices_of_nodes(std::span<const RunConfig> configs, const ClusterSheet& cluster) {
  CHECK(configs.size() == cluster.nodes.size());
  int64_t devices = 0;
  for (size_t r = 0; r < configs.size(); ++r) {
    const MachineSheet& node = cluster.nodes[r];
    devices += node.gpu() ? node.device.count : std::ssize(configs[r].devices());
  }
  return devices;
}

int64_t devices_of_nodes(const RunConfig& config, const ClusterSheet& cluster) {
  return devices_of_nodes(std::vector(cluster.nodes.size(), config), cluster);
}

void take_network_rates(const ClusterSheet& cluster, RunConfig& config) {
  std::vector<std::string>& rates = config.parallel.network_gb_s;
  const std::vector<double> unequal = cluster.unequal_network_gb_s();
  if (!unequal.empty() || rates.size() != cluster.nodes.size()) rates.clear();
  for (const double rate : unequal) rates.push_back(strf("%.6g", rate));
}

Result<std::vector<PlannedRun>> planned_ranks(const ModelSizes& model,
                                              std::span<const RunConfig> configs,
                                              const ClusterSheet& cluster) {
  CHECK(configs.size() == cluster.nodes.size());
  std::vector<RankSettings> ranks;
  for (size_t r = 0; r < configs.size(); ++r) {
    RunConfig config = configs[r];
    take_network_rates(cluster, config);
    ASSIGN_OR_RETURN(RankSettings settings, settings_on(config, cluster.nodes[r]));
    ranks.push_back(std::move(settings));
  }
  RETURN_IF_ERROR(join(ranks));
  return plan_ranks(model, ranks, link_between(cluster));
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
  const bool memory =
      plan.device_bytes >= plan.device_needs && run.budget.host_bytes >= plan.least.host_bytes;
  if (!memory) return plan;
  ASSIGN_OR_RETURN(plan.step, forecast_step(run, model.shape, sheet, limits));
  return plan;
}

Result<RanksForecast> forecast_ranks(const ModelSizes& model, std::span<const RunConfig> configs,
                                     const ClusterSheet& cluster, const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(std::vector<PlannedRun> planned, planned_ranks(model, configs, cluster));
  return forecast_ranks(model, configs, cluster, std::move(planned), limits);
}

Result<RanksForecast> forecast_ranks(const ModelSizes& model, std::span<const RunConfig> configs,
                                     const ClusterSheet& cluster, std::vector<PlannedRun> planned,
                                     const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model.shape));
  const RunConfig& config = configs.front();
  RanksForecast forecast;
  forecast.tokens = config.train.tokens_per_step;
  forecast.flops = model_flops(cost, config.data.sequence_len,
                               static_cast<double>(forecast.tokens / config.data.sequence_len));
  forecast.stage_layers = planned.front().shape.stages.layer_counts(model.shape.num_layers());
  std::vector<PlannedRank> ranks;
  for (size_t r = 0; r < planned.size(); ++r) {
    const MachineSheet& sheet = cluster.nodes[r];
    const PlannedRun& run = planned[r];
    forecast.peak_flops_per_s +=
        sheet.device.peak_tflops * kTera * static_cast<double>(sheet.device.count);
    forecast.store_bytes.push_back(PageFile::disk_bytes(page_specs(run.shape, PageTable(run.shape)),
                                                        configs[r].train.save_steps > 0 ? 2 : 1,
                                                        static_cast<int>(sheet.disk.drives)));
    const int64_t disk = sheet.disk_bytes();
    if (disk > 0 && forecast.store_bytes.back() > disk) {
      const std::string drives = strf("the drives of rank %zu hold", r);
      return refuse(drives.c_str(), disk, "a store", forecast.store_bytes.back());
    }
    ranks.push_back({std::move(planned[r]), &sheet});
  }
  ASSIGN_OR_RETURN(forecast.step, forecast_step(ranks, link_between(cluster), model.shape, limits));
  for (size_t r = 0; r < ranks.size(); ++r) {
    const MemoryBudget& budget = ranks[r].run.budget;
    forecast.budgets.push_back(
        {budget.device_bytes.of(forecast.step.ranks[r].fullest), budget.host_bytes});
  }
  return forecast;
}

}  // namespace pagoda
