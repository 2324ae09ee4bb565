// The state behind an Event. Device-internal.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace pagoda {

struct Event::State {
  using Continuation = std::function<void(const Delays&)>;

  // nullptr for an event that counts as having happened.
  static const std::shared_ptr<State>& of(const Event& event) { return event.state_; }
  static Event event_of(std::shared_ptr<State> state);

  mutable std::mutex mutex;  // guards the rest
  mutable std::condition_variable changed;
  bool happened = false;
  int64_t happened_us = 0;
  Delays delays;
  std::vector<Continuation> continuations;
  // Until the event has happened, a device can wait for these by itself: its own kind of event, or
  // the events that this one combines (an expired one has happened). Without either the host
  // signals the event.
  std::shared_ptr<void> native;
  std::vector<std::weak_ptr<State>> parts;

  void when_happened(Continuation then);
};

}  // namespace pagoda
