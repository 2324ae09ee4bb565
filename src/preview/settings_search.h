// The settings that a run on one machine is free to choose, all combinations of them tried, best
// first: the microbatch, the format of optimizer states, whether clipping lets updates begin in the
// backward, and memory that the run leaves to the program: of a GPU's machine more of the host's,
// of memory that device and host share how it is divided between them. Where states live (device,
// host, disk) follows from these. Pruned by the least memory of a step, ranked by the time of a
// simulated one (plan/forecast/step_forecast.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

struct SearchedRun {
  RunConfig config;      // the run's with these settings
  bool as_it_is = false;  // they were the run's already
  bool budgets_searched = false;
  double step_s = 0, tokens_per_s = 0, mfu = 0;
  Resource bottleneck = Resource::kCompute;
  int64_t device_bytes = 0, host_bytes = 0;  // of workspace and slots; of each device, of the host
  KindBytes state;                           // of optimizer states, of each device
  double written_bytes = 0;                  // to the drives, a step

  // Keys that were searched and what a run file has behind them: "optim.state", "\"8bit\"".
  std::vector<std::pair<std::string, std::string>> settings() const;
  std::string text() const;         // "train.micro_batch_tokens = 8192, optim.state = ..."
  std::string state_place() const;  // "device", "53 % host, 47 % disk"
};

struct SettingsSearch {
  int64_t tried = 0;  // combinations that are runs
  std::vector<SearchedRun> runs;  // that fit; of equal times the earlier tried one first
  // Where none does: that which lacks least, what it lacks, and what would make it fit.
  Status fits;
  std::string fits_with;
};

// All that a search tries, none of them checked, and the run as it is. `config` may leave the
// microbatch to the planner.
std::vector<RunConfig> setting_choices(const RunConfig& config, const MachineSheet& sheet);

// kUsage when no combination is a run: of the last one. REQUIRES: sheet.check(), config.validate().
// Simulates as many steps as combinations fit.
Result<SettingsSearch> search_settings(const ModelSizes& model, const RunConfig& config,
                                       const MachineSheet& sheet, const CoarseLimits& limits);

}  // namespace pagoda
