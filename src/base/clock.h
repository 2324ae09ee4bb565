// Clocks: wall time that never goes back, and processor time of this process.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstdint>

namespace pagoda {

// Microseconds since some moment before the program began. Never goes back.
inline int64_t monotonic_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Microseconds of processor time, user's and system's: getrusage's RUSAGE_SELF or RUSAGE_THREAD.
inline int64_t cpu_us(int whose) {
  rusage usage = {};
  ::getrusage(whose, &usage);  // fails for bad arguments only
  const auto us_of = [](const timeval& time) {
    return static_cast<int64_t>(time.tv_sec) * 1000000 + static_cast<int64_t>(time.tv_usec);
  };
  return us_of(usage.ru_utime) + us_of(usage.ru_stime);
}

// Processor time of all threads of this process.
inline int64_t process_cpu_us() { return cpu_us(RUSAGE_SELF); }
// Processor time of the calling thread.
inline int64_t thread_cpu_us() { return cpu_us(RUSAGE_THREAD); }

}  // namespace pagoda
