// Tries changes of a run or its machine: those that make a run fit which does not, and those that
// make one faster which does.
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

// Single changes with which the run fits, the smallest of each kind, settings before machines. If
// no setting alone makes it fit, several settings together. The first change is the smallest.
std::vector<PlanChange> fitting_changes(const ModelSizes& model, const RunConfig& config,
                                        const MachineSheet& sheet);

struct HelpfulChange {
  std::string text;
  double tokens_per_s = 0;
  double gain = 0;  // relative gain in tokens a second over the run, planned as coarsely
};

// The fewest tokens a step, among six doublings of the run's, with which the devices compute for
// nine tenths of the step. If no doubling that has room reaches this, the one with the largest
// compute share; 0 tokens if none has room.
struct ComputeBound {
  int64_t tokens_per_step = 0;
  double compute_share = 0, tokens_per_s = 0;

  bool reached() const { return compute_share >= 0.9; }
};

struct PlanAdvice {
  std::vector<HelpfulChange> helpful;  // changes that gain a fiftieth or more, the largest gain
                                       // first
  ComputeBound compute_bound;
  // With several devices: how many other assignments of work to them were tried, and the best of
  // them if it gains as much as a helpful change; "" if none does.
  int64_t assignments = 0;
  std::string best_assignment;
};
// Empty if the run has no room.
PlanAdvice advise(const ModelSizes& model, const RunConfig& config, const MachineSheet& sheet,
                  const CoarseLimits& limits);

// The tokens that a microbatch may have, in whole rows and the largest first: the step, its half, a
// quarter and so on, the smallest part, and the run's own choice.
std::vector<int64_t> micro_batch_choices(const RunConfig& config);

// The largest microbatch whose step is at most a hundredth slower than the fastest. (Fewer
// microbatches need fewer launches and more workspace.) Where the run has several ranks, one that
// would also have room if each of them had this machine. kUsage naming what must change when no
// part of train.tokens_per_step in whole rows has room.
Result<int64_t> choose_micro_batch_tokens(const ModelSizes& model, const RunConfig& config,
                                          const MachineSheet& sheet, int ranks,
                                          const CoarseLimits& limits);

}  // namespace pagoda
