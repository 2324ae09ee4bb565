// The state behind an Event. Device-internal.
#pragma once

#include <condition_variable>
#include <mutex>

#include "device/device.h"

namespace pagoda {

struct Event::State {
  using Continuation = std::function<void(const Delays&)>;

  mutable std::mutex mutex;  // guards the rest
  mutable std::condition_variable changed;
  bool happened = false;
  int64_t happened_us = 0;
  Delays delays;
  std::vector<Continuation> continuations;

  void when_happened(Continuation then);
};

}  // namespace pagoda
