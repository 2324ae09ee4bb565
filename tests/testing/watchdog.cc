#include "tests/testing/watchdog.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace pagoda {

Watchdog::Watchdog(std::string what, std::chrono::seconds limit)
    : what_(std::move(what)), limit_(limit), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, limit_, [this] { return done_; })) return;
  std::fprintf(stderr, "HANGS for %lld s: %s\n", (long long)limit_.count(), what_.c_str());
  std::abort();
}

}  // namespace pagoda
