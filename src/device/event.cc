#include "device/event.h"

namespace pagoda {

Event Event::make() {
  Event event;
  event.state_ = std::make_shared<State>();
  return event;
}

void Event::signal() {
  CHECK(state_ != nullptr, "signal of an event that was not made");
  {
    std::lock_guard lock(state_->mutex);
    CHECK(!state_->happened, "event signalled twice");
    state_->happened = true;
  }
  state_->changed.notify_all();
}

bool Event::happened() const {
  if (!state_) return true;
  std::lock_guard lock(state_->mutex);
  return state_->happened;
}

void Event::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->happened; });
}

}  // namespace pagoda
