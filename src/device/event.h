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

  // nullptr: of an event that counts as having happened.
  static const std::shared_ptr<State>& of(const Event& event) { return event.state_; }
  static Event event_of(std::shared_ptr<State> state);

  mutable std::mutex mutex;  // guards the rest
  mutable std::condition_variable changed;
  bool happened = false;
  int64_t happened_us = 0;
  Delays delays;
  std::vector<Continuation> continuations;
  // What a device can wait for by itself, until the event has happened: its own kind of event, or
  // the events that this one is all of (one that is gone has happened). With neither the event is
  // signalled by the host.
  std::shared_ptr<void> native;
  std::vector<std::weak_ptr<State>> parts;

  void when_happened(Continuation then);
};

}  // namespace pagoda
