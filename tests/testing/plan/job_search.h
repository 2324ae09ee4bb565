// The shortest way to run jobs through machines, by exhaustive search: what plans of schedules are
// judged by.
#pragma once

#include <cstdint>
#include <vector>

namespace pagoda {

struct Operation {
  int32_t machine = 0;
  int64_t time = 0;
};
// Its operations run one after the other; a machine does one operation at a time, to its end.
using Job = std::vector<Operation>;

struct ShortestSchedule {
  int64_t makespan = 0;
  bool certain = false;  // false: the search stopped at its limit; the makespan is the best so far
  int64_t states = 0;
};

// The least makespan below `bound`, or `bound` where there is none. Active schedules are tried one
// by one (Giffler and Thompson 1960), of which one is optimal; states whose bound is no better, and
// those seen before at the same time or earlier, are left. Of equal jobs the one that came first to
// an operation goes first, which costs nothing: they could change names.
ShortestSchedule shortest_schedule(const std::vector<Job>& jobs, int machines, int64_t bound,
                                   int64_t most_states);

}  // namespace pagoda
