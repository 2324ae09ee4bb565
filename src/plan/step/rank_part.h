// A rank's part of a step. A rank is a process with some of the run's devices, a host memory and a
// page file of its own. All ranks make the same list of tasks, since all know the shape of the run
// and the routing of all microbatches; each runs those of its own devices and of its host. So the
// list of all is one total order: a task waits for earlier ones only, both ends of a transfer are
// in it, and what a rank waits for is what the others do next (docs/design.md). Pure.
//
// The tasks of a part keep the numbers that devices have in the run (Task::device, peer). Their
// pages' places are those of the rank: devices are counted from its first one, and the host is its
// own.
#pragma once

#include <utility>
#include <vector>

#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

// Whether RunShape::rank runs the task. A task on a host is of the rank that its device is of.
inline bool runs_here(const RunShape& shape, const Task& task) {
  return shape.rank_of(task.device) == shape.rank;
}

// The task with the places of the rank. REQUIRES: runs_here().
Task with_own_places(const RunShape& shape, Task task);

// The tasks of RunShape::rank, in their order.
TaskList own_part(const RunShape& shape, const TaskList& all);

// Appends the uses of pages by the rank's tasks, in order: what they make certain to come.
void add_own_uses(const RunShape& shape, const TaskList& all, std::vector<PageUse>& uses);

// [task] whether a round of transfers ends before it; the last one ends with the list. `all`: a
// piece of a step, with the tasks of all ranks (StepPiece::all_tasks()).
//
// Transfers of a round, which are between devices of different ranks, may start together, since
// none of them waits for another: they are a wave's rows on their way to the experts, or back, no
// lane receives twice, as it takes one after the other, and no parcel has two parts among them. So
// a carrier comes to the end of every list that runs a round as one piece of work on each device,
// and rounds one behind the other, as NCCL does.
std::vector<bool> transfer_rounds(const RunShape& shape, const PageTable& pages,
                                  const TaskList& all);

// [task] how many of the piece's rounds end before the rank issues its task, counted from the
// piece's first; behind the last task all of them. A round ends as soon as the rank has issued its
// part of it, so that nothing that it waits for later is in a round that is open.
struct EndedRounds {
  std::vector<int> before;  // [task] of own_part(all)
  int all = 0;
};
EndedRounds ended_rounds(const RunShape& shape, const PageTable& pages, const TaskList& all);

// What a transfer goes from or to: a device, or behind all devices the host of a rank.
inline int device_end(int device) { return device; }
inline int host_end(const RunShape& shape, int rank) { return shape.devices + rank; }
// What the transfer that the task is an end of goes from, and to.
std::pair<int, int> transfer_ends(const RunShape& shape, const Task& task);

}  // namespace pagoda
