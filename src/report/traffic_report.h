// What a run will move and what its drive must bear, as lines for the log: all of it from the
// memory plan and a replay of steps in which every expert is used (plan/step/steady_run.h).
#pragma once

#include <string>
#include <vector>

#include "plan/memory/memory_plan.h"
#include "plan/step/steady_run.h"
#include "train/session.h"

namespace pagoda {

// What is known of a training run besides its session.
struct RunOutlook {
  int64_t steps = 0;       // of the whole run; 0: no training run
  int64_t save_steps = 0;  // distance of checkpoints; 0: none
  double drive_tbw = 0;    // 10^12 bytes that each drive may be written by its rating; 0: not told
  bool resumed = false;    // the page file is there, and not written again
};

// The session's steps, or forward passes, by the bytes they move.
SteadyTraffic predict_traffic(const RunShape& shape, const PageTable& pages,
                              const MemoryPlan& memory);

// Which memories take part, and what would have to fit where for one less.
std::string offload_line(const SessionOptions& options, const MemoryPlan& memory,
                         const PageTraffic& step);
// What goes over each link; "" when nothing does.
std::string step_line(const SessionOptions& options, const PageTraffic& step);
// The page file: size, versions and what the other choice would take, room on the disk.
std::string disk_line(const PageTable& pages, const SessionOptions& options,
                      const RunOutlook& outlook);
// What is written to each drive by the whole run, and how much of its life that is; none where
// nothing is.
std::vector<std::string> drive_lines(const PageTable& pages, const SessionOptions& options,
                                     const RunOutlook& outlook, const SteadyTraffic& traffic);

// As makers of drives count: "1.29 GB".
std::string format_decimal_bytes(double bytes);

}  // namespace pagoda
