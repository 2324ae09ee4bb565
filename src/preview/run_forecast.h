// What a run file, a config.json and a machine's sheet come to before anything runs: parameters,
// memory, one step on the clock, and what its drives must bear. No weights are needed.
#pragma once

#include <optional>
#include <string>

#include "config/run_config.h"
#include "plan/forecast/step_forecast.h"
#include "preview/model_sizes.h"

namespace pagoda {

// The run as one of the machine's devices has it: with several, each attends to its part of the
// microbatches, has its part of each layer's experts and of the dense records' states, and has its
// part of the host (share_of_device). kUsage: experts or microbatches that the devices do not
// divide.
Result<ForecastRun> forecast_run(const ModelSizes& model, const RunConfig& config,
                                 const MachineSheet& sheet);

struct RunForecast {
  ParameterCount parameters;
  int64_t tokens = 0;  // of a step, all devices
  double flops = 0;    // of the model for them, nothing computed again
  // Budgets, of each device and of the host, and what the drives hold (0: not told).
  int64_t device_bytes = 0, host_bytes = 0, disk_bytes = 0;
  LeastMemory least;                 // that would do
  int64_t store_bytes = 0;           // of all drives
  int64_t peers = 1;                 // devices; what is of one of them below is so often there
  double peak_flops_per_s = 0;       // of all devices
  Status fits;                       // or kDoesNotFit, and why
  std::optional<StepForecast> step;  // of one device, where it fits

  double tokens_per_s() const { return static_cast<double>(tokens) / step->step_s(); }
  double mfu() const { return flops / (peak_flops_per_s * step->step_s()); }
  double read_bytes() const;  // from the drives, of a step
  double written_bytes() const;
};

// What fits and what does not, without a step. REQUIRES: sheet.check(), config.validate(). The
// errors of forecast_run.
Result<RunForecast> outline_run(const ModelSizes& model, const RunConfig& config,
                                const MachineSheet& sheet);
// And with one. A step that has no room is no error.
Result<RunForecast> forecast_run(const ModelSizes& model, const RunConfig& config,
                                 const MachineSheet& sheet, const CoarseLimits& limits);

}  // namespace pagoda
