#include "device/device_turn.h"

#include "base/check.h"

namespace pagoda {

void DeviceTurn::take() {
  std::unique_lock lock(mutex_);
  const int64_t before = asked_++;
  changed_.wait(lock, [&] { return left_ == before; });
}

void DeviceTurn::leave() {
  {
    std::lock_guard lock(mutex_);
    CHECK(left_ < asked_, "a turn that nobody has");
    ++left_;
  }
  changed_.notify_all();
}

}  // namespace pagoda
