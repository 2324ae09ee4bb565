// What a machine takes for the pieces of a step: measured (tools/bench/simulator_check.cc) or
// assumed. Times are those of a piece that has the machine to itself; what shares cores or a drive
// slows each other in the simulator.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

// fixed_s + units * unit_s seconds, busy on `cores` cores all the while, with `memory` of what the
// machine's memory moves at most, and for `link` of unit_s waiting for links to other devices.
struct Cost {
  double fixed_s = 0;
  double unit_s = 0;
  double cores = 1;
  double memory = 0;
  double link = 0;
  double seconds(double units) const { return fixed_s + unit_s * units; }
};

struct MachineProfile {
  double cores = 1;  // that compute, copies, checksums and the optimizer share
  std::array<Cost, kTaskKinds> tasks;  // by TaskKind; units: task_units()
  Cost issue;                          // of a task, on the thread that issues; no units
  // From the end of what the thread that issues waited for until it issues again.
  double wake_up_s = 0;
  // How long a stream that may go on waits for a core while others have all of them.
  double slice_s = 0;
  // By byte of a page.
  Cost upload, download, checksum;
  Cost read, write;  // the drive's part; `cores` of a transfer without cost to the processor: 0
  bool half_duplex = true;  // reads and writes share the drive's time
  // Between the end of a transfer in the drive and the program's knowing; transfers overlap in it.
  double completion_s = 0;

  const Cost& of(TaskKind kind) const { return tasks[static_cast<size_t>(kind)]; }
  Cost& of(TaskKind kind) { return tasks[static_cast<size_t>(kind)]; }
};

// What the time of a task is proportional to, as against others of its kind in the same run: rows
// of a block with their padding (none of it is combined), elements of a gradient, elements times
// updates of an optimizer's task, tokens.
double task_units(const Task& task, const RunShape& shape);

// One measured piece.
struct CostSample {
  double units = 0;
  double seconds = 0;
  double cpu_s = 0;  // of all processors meanwhile, where that was asked for
};
// The line through the samples with the least sum of squared errors, so that the seconds of all
// add up; through the origin where it would begin below it; a constant where all units are equal.
// {} without samples.
Cost fit_cost(std::span<const CostSample> samples, double cores);

}  // namespace pagoda
