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

// The least makespan below `bound`, or `bound` if there is none. It tries active schedules one by
// one (Giffler and Thompson 1960), among which one is optimal. It leaves out states whose bound is
// no better, and states seen before at the same time or earlier. Among equal jobs the one that came
// first to an operation goes first; that loses nothing, since they could change names.
ShortestSchedule shortest_schedule(const std::vector<Job>& jobs, int machines, int64_t bound,
                                   int64_t most_states);

}  // namespace pagoda
