// How long a slowed stream's thread has to sleep, so that its work takes a multiple of its
// processor time, whoever else uses the cores: while others have the core of the thread, it need
// not sleep. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pagoda {

class SleepDebt {
 public:
  // Work took so much by the clock and of a processor, and should take `slowness` times the latter.
  void add_work(double slowness, int64_t wall_us, int64_t cpu_us) {
    owed_us_ += slowness * static_cast<double>(cpu_us) - static_cast<double>(wall_us);
    owed_us_ = std::max(owed_us_, -kMostAheadUs);
  }
  void add_sleep(int64_t wall_us) { owed_us_ -= static_cast<double>(wall_us); }
  // 0: it is too little to be worth a sleep.
  int64_t due_us() const { return owed_us_ < kLeastSleepUs ? 0 : static_cast<int64_t>(owed_us_); }

 private:
  static constexpr double kLeastSleepUs = 200;  // a sleep ends some 60 us late
  // Where the thread did not get enough of the cores, later work makes up for no more than this.
  static constexpr double kMostAheadUs = 20000;
  double owed_us_ = 0;  // below 0: it slept too long
};

}  // namespace pagoda
