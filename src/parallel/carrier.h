// A carrier moves messages between the memories of ranks without waiting. What was started goes on
// while the carrier is asked about it, and at no other time. MPI is one (communicator_mpi.cc);
// tests make up others.
//
// Messages from one rank to another on one channel are matched in the order in which they are
// started, whatever happens on other channels.
//
// Threading: one thread calls everything, the one that opened the carrier. After an error the
// carrier must not be used any more, nor left, only deleted: it takes no part in what is under way
// from then on. Others may not know yet, and still reach the memory that was given to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace pagoda {

class Carrier {
 public:
  static constexpr int64_t kMostBytes = kMiB;  // of a message
  static constexpr int kMostChannel = 32767;

  virtual ~Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  virtual int rank() const = 0;  // from 0
  virtual int size() const = 0;  // ranks, at least 1
  // The name of a rank's host, which is the same at all ranks.
  virtual std::string host(int rank) const = 0;

  struct Message {
    int64_t id = 0;  // returned when it has ended
    bool sends = false;
    int peer = 0;  // another rank
    int channel = 0;
    std::byte* data = nullptr;  // read if it sends, else written, until it has ended
    int64_t bytes = 0;          // of a message that is received: the most that may come
  };
  virtual Status start(const Message& message) = 0;

  struct Ended {
    int64_t id = 0;
    int64_t bytes = 0;  // what came
  };
  // Adds the messages that have ended since the last call: what was sent may be overwritten, what
  // was received is there. kIoError names the peer and the call.
  virtual Status test(std::vector<Ended>& ended) = 0;

  // A message of the channel that has come, or is on its way here, and that nobody has asked for.
  struct Unasked {
    int peer = -1;  // -1: there is none
    int64_t bytes = 0;
  };
  virtual Result<Unasked> peek(int channel) = 0;

  // The library's own exchange, to compare with: sends `bytes` to each rank from `out`, and
  // receives as many from each into `in`, one rank behind the other, itself among them. All ranks
  // call it while nothing is under way. Waits. kUnavailable if there is none.
  virtual Status exchange_all(const std::byte* out, std::byte* in, int64_t bytes) {
    (void)out, (void)in, (void)bytes;
    return Status(Exit::kUnavailable, "there is no exchange to compare with");
  }

  // Leaves the other ranks; returns when they leave too. Nothing may follow it.
  virtual void leave() = 0;

 protected:
  Carrier() = default;
};

}  // namespace pagoda
