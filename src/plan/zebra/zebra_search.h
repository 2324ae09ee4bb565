// What zebra leaves open in a run (parallel.layout = zebra): how many devices attend, how many
// experts of each layer they keep (Asym-EA), and the lags. The clock of actions times candidates,
// with the costs of the run's own devices; an expert whose weights do not stay on its device takes
// as long as they come, if that is longer. Each stage has a clock, and as many devices that attend
// as the others, and so has each copy. No bit depends on the choice. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "plan/machine/machine_profile.h"
#include "plan/zebra/action_clock.h"
#include "plan/zebra/run_times.h"

namespace pagoda {

// The streams of stage s begin at kPipelineStreams * s: those of StepStream, then one to the next
// stage and one to the stage before, whose tasks are of kSend.
inline constexpr int kPipelineStreams = kStepStreams + 2;

// The tasks of the run's actions. `boundary_s`: a chunk's rows on their way from stage to stage.
TimedActions time_run(const RunShape& shape, PassExtent extent, const ActionTimes& times,
                      double boundary_s = 0);

// [layer] so many experts in all, evenly over the layers that have some, more in the later ones.
std::vector<int64_t> spread_experts(int64_t experts, const std::vector<uint8_t>& is_moe);

// The lags that are worth trying: 0 to 3 and R - 1 of R chunks for each; the head's and attention's
// only if they count, where the last layer has experts. Some may wait for each other. At most 125.
std::vector<Lags> lag_choices(int64_t chunks, bool last_layer_experts);

struct ZebraRun {
  int64_t attention_devices = 1;   // of each copy of each stage
  std::vector<int64_t> offloaded;  // [layer] experts that devices which attend keep
  Lags lags;
  double step_s = 0;
  int64_t timed = 0;  // candidates
};

// A run in zebra's order with so many devices that attend, and so many experts of each layer there.
using ZebraShape = std::function<RunShape(int64_t attention_devices, int64_t offloaded)>;

// What is given stays; 1 to `most_attending` devices may attend.
struct OpenZebra {
  int64_t most_attending = 1;
  // Experts of a layer that each of these keeps, at most. More than the waves on their way have
  // room for would take further waves, which the clock does not see.
  int64_t most_of_layer = std::numeric_limits<int64_t>::max();
  // Experts of all layers that are kept at least, and on each of these devices at most (n_min and
  // n_max of HeterMoE).
  int64_t least_in_all = 0, most_in_all = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> attention_devices;
  std::optional<std::vector<int64_t>> offloaded;
  std::optional<Lags> lags;
  // Gives run_times() its rooms, for so many devices that attend and experts of each layer there.
  // Candidates that do not fit come last. Empty: all weights stay on their devices.
  std::function<std::vector<WeightRoom>(int64_t attention_devices, int64_t offloaded)> rooms = {};
};

// The fastest of a few hundred candidates for each number of devices that attend; the first among
// equals. Experts that are kept are spread over the layers evenly, as by Algorithm 1 of HeterMoE.
// REQUIRES: shapes with several chunks, and devices that do not attend.
ZebraRun search_zebra(const OpenZebra& open, const ZebraShape& shape,
                      const MachineProfile& profile);

}  // namespace pagoda
