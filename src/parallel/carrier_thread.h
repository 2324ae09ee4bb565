// The thread that owns a carrier: it opens it, makes all its calls and leaves it, so that a library
// that wants one thread has one. Other threads post messages, which it carries in the background.
//
// Messages go by flows: a flow is what one rank sends another on one channel, in the order in which
// it was posted. A message begins when it is at the front of its flow and its event has happened.
// It goes in parts of Carrier::kMostBytes. Of what goes to a peer no more than kWindowBytes are
// under way at a time, save that each flow may have one part under way: so flows never wait for
// each other, and a message on a flow of its own soon has its turn on the wire.
//
// A waiting thread sleeps. It looks again after an eighth of the time that nothing has happened, at
// least every 2 ms, so that a message arrives up to that much later than it could.
//
// The first error is the last: from then on the carrier is not used any more, and every message,
// also one that is posted later, ends with that error as soon as its event has happened. What it
// would have received is zeros.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "parallel/carrier.h"

namespace pagoda {

class CarrierThread {
 public:
  static constexpr int64_t kWindowBytes = 2 * kMiB;

  using Open = std::function<Result<std::unique_ptr<Carrier>>()>;
  // Runs `open` on the new thread and waits for it, but no longer than `deadline_s` (0: as long as
  // it takes): then kStopped. Throws std::system_error when the system refuses the thread.
  static Result<std::unique_ptr<CarrierThread>> start(Open open, double deadline_s);
  // Ends the thread without leaving the carrier, if leave() was not called.
  ~CarrierThread();
  CarrierThread(const CarrierThread&) = delete;
  CarrierThread& operator=(const CarrierThread&) = delete;

  int rank() const;
  int size() const;

  struct End {
    Status status;
    int64_t begin_us = 0, end_us = 0;  // of monotonic_us(): when it could begin, when it ended
  };
  struct Message {
    bool sends = false;
    int peer = 0;
    int channel = 0;
    std::byte* data = nullptr;
    int64_t bytes = 0;  // neither more nor less may come
    Event ready;  // the memory may be used from then on
    // The flow may stand still for so long while this is at its front, ready and expected; 0: for
    // ever. Then everything ends with kStopped.
    double deadline_s = 0;
    Event expected;
    std::function<std::string()> about;  // what an error calls it, "transfer 17 from 0 to 2"
    // Called once, on the carrier's thread, which it must not block.
    std::function<void(const End&)> then;
    const void* owner = nullptr;  // for forget()
  };
  // Any thread; messages of one flow from one thread.
  void post(std::vector<Message> messages);

  // Ends everything with `why`, unless there was an error before. Any thread.
  void fail(const Status& why);
  Status status() const;  // any thread

  // Ends the messages of an owner at once, and returns when none of their memory is used any more.
  // An error for all if one is under way: the peer's half of it cannot be taken back.
  void forget(const void* owner);

  // Leaves the carrier, which waits for the other ranks to do so, but no longer than `deadline_s`
  // (0: as long as it takes). REQUIRES: all messages have ended. Nothing is posted afterwards.
  Status leave(double deadline_s);

  // Names of the ranks' hosts, for errors. Any thread.
  void set_hosts(std::vector<std::string> hosts);
  std::string rank_text(int rank) const;  // "rank 2 on node07"

 private:
  class Loop;
  explicit CarrierThread(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

  // The thread holds it too, since a thread that a library does not return to is left behind.
  std::shared_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace pagoda
