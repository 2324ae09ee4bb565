// What to change about a run or its machine, each change tried: what makes a run fit that does not,
// and what makes one faster that does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

struct PlanChange {
  std::string text;  // "optim.state = 8bit"
  std::function<void(RunConfig&, MachineSheet&)> apply;
};

// Single changes with which the run fits, the smallest of each kind, settings before machines; then
// settings together where none alone does. The first is the smallest.
std::vector<PlanChange> fitting_changes(const ModelSizes& model, const RunConfig& config,
                                        const MachineSheet& sheet);

struct HelpfulChange {
  std::string text;
  double tokens_per_s = 0;
  double gain = 0;  // of tokens a second, against the run planned as coarsely
};

// The fewest tokens a step, as doublings of the run's, with which the devices compute nine tenths
// of the step, and what that is. When none in six doublings does and has room: those with which
// they compute the largest part of it; of 0 tokens when none has room.
struct ComputeBound {
  int64_t tokens_per_step = 0;
  double compute_share = 0, tokens_per_s = 0;

  bool reached() const { return compute_share >= 0.9; }
};

struct PlanStudy {
  std::vector<HelpfulChange> helpful;  // those that gain a fiftieth, most first
  ComputeBound compute_bound;
};
// Nothing where the run has no room.
PlanStudy study_changes(const ModelSizes& model, const RunConfig& config, const MachineSheet& sheet,
                        const CoarseLimits& limits);

// Parts of a step in whole rows that a microbatch may be, the largest first: the step, its half,
// the half of that and so on, the smallest, and the run's own.
std::vector<int64_t> micro_batch_choices(const RunConfig& config);

// The largest part of a step that attention takes at a time without being slower than another by
// more than a hundredth (fewer microbatches are fewer launches, and more workspace); kUsage naming
// what must change when no part of train.tokens_per_step in whole rows has room.
Result<int64_t> choose_micro_batch_tokens(const ModelSizes& model, const RunConfig& config,
                                          const MachineSheet& sheet, const CoarseLimits& limits);

}  // namespace pagoda
