// A link carries bytes between endpoints as part of the order of a step: each transfer has a
// number, which the sending and the receiving task share. Endpoints are numbers: first all devices
// of the run, then, in a run of several ranks, the host memory of each rank (devices + rank).
//
// Both calls return at once. A send waits for what its lane has before it, a receive for that and
// for the send; nothing else waits. So transfers cannot deadlock if one total order of tasks has
// each send before its receive. Errors do not stop a lane: the bytes are zeros then, and status()
// tells.
//
// Threading: one thread, that which issues the tasks, calls everything but status().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "base/trace.h"
#include "device/device.h"

namespace pagoda {

struct Transfer {
  int64_t number = 0;    // grows with every transfer from one endpoint to another
  int from = 0, to = 0;  // endpoints
  int64_t bytes = 0;
  int64_t rows = 0;        // of tokens, that the bytes are; 0: they are others
  std::string about = "";  // what an error calls it, "receive L3 b5"; may be empty
  // Not 0: it takes turns with other transfers that have the same here, so that a network card
  // sends one of them at a time, or nearly, and takes one (parallel/mpi_link.h). Other links do not
  // heed it.
  int turns = 0;

  // "transfer 17 from 0 to 2 (receive L3 b5)"
  std::string text() const {
    return strf("transfer %lld from %d to %d", (long long)number, from, to) +
           (about.empty() ? "" : " (" + about + ")");
  }
};

// One end of a link between ranks.
struct LinkEnd {
  int rank = 0;
  Device* gpu = nullptr;  // whose memory it is; nullptr: the host's, or another rank's
  int card = 0;           // the network card of its rank that it goes by
  bool operator==(const LinkEnd&) const = default;
};

class Link {
 public:
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sends `source`, which is written when `lane` gets here. The event happens when it may be
  // overwritten.
  virtual Event send(const Transfer& transfer, const std::byte* source, Stream& lane) = 0;
  // Work enqueued on `lane` afterwards finds the bytes at `target`, which work before it may use. A
  // traced lane shows the transfer, without the wait for it, by `label`.
  virtual void receive(const Transfer& transfer, std::byte* target, Stream& lane,
                       const TraceLabel& label = {}) = 0;

  virtual Status status() const = 0;
  // Gives up for `why`: transfers that wait end with it, those of other ranks too, and so do all
  // later ones. Tells the other ranks. Does nothing within one process, where nobody waits for
  // another thread.
  virtual void give_up(const Status& /*why*/) {}
  // The rank that gave up first, if it was another one: status() is what it told. Else -1.
  virtual int given_up_by() const { return -1; }

  // Whether transfers between devices of different ranks go by rounds (plan/step/rank_part.h). Then
  // end_round() is called behind each of them: they begin with it.
  virtual bool by_rounds() const { return false; }
  virtual void end_round() {}

  struct Count {
    int64_t transfers = 0, bytes = 0, rows = 0;
    void add(const Transfer& transfer) {
      ++transfers;
      bytes += transfer.bytes;
      rows += transfer.rows;
    }
    bool operator==(const Count&) const = default;
  };
  using Counts = std::map<std::pair<int, int>, Count>;  // [from, to], what was received
  virtual const Counts& counts() const = 0;

 protected:
  Link() = default;
};

}  // namespace pagoda
