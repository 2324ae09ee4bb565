// Ends a test that hangs: aborts with `what` on stderr when it is still alive after `limit`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace pagoda {

class Watchdog {
 public:
  Watchdog(std::string what, std::chrono::seconds limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  const std::string what_;
  const std::chrono::seconds limit_;
  std::mutex mutex_;  // guards done_
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;  // last: starts when the rest exists
};

}  // namespace pagoda
