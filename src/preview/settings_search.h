// Tries all combinations of the settings that a run on one machine is free to choose, and ranks
// them by the time of a simulated step (plan/forecast/step_forecast.h). The settings are the
// microbatch, the format of optimizer states, whether clipping lets updates begin in the backward,
// and memory that the run leaves to the program: beside a GPU, how much of the host's memory to
// use; where device and host share memory, how to divide it. Where states live (device, host, disk)
// follows from these. Combinations whose least memory is too large are left out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

struct SearchedRun {
  RunConfig config;      // the run's with these settings
  bool as_it_is = false;  // the run has these settings already
  bool budgets_searched = false;
  double step_s = 0, tokens_per_s = 0, mfu = 0;
  Resource bottleneck = Resource::kCompute;
  int64_t device_bytes = 0, host_bytes = 0;  // workspace and slots of each device; slots of the
                                             // host
  KindBytes state;                           // one device's optimizer states
  double written_bytes = 0;                  // to the drives, a step

  // The keys that were searched with their values in a run file: "optim.state", "\"8bit\"".
  std::vector<std::pair<std::string, std::string>> settings() const;
  std::string text() const;         // "train.micro_batch_tokens = 8192, optim.state = ..."
  std::string state_place() const;  // "device", "53 % host, 47 % disk"
};

struct SettingsSearch {
  int64_t tried = 0;  // combinations that make valid runs
  std::vector<SearchedRun> runs;  // runs that fit; among equal times the one tried first comes
                                  // first
  // If none fits: what the run that lacks least lacks, and what would make it fit.
  Status fits;
  std::string fits_with;
};

// All runs that a search tries, unchecked, and the run as it is. `config` may leave the microbatch
// to the planner.
std::vector<RunConfig> setting_choices(const RunConfig& config, const MachineSheet& sheet);

// kUsage, with the last combination's reason, when none makes a valid run. REQUIRES: sheet.check(),
// config.validate_for_planning(). Simulates one step for each combination that fits.
Result<SettingsSearch> search_settings(const ModelSizes& model, const RunConfig& config,
                                       const MachineSheet& sheet, const CoarseLimits& limits);

}  // namespace pagoda
