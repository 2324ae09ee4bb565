#include "device/event.h"

#include <atomic>

namespace pagoda {

Event Event::make() {
  Event event;
  event.state_ = std::make_shared<State>();
  return event;
}

Event Event::State::event_of(std::shared_ptr<State> state) {
  Event event;
  event.state_ = std::move(state);
  return event;
}

void Event::signal(const Delays& delays) {
  CHECK(state_ != nullptr, "signal of an event that was not made");
  // A waiter may destroy this handle as soon as it wakes.
  const std::shared_ptr<State> state = state_;
  std::vector<State::Continuation> continuations;
  std::shared_ptr<void> native;  // dropped outside the lock
  {
    std::lock_guard lock(state->mutex);
    CHECK(!state->happened, "event signalled twice");
    state->happened = true;
    state->happened_us = monotonic_us();
    state->delays = delays;
    continuations.swap(state->continuations);
    native.swap(state->native);
    state->parts.clear();
  }
  state->changed.notify_all();
  for (const auto& then : continuations) then(state->delays);
}

void Event::State::when_happened(Continuation then) {
  {
    std::lock_guard lock(mutex);
    if (!happened) {
      continuations.push_back(std::move(then));
      return;
    }
  }
  then(delays);  // not written any more
}

void Event::when_happened(std::function<void()> then) const {
  if (!state_) return then();
  state_->when_happened([then = std::move(then)](const Delays&) { then(); });
}

Delays Event::followed_by(WorkKind own) const {
  CHECK(happened());
  return state_ ? Delays(own, state_->happened_us, state_->delays) : Delays(own);
}

Event when_all(const std::vector<Event>& events) {
  std::vector<Event> open;
  for (const Event& event : events) {
    if (!event.happened()) open.push_back(event);
  }
  if (open.empty()) return Event();
  if (open.size() == 1) return open[0];
  Event all = Event::make();
  for (const Event& event : open) all.state_->parts.push_back(event.state_);
  auto left = std::make_shared<std::atomic<size_t>>(open.size());
  for (const Event& event : open) {
    event.state_->when_happened([all, left](const Delays& delays) mutable {
      if (left->fetch_sub(1) == 1) all.signal(delays);
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
