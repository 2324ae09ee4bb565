// What a run will be on a machine, before it runs: the least memory it needs, how memory is
// divided, and one step of it simulated, every expert used by as many tokens. Coarse where the run
// is large (plan/memory/coarse_run.h). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/forecast/simulator.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"
#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"

namespace pagoda {

struct ForecastRun {
  RunShape shape;
  MemoryBudget budget;
  int64_t header_bytes = 0;  // room before each host slot's payload
  int64_t sequence_len = 0;
  int64_t group_bytes = 0;       // of MemoryPlan
  int64_t kept_layer_bytes = 0;  // that one layer can keep for its backward; 0: none does
  int64_t peers = 1;  // equal devices, of which this is one (StepWork)
};

// The least budgets of a step, exactly.
struct LeastMemory {
  int64_t device_bytes = 0, host_bytes = 0;
};
LeastMemory least_memory(const ForecastRun& run);

// Bytes of a kind of page, or of some together: all there are, and those that have slots.
struct KindBytes {
  const char* name = "";
  int64_t all = 0, device = 0, host = 0;
};

// What works, or waits, while a step runs. Links are those between devices that work side by side:
// a device that sends rows of experts or gradients to others does not compute.
enum class Resource : uint8_t { kCompute, kLinks, kUpload, kDownload, kDrive, kOptimizer, kCores };
inline constexpr int kResources = static_cast<int>(Resource::kCores) + 1;
const char* resource_name(Resource resource);

// A part of the step by the clock: until its last head, and from there on.
struct PhaseForecast {
  double seconds = 0;
  std::array<double, kResources> busy_s = {};  // of the phase; cores: core-seconds over cores
};

struct StepForecast {
  Coarseness coarseness;
  LeastMemory least;
  bool state_on_device = false;
  int64_t device_bytes = 0;        // of workspace and slots
  int64_t saved_layers = 0;        // beside them: layers that keep what their backward reads
  int64_t host_bytes = 0;
  int64_t whole_device_bytes = 0;  // MemoryPlan's
  int64_t whole_host_bytes = 0;
  std::vector<KindBytes> kinds;
  PhaseForecast forward, backward;
  PageTraffic traffic;                     // of the step
  SimulatedMemory device_peak, host_peak;  // most bytes in slots, and when in the step
  Simulated simulated;                     // of the step, from 0 s on

  double step_s() const { return forward.seconds + backward.seconds; }
  double busy_s(Resource r) const {
    return forward.busy_s[static_cast<size_t>(r)] + backward.busy_s[static_cast<size_t>(r)];
  }
  Resource bottleneck() const;  // what is busy longest
};

// `sheet`: of one device (share_of_device). kDeviceMemory and kHostMemory naming the smallest
// budget that would do. REQUIRES: sheet.check(), a shape of `model`.
Result<StepForecast> forecast_step(const ForecastRun& run, const ModelShape& model,
                                   const MachineSheet& sheet, const CoarseLimits& limits);

}  // namespace pagoda
