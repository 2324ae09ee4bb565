// Lines for the log that say what a run will move and what its drives must bear. They follow from
// the memory plan and a replay of steps in which every expert is used (plan/step/steady_run.h).
#pragma once

#include <string>
#include <vector>

#include "plan/memory/memory_plan.h"
#include "plan/step/steady_run.h"
#include "train/session.h"

namespace pagoda {

// Facts of a training run that its session does not know.
struct RunOutlook {
  int64_t steps = 0;       // of the whole run; 0: no training run
  int64_t save_steps = 0;  // steps between checkpoints; 0: there are none
  double drive_tbw = 0;    // terabytes (10^12 bytes) that each drive is rated to be written; 0:
                           // unknown
  bool resumed = false;    // the page file exists and is not written anew
};

// Predicts the bytes that the session's steps, or forward passes, move.
SteadyTraffic predict_traffic(const RunShape& shape, const PageTable& pages,
                              const MemoryPlan& memory);

// Says which tiers take part, and what would have to fit where for one tier less.
std::string offload_line(const SessionOptions& options, const MemoryPlan& memory,
                         const PageTraffic& step);
// Says what goes over each link; "" when nothing does.
std::string step_line(const SessionOptions& options, const PageTraffic& step);
// Says the page file's size and versions, the size with the other choice of versions, and the room
// on the disk.
std::string disk_line(const RunShape& shape, const PageTable& pages, const SessionOptions& options,
                      const RunOutlook& outlook);
// Say what the whole run writes to each drive, and how much of its life that is; no line if nothing
// is written.
std::vector<std::string> drive_lines(const PageTable& pages, const SessionOptions& options,
                                     const RunOutlook& outlook, const SteadyTraffic& traffic);

// Bytes in powers of 1000, as makers of drives count: "1.29 GB".
std::string format_decimal_bytes(double bytes);

}  // namespace pagoda
