// The state behind an Event. Device-internal.
#pragma once

#include <condition_variable>
#include <mutex>

#include "device/device.h"

namespace pagoda {

struct Event::State {
  mutable std::mutex mutex;  // guards happened and continuations
  mutable std::condition_variable changed;
  bool happened = false;
  std::vector<std::function<void()>> continuations;
};

}  // namespace pagoda
