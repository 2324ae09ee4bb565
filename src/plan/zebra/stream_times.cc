#include "plan/zebra/stream_times.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda {

StreamTimes time_streams(std::span<const StreamTask> tasks, int num_streams) {
  StreamTimes times;
  times.start_s.reserve(tasks.size());
  times.end_s.reserve(tasks.size());
  times.streams.resize(static_cast<size_t>(num_streams));
  for (const StreamTask& task : tasks) {
    CHECK(task.stream >= 0 && task.stream < num_streams && task.seconds >= 0);
    StreamTimes::Stream& stream = times.streams[static_cast<size_t>(task.stream)];
    double start_s = stream.end_s;
    for (const int32_t earlier : task.after) {
      if (earlier < 0) continue;
      CHECK(static_cast<size_t>(earlier) < times.end_s.size(), "a task waits for a later one");
      start_s = std::max(start_s, times.end_s[static_cast<size_t>(earlier)]);
    }
    if (stream.tasks++ == 0) stream.start_s = start_s;
    stream.busy_s += task.seconds;
    stream.end_s = start_s + task.seconds;
    times.start_s.push_back(start_s);
    times.end_s.push_back(stream.end_s);
    times.makespan_s = std::max(times.makespan_s, stream.end_s);
  }
  return times;
}

}  // namespace pagoda
