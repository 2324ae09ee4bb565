// How many chunks of a step a pipeline's stage has in flight: begun there, and not ended. By the
// schedules, of which a plan's tasks know nothing, and as a traced step had them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "plan/step/stages.h"

namespace pagoda {

// The most by the schedule: in 1F1B (Narayanan et al. 2021) stage s of P has P - s at most; GPipe
// (Huang et al. 2019) and breadth first take all forward before the first one's end.
inline int64_t chunks_in_flight(PipelineOrder order, int stages, int stage, int64_t chunks) {
  const bool alternates = order == PipelineOrder::kOneForwardOneBackward;
  return alternates ? std::min<int64_t>(stages - stage, chunks) : chunks;
}

// The most that a device had in flight at once. A chunk begins with the first task that names one
// of its microbatches and ends with the last. `spans`: of the device's computing lane, in one
// step; `chunk_microbatches`: neighbours that are a chunk. 0: no task names a microbatch.
inline int64_t traced_in_flight(const std::vector<Trace::Span>& spans, int64_t chunk_microbatches) {
  std::map<int64_t, std::pair<int64_t, int64_t>> times;  // [chunk] begin and end
  for (const Trace::Span& span : spans) {
    for (int i = 0; i < span.label.num_args; ++i) {
      const TraceLabel::Arg& arg = span.label.args[static_cast<size_t>(i)];
      if (arg.name != std::string_view("microbatch")) continue;
      const int64_t chunk = arg.value / chunk_microbatches;
      auto& [begin_us, end_us] = times.try_emplace(chunk, span.begin_us, span.end_us).first->second;
      begin_us = std::min(begin_us, span.begin_us);
      end_us = std::max(end_us, span.end_us);
    }
  }
  // A lane does one task after the other: what begins when another ends is behind it.
  int64_t most = 0;
  for (const auto& [chunk, at] : times) {
    const auto open = std::ranges::count_if(times, [begin_us = at.first](const auto& other) {
      return other.second.first <= begin_us && other.second.second > begin_us;
    });
    most = std::max<int64_t>(most, open);
  }
  return most;
}

}  // namespace pagoda
