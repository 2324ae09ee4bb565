// The thread that owns a carrier: it opens it, makes all its calls and leaves it, so that a library
// that wants one thread has one. Other threads post messages, which it moves in the background
// (carrier_flows.h says how).
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

#include "parallel/carrier_flows.h"

namespace pagoda {

class CarrierThread {
 public:
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

  // Any thread; messages of one flow from one thread.
  void post(std::vector<CarriedMessage> messages);

  // Ends everything with `why`, unless there was an error before. Any thread.
  void fail(const Status& why);
  // The same, since a peer is lost: the error also says what it was waited for in.
  void lose(int peer, const Status& why);
  Status status() const;  // any thread
  // `tell` is called once, with the error that is the first, on whatever thread met it; at once if
  // there was one before.
  void when_failed(std::function<void(const Status&)> tell);

  // Gives the link up (carrier_flows.h): its messages end with `why`, here and on the other ranks.
  // Ignored if it was given up before. Any thread.
  void give_up_link(const Status& why);
  CarrierFlows::GivenUp link_given_up() const;  // any thread
  void set_link_deadline(double seconds);       // for the others to hear of it; 0: none

  // Ends the messages of an owner at once, and returns when none of their memory is used any more.
  // If one is under way, everything ends with an error, unless the link is given up.
  void forget(const void* owner);

  // Runs `work` on the carrier's thread, and waits for it. REQUIRES: nothing is under way. An error
  // is one for all.
  Status call(std::function<Status(Carrier&)> work);

  // Leaves the carrier, which waits for the other ranks to do so, but no longer than `deadline_s`
  // (0: as long as it takes). REQUIRES: all messages have ended. Nothing is posted afterwards.
  Status leave(double deadline_s);

  RankWaits& waits();  // for heartbeats, which end before this

  std::string rank_text(int rank) const;  // "rank 2 on node07"; any thread

 private:
  class Loop;
  explicit CarrierThread(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

  // The thread holds it too, since a thread that a library does not return to is left behind.
  std::shared_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace pagoda
