// Computes when tasks run that are queued in streams and wait for one another, if nothing else
// slows them: a task begins when the task before it in its stream and all that it waits for have
// ended. plan/forecast/timeline.h times tasks that share cores or a drive, and gives the same times
// if nothing is shared. This one makes a single pass over a list, so that a search may time
// thousands of lists. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace pagoda {

struct StreamTask {
  int32_t stream = 0;
  double seconds = 0;
  std::array<int32_t, 3> after = {-1, -1, -1};  // indices of tasks before it in the list; -1: none
};

struct StreamTimes {
  struct Stream {
    int64_t tasks = 0;
    double busy_s = 0;
    double start_s = 0, end_s = 0;  // start of its first task, end of its last; 0 without tasks
  };
  std::vector<double> start_s, end_s;  // [task]
  std::vector<Stream> streams;
  double makespan_s = 0;
};

// A stream's tasks run in the order of the list. O(tasks).
// REQUIRES: finite seconds >= 0, streams in [0, num_streams), tasks that wait for earlier ones.
StreamTimes time_streams(std::span<const StreamTask> tasks, int num_streams);

}  // namespace pagoda
