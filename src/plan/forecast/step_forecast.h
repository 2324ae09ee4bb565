// Predicts a run on a machine: the least memory it needs, how memory is divided, and one simulated
// step in which all experts have equally many tokens. Large runs are predicted coarsely
// (plan/memory/coarse_run.h). Several ranks are simulated together, each on a machine of its own.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/forecast/simulator.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"
#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"

namespace pagoda {

// A run on all devices of a machine; of several ranks, the part of RunShape::rank on its machine.
struct PlannedRun {
  RunShape shape;
  MemoryBudget budget;
  int64_t header_bytes = 0;  // room before each host slot's payload
  int64_t sequence_len = 0;
  // [own device] MemoryPlan::group_bytes, and guest_layer_bytes(). Empty: none.
  std::vector<int64_t> group_bytes = {}, guest_bytes = {};
  // [own device] what one layer can save for its backward; 0, or empty: nothing does.
  std::vector<int64_t> kept_layer_bytes = {};
  // Devices that may be unlike, of all ranks; empty: a CPU that takes all cores, or GPUs that are
  // alike.
  std::vector<DeviceSetup> devices = {};
  // The routing of each step, not owned; the run is then planned in pieces of its own size.
  // nullptr: every expert gets as many tokens.
  const Routing* routing = nullptr;

  // What groups and guests take on an own device beyond the least of a step.
  int64_t chosen_bytes(size_t device) const {
    const int64_t of_groups = group_bytes.empty() ? 0 : group_bytes[device];
    return of_groups + (guest_bytes.empty() ? 0 : guest_bytes[device]);
  }
};
struct PlannedRank {
  PlannedRun run;
  const MachineSheet* sheet = nullptr;  // not owned
};

// The exact least budgets of a step. device_bytes: of each device, where all have the same.
struct LeastMemory {
  int64_t device_bytes = 0, host_bytes = 0;
  std::vector<int64_t> on_device = {};  // [own device] of it, where they differ
};
LeastMemory least_memory(const PlannedRun& run);

// The own device whose budget exceeds its least by least, or lacks most; among equals the first.
int tightest_device(const DeviceBudget& budget, const LeastMemory& least);

// Bytes of one or several kinds of pages: all pages, and those that have slots.
struct KindBytes {
  const char* name = "";
  int64_t all = 0, device = 0, host = 0;
};

// What works while a step runs. Links carry rows and sums of gradients from device to device, the
// network those between ranks.
enum class Resource : uint8_t {
  kCompute,
  kLinks,
  kNetwork,
  kUpload,
  kDownload,
  kDrive,
  kOptimizer,
  kCores
};
inline constexpr int kResources = static_cast<int>(Resource::kCores) + 1;
const char* resource_name(Resource resource);

// A part of the step by the clock: until its last head task, or from there on.
struct PhaseForecast {
  double seconds = 0;
  std::array<double, kResources> busy_s = {};  // within the phase; cores: core-seconds over cores
};

// What is said of memory and of bytes is said of rank 0, but for `ranks`.
struct StepForecast {
  Coarseness coarseness;
  LeastMemory least;
  bool state_on_device = false, weights_travel = false;  // MemoryPlan's
  int64_t device_bytes = 0;        // of workspace and slots, on the device that has most
  // RunShape's of the whole run; on one device a group is in flight.
  int64_t group_blocks = 1, waves_in_flight = 1;
  int64_t saved_layers = 0;        // layers that also save what their backward reads
  int64_t host_bytes = 0;
  int64_t whole_device_bytes = 0;  // MemoryPlan's
  int64_t whole_host_bytes = 0;
  std::vector<KindBytes> kinds;
  PhaseForecast forward, backward;
  PageTraffic traffic;                     // of the step
  SimulatedMemory device_peak, host_peak;  // most bytes in slots, and when in the step
  Simulated simulated;                     // of the step, from 0 s on

  std::vector<double> device_busy_s;       // [device] how long it computes in the step
  struct Rank {
    LeastMemory least;
    int64_t device_bytes = 0;  // of workspace and slots, on its device that has most
    int fullest = 0;           // the device, among its own
    int64_t host_bytes = 0;
    PageTraffic traffic;
    int64_t sent_bytes = 0;  // to other ranks
  };
  std::vector<Rank> ranks;

  double step_s() const { return forward.seconds + backward.seconds; }
  // The mean over the devices, or the ranks, for a resource that each of them has.
  double busy_s(Resource r) const {
    return forward.busy_s[static_cast<size_t>(r)] + backward.busy_s[static_cast<size_t>(r)];
  }
  Resource bottleneck() const;  // the resource that is busy longest
};

// kDeviceMemory and kHostMemory naming the smallest budget that would do. REQUIRES: sheet.check(),
// a shape of `model`.
Result<StepForecast> forecast_step(const PlannedRun& run, const ModelShape& model,
                                   const MachineSheet& sheet, const CoarseLimits& limits);
// The step that all ranks make together. `network`: a transfer from one rank to another, by byte,
// on one link, unless the rank's sheet has the rate of its own; a rank of several GPUs has as many.
// Errors name the rank. REQUIRES: one run for each rank, in their order, alike but for their
// budgets.
Result<StepForecast> forecast_step(std::span<const PlannedRank> ranks, const Cost& network,
                                   const ModelShape& model, const CoarseLimits& limits);

}  // namespace pagoda
