// Ranks tell each other that they live, beside what carries their data: a thread with a TCP
// connection to every other rank (IPv4). It sends a frame (heartbeat_frame.h) every period. A rank
// is lost when nothing has come from it for the deadline, or when its connection ends without a
// goodbye; whoever notices tells all others. The first loss is the last word: it becomes status().
// A period and a half without a word is a warning, and when the rank is heard again, there is a
// line. A rank that lives and goes no further is lost too: whom the carrier's deadline accuses
// (rank_waits.h).
//
// Frames carry a key that the ranks share by their communicator. What does not know it is closed
// and counted, and does nothing else; a warning at the end tells how many there were. All that a
// stranger can take is a few connections for a few seconds.
//
// Threading: start() and stop() on one thread, the rest on any.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "parallel/communicator.h"
#include "parallel/rank_waits.h"

namespace pagoda {

class HeartbeatLoop;

class Heartbeat {
 public:
  struct Options {
    double period_s = 5;
    double deadline_s = 60;
    int first_port = 0, last_port = 0;  // ports to listen on, one is taken; 0: any
    RankWaits* waits = nullptr;  // of this rank's carrier, which lives as long; may be nullptr
  };
  // Called once on the heartbeat's thread, at the first loss, with the rank and what status() is
  // from then on.
  using OnLoss = std::function<void(int rank, const Status&)>;

  // Connects all ranks, which all call it. The same error everywhere: kUnavailable when a port
  // cannot be had, or a rank not be reached within the deadline, and the communicator's. Throws
  // std::system_error when the system refuses the thread.
  static Result<std::unique_ptr<Heartbeat>> start(Communicator& all, const Options& options,
                                                  OnLoss on_loss);
  ~Heartbeat();  // stops it
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // What this rank is doing, for the message of its loss: the next frame takes it along, cut to 72
  // bytes.
  void progress(const std::string& word);
  // kStopped once a rank is lost: "rank 2 on node07 has been silent for 60 s; it was last at ...".
  Status status() const;
  // Says goodbye to all, which is no loss to them. Takes a second at most.
  void stop();

  int port() const;          // where this rank listens
  int64_t refused() const;  // connections that were closed since they did not know the key

 private:
  Heartbeat(std::unique_ptr<HeartbeatLoop> loop, RankWaits* waits);

  std::unique_ptr<HeartbeatLoop> loop_;
  RankWaits* const waits_;
  std::thread thread_;
};

}  // namespace pagoda
