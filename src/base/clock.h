// Clocks: wall time that never goes back, and processor time of this process.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace pagoda {

// Microseconds since some moment before the program began. Never goes back.
inline int64_t monotonic_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Microseconds of processor time on one of the kernel's clocks of it, to this moment. (getrusage
// tells what was counted at the newest tick or switch of threads, up to 4 ms ago.)
inline int64_t cpu_us(clockid_t clock) {
  timespec time = {};
  ::clock_gettime(clock, &time);  // fails for bad arguments only
  return static_cast<int64_t>(time.tv_sec) * 1000000 + static_cast<int64_t>(time.tv_nsec) / 1000;
}

// Processor time of all threads of this process.
inline int64_t process_cpu_us() { return cpu_us(CLOCK_PROCESS_CPUTIME_ID); }
// Processor time of the calling thread.
inline int64_t thread_cpu_us() { return cpu_us(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace pagoda
