// Timing: the bytes that one candidate of a round moved, and how long that took; and the clock for
// it.
#pragma once

#include <cstdint>
#include <vector>

namespace pagoda {

struct Timing {
  int64_t bytes = 0;  // bytes, operations, elements or tokens: the Figure's unit
  double seconds = 0;
  double cpu_seconds = 0;  // user and system time of all threads of the process that moved them

  double gb_per_s() const { return static_cast<double>(bytes) / seconds / 1e9; }
  double cpu_s_per_billion() const { return cpu_seconds / (static_cast<double>(bytes) / 1e9); }
};

// Wall clock and CPU time of this whole process since the construction.
class TimingClock {
 public:
  TimingClock();
  Timing finish(int64_t bytes) const;

 private:
  int64_t start_us_, cpu_start_us_;
};

// The value below which `share` of the values lie, between neighbours in proportion: 0 the
// smallest, 0.5 the median, 1 the largest. REQUIRES: at least one value, share in [0, 1].
double quantile(std::vector<double> values, double share);

}  // namespace pagoda
