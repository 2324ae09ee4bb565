// Turns on what one may use at a time: whoever asks first is first.
//
// Sessions that share a device of the host take turns on it: of their computing streams one
// computes at a time. A stream of the host device that has a turn (StreamOptions::turn) takes it
// before work and leaves it when it stands still for an event or has nothing left to do. So while
// one session's rows are on their way, the others compute (Aurora section 6.1: computing competes,
// communication overlaps), and the phases of two sessions alternate.
//
// No stream waits for anything while it has the turn, so that whoever asks for it gets it. GPUs
// share themselves out, and take no turns.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace pagoda {

class DeviceTurn {
 public:
  // Any thread. Blocks until all that asked before have left; the caller then leaves it in turn.
  void take();
  // REQUIRES: the caller has it.
  void leave();

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  int64_t asked_ = 0, left_ = 0;
};

}  // namespace pagoda
