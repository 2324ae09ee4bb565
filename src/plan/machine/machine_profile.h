// The costs of the pieces of a step on a machine, measured (tools/bench/simulator_check.cc) or
// assumed. Times are those of a piece that has the machine to itself; in the simulator, pieces that
// share cores or a drive slow each other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

// The cost of a piece: start_s + fixed_s + units * unit_s seconds. Tasks that are computed together
// (Task::joins_next) start once. Meanwhile the piece keeps `cores` cores busy and takes the share
// `memory` of the rate of the machine's memory.
struct Cost {
  double fixed_s = 0;
  double unit_s = 0;
  double cores = 1;
  double memory = 0;
  double start_s = 0;
  double seconds(double units) const { return start_s + joined_s(units); }
  // What one more task takes that is computed together with others.
  double joined_s(double units) const { return fixed_s + unit_s * units; }
  // The same work at this many times the seconds, as often interrupted.
  Cost slower(double factor) const {
    return {fixed_s * factor, unit_s * factor, cores / factor, memory / factor, start_s * factor};
  }
};

// [TaskKind]; units: task_units(). kExpertBackward may take MachineProfile::adding_s() more.
using TaskCosts = std::array<Cost, kTaskKinds>;

struct MachineProfile {
  double cores = 1;  // cores, shared by compute, copies, checksums and the optimizer
  TaskCosts tasks;   // of each device, and of the host's optimizer
  std::vector<TaskCosts> device_tasks = {};  // [device] where they are unlike; else empty
  Cost issue;                          // issuing a task, on the thread that does; no units
  // From the end of the work that the issuing thread waited for until it issues again.
  double wake_up_s = 0;
  // From the end of another stream's work, for which an idle stream waited, until it goes on.
  double stream_wake_s = 0;
  // How long a woken stream then waits for a core while others have all of them.
  double slice_s = 0;
  // What a transfer between two devices takes, by its bytes, before the receiver has it: each pair
  // of a rank has a wire of its own, on which one transfer follows another. Its kReceive task comes
  // then.
  Cost wire = {0, 0, 0};
  // What a transfer to another rank takes by a network card, by its bytes: the fixed part is its
  // latency, for which its receiver's lane waits, while others go on; the rest follows one behind
  // the other. A rank has a card, or each of its devices (RunShape::shares_cards).
  Cost network = {0, 0, 0};
  // Costs by byte of a page.
  Cost upload, download, checksum;
  Cost read, write;  // the drive's part; `cores`: 0 for a transfer that takes no processor time
  bool half_duplex = true;  // reads and writes share the drive's time
  // From the end of a transfer in the drive until the program knows it; transfers overlap in it.
  double completion_s = 0;

  const Cost& of(const Task& task) const {
    const bool own = !device_tasks.empty() && !task.on_host;
    return (own ? device_tasks[task.device] : tasks)[static_cast<size_t>(task.kind)];
  }
  const Cost& of(TaskKind kind) const { return tasks[static_cast<size_t>(kind)]; }
  Cost& of(TaskKind kind) { return tasks[static_cast<size_t>(kind)]; }
  // Seconds of the task without its start, as Cost::joined_s(). Costs are those of whole experts: a
  // part of one (RunShape::expert_parts) takes its share of the fixed seconds too, for which its
  // weights are read.
  double joined_s(const Task& task, const RunShape& shape) const;
  // Seconds that kExpertBackward takes beyond its Cost where it adds to a sum in a page; else 0.
  // The sum has left the caches since it was last added to, so that each element is read once more:
  // a third of what kAddSums moves, which reads two and writes one. A device's own buffers of sums
  // are taken to stay in its caches.
  double adding_s(const Task& task, const RunShape& shape) const;
};

// The units of a task, to which its time is proportional among tasks of its kind in the same run:
// rows of a block with their padding (none of which is combined), elements of a gradient, elements
// times updates of an optimizer's task, tokens, bytes that its lane copies.
double task_units(const Task& task, const RunShape& shape);

// One measured piece: some tasks that were computed together.
struct CostSample {
  double units = 0;  // of all of them
  double seconds = 0;
  double cpu_s = 0;  // time of all processors meanwhile, if asked for
  double tasks = 1;
  double own_s = 0;  // processor time of the thread that the task's stream is, if asked for
};
// Fits fixed_s and unit_s to the samples by least squares, and start_s if they are of unlike
// numbers of tasks. None is negative: the fit is the best of those without some of the three, of
// equal ones that without units. {} without samples.
Cost fit_cost(std::span<const CostSample> samples, double cores);

}  // namespace pagoda
