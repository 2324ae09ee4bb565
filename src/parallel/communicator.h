// A communicator lets processes that were started together, one a node, talk to each other about
// what is small. MPI carries it (mpi_communicator.h).
//
// One thread at a time uses a communicator. Calls block, and a thread that waits sleeps. Pieces are
// plain bytes: both sides name the same number of them. Every call that needs several processes is
// made by each of them, in the same order. A call that fails returns kIoError, naming the rank and
// the call, or kStopped when others are silent (set_deadline). After that the communicator is
// broken, and every call returns that error: the process ends with it without leaving MPI, so that
// the launcher ends the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace pagoda {

struct OutgoingPiece {
  int to = 0;  // rank
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};
struct IncomingPiece {
  int from = 0;  // rank
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;  // from 0
  virtual int size() const = 0;  // processes, at least 1
  virtual bool broken() const = 0;

  // From now on a call that sees nothing of what it waits for during so many seconds fails with
  // kStopped, naming who it waited for. 0, as in the beginning: it waits as long as it takes. Does
  // nothing where no process can be lost.
  virtual void set_deadline(double /*seconds*/) {}
  // Breaks the communicator: calls that wait end at once with `why`, and so do all later ones. Any
  // thread. Does nothing where no process can be lost.
  virtual void abandon(const Status& /*why*/) {}

  // send() may return before the piece has arrived; receive() returns when it has. Pieces between
  // two ranks arrive in the order they were sent in.
  virtual Status send(const OutgoingPiece& piece) = 0;
  virtual Status receive(const IncomingPiece& piece) = 0;
  // Exchanges all pieces at once, in any order between ranks. When it returns, the pieces of `in`
  // have arrived and those of `out` may be overwritten. No piece goes to or comes from the rank
  // itself.
  virtual Status exchange(std::span<const OutgoingPiece> out,
                          std::span<const IncomingPiece> in) = 0;

  static constexpr int64_t kMostGathered = 16 * kMiB;  // texts of all together
  // Returns when all have called it.
  virtual Status barrier() = 0;
  // Returns the texts of all by rank, the same everywhere. REQUIRES: each has at most its share of
  // kMostGathered.
  virtual Result<std::vector<std::string>> gather(const std::string& text) = 0;

 protected:
  Communicator() = default;
};

// The MPI library of this build, "Open MPI v4.1.4"; empty: none.
std::string mpi_library();

// Returns the same status everywhere: ok when all ranks are ok, else that of the first rank which
// is not, with its rank in front.
Status agree(Communicator& all, const Status& mine);

}  // namespace pagoda
