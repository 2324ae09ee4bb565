#include "device/event.h"

#include <atomic>

namespace pagoda {

Event Event::make() {
  Event event;
  event.state_ = std::make_shared<State>();
  return event;
}

void Event::signal() {
  CHECK(state_ != nullptr, "signal of an event that was not made");
  // A waiter may destroy this handle as soon as it wakes.
  const std::shared_ptr<State> state = state_;
  std::vector<std::function<void()>> continuations;
  {
    std::lock_guard lock(state->mutex);
    CHECK(!state->happened, "event signalled twice");
    state->happened = true;
    continuations.swap(state->continuations);
  }
  state->changed.notify_all();
  for (const auto& then : continuations) then();
}

void Event::when_happened(std::function<void()> then) const {
  if (state_) {
    std::lock_guard lock(state_->mutex);
    if (!state_->happened) {
      state_->continuations.push_back(std::move(then));
      return;
    }
  }
  then();
}

Event when_all(const std::vector<Event>& events) {
  std::vector<const Event*> open;
  for (const Event& event : events) {
    if (!event.happened()) open.push_back(&event);
  }
  if (open.empty()) return Event();
  if (open.size() == 1) return *open[0];
  Event all = Event::make();
  auto left = std::make_shared<std::atomic<size_t>>(open.size());
  for (const Event* event : open) {
    event->when_happened([all, left]() mutable {
      if (left->fetch_sub(1) == 1) all.signal();
    });
  }
  return all;
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
