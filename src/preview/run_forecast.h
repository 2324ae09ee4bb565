// Predicts a run from a run file, a config.json and a machine's sheet: parameters, memory, the time
// of one step, and what its drives must bear. No weights are needed.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/forecast/step_forecast.h"
#include "preview/model_sizes.h"

namespace pagoda {

// The run as `train` makes it on the machine: on all its GPUs where it has some, else on the CPU
// devices of train.devices. Where train.threads is 0, the devices divide the cores of the sheet,
// not of the machine that plans. kUsage: CPU devices on a machine with GPUs, which the sheet has no
// rates for; sums that the run's microbatches do not divide. kHostMemory: check_pages().
Result<PlannedRun> planned_run(const ModelSizes& model, const RunConfig& config,
                             const MachineSheet& sheet);

// The parts of a run that has a process on each node of a cluster, as `train` makes it under a
// launcher. configs: [rank] its settings. kUsage also: nodes with GPUs and nodes without, more
// ranks than records or devices than a run may have. GPUs are equally fast, but with
// parallel.shares = measured, of which they have the shares that their sheets' rates say. Network
// cards are as fast as take_network_rates() has them. REQUIRES: a configuration for each node.
Result<std::vector<PlannedRun>> planned_ranks(const ModelSizes& model,
                                              std::span<const RunConfig> configs,
                                              const ClusterSheet& cluster);

// The devices of all nodes that such a run has, for RunConfig::total_devices: where its ranks have
// settings of their own (configs: [rank]), and where all have the same.
int64_t devices_of_nodes(std::span<const RunConfig> configs, const ClusterSheet& cluster);
int64_t devices_of_nodes(const RunConfig& config, const ClusterSheet& cluster);

// Sets parallel.network_gb_s to the rates of the cluster's nodes, where these differ. Else the
// run's own stay if there are as many as nodes.
void take_network_rates(const ClusterSheet& cluster, RunConfig& config);

struct RunForecast {
  ParameterCount parameters;
  int64_t tokens = 0;  // tokens of a step on all devices
  double flops = 0;    // the model's operations for these, without recomputation
  // Budgets of a device and of the host, and what the drives hold (0: unknown). Where devices have
  // budgets of their own the device is the tightest one, else each.
  int64_t device_bytes = 0, host_bytes = 0, disk_bytes = 0;
  std::optional<int> tightest;
  int64_t device_needs = 0;          // what a step needs at least on that device
  LeastMemory least;                 // the least budgets that would do
  int64_t store_bytes = 0;           // bytes of the page files on all drives
  // [device] what it does: microbatches of a step that it attends to, experts of a layer that have
  // their home there, and the layers of its stage.
  struct DeviceWork {
    int64_t microbatches = 0, experts = 0, layers = 0;
    bool operator==(const DeviceWork&) const = default;
  };
  std::vector<DeviceWork> devices;
  // Experts that do not stay on the devices are computed where their rows say, not at home.
  bool seats_by_step = false;
  double peak_flops_per_s = 0;       // peak of all devices together
  Status fits;                       // ok, or kDoesNotFit and why
  std::optional<StepForecast> step;  // the step, if the run fits

  double tokens_per_s() const { return static_cast<double>(tokens) / step->step_s(); }
  double mfu() const { return flops / (peak_flops_per_s * step->step_s()); }
  std::string device_text() const;  // "device", "each device", or "device 1", the tightest
  double read_bytes() const;  // read from the drives in a step
  double written_bytes() const;
};

// A step of a run with a process on each node of a cluster.
struct RanksForecast {
  int64_t tokens = 0;
  double flops = 0, peak_flops_per_s = 0;  // as RunForecast's, of all nodes
  std::vector<LeastMemory> budgets;        // [rank] of its fullest device and of the host
  std::vector<int64_t> store_bytes;        // [rank] of its page files
  std::vector<int64_t> stage_layers;       // [stage] how many it has
  StepForecast step;

  double tokens_per_s() const { return static_cast<double>(tokens) / step.step_s(); }
  double mfu() const { return flops / (peak_flops_per_s * step.step_s()); }
};

// Predicts the memory, without a step. REQUIRES: sheet.check(), config.validate_for_planning().
// Returns the errors of planned_run.
Result<RunForecast> forecast_memory(const ModelSizes& model, const RunConfig& config,
                                    const MachineSheet& sheet);
// Predicts the memory and a step. A step that has no room is no error.
Result<RunForecast> forecast_run(const ModelSizes& model, const RunConfig& config,
                                 const MachineSheet& sheet, const CoarseLimits& limits);

// Predicts a step of all ranks; the network's latency and rate are those within a switch. The
// errors of planned_ranks; kDeviceMemory, kHostMemory and, for drives, kDoesNotFit name the rank
// that has too little.
Result<RanksForecast> forecast_ranks(const ModelSizes& model, std::span<const RunConfig> configs,
                                     const ClusterSheet& cluster, const CoarseLimits& limits);
// The same of what planned_ranks() has made of them.
Result<RanksForecast> forecast_ranks(const ModelSizes& model, std::span<const RunConfig> configs,
                                     const ClusterSheet& cluster, std::vector<PlannedRun> planned,
                                     const CoarseLimits& limits);

}  // namespace pagoda
