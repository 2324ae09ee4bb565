// Ends a test that hangs: aborts with `what` on stderr when it is still alive after `limit`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace pagoda {

class Watchdog {
 public:
  Watchdog(std::string what, std::chrono::seconds limit)
      : what_(std::move(what)), limit_(limit), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, limit_, [this] { return done_; })) return;
    std::fprintf(stderr, "HANGS for %lld s: %s\n", (long long)limit_.count(), what_.c_str());
    std::abort();
  }

  const std::string what_;
  const std::chrono::seconds limit_;
  std::mutex mutex_;  // guards done_
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;  // last: starts when the rest exists
};

}  // namespace pagoda
