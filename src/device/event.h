// The state behind an Event. Device-internal.
#pragma once

#include <condition_variable>
#include <mutex>

#include "device/device.h"

namespace pagoda {

struct Event::State {
  mutable std::mutex mutex;  // guards happened
  mutable std::condition_variable changed;
  bool happened = false;
};

}  // namespace pagoda
