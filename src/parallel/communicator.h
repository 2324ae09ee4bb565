// A communicator lets processes that were started together, one a node, talk to each other. MPI
// carries it (communicator_mpi.cc); a build without MPI has none (communicator_none.cc).
//
// A communicator is used by the thread that joined, and by no other. Calls block. Pieces are plain
// bytes: both sides name the same number of them. Every call that needs several processes is made
// by each of them, in the same order. A call that fails returns kIoError, naming the rank and the
// call. After that the communicator is broken and must not be used: the process ends with that
// error without leaving MPI, so that the launcher ends the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

  // send() may return before the piece has arrived; receive() returns when it has. Pieces between
  // two ranks arrive in the order they were sent in.
  virtual Status send(const OutgoingPiece& piece) = 0;
  virtual Status receive(const IncomingPiece& piece) = 0;
  // Exchanges all pieces at once, in any order between ranks. When it returns, the pieces of `in`
  // have arrived and those of `out` may be overwritten. No piece goes to or comes from the rank
  // itself.
  virtual Status exchange(std::span<const OutgoingPiece> out,
                          std::span<const IncomingPiece> in) = 0;

  // Returns when all have called it. Waits busily, so that clocks which start behind it start
  // together.
  virtual Status barrier() = 0;
  // Returns the texts of all by rank, the same everywhere. A rank that waits for the others sleeps.
  virtual Result<std::vector<std::string>> gather(const std::string& text) = 0;

 protected:
  Communicator() = default;
};

// The MPI library of this build, "Open MPI v4.1.4"; empty: none.
std::string mpi_library();

// Joins the processes that a launcher started together with this one (parallel/launcher.h). Call it
// once in a process. kUnavailable when this program was built without MPI, or with another MPI than
// the launcher's.
Result<std::unique_ptr<Communicator>> join_processes();

// Returns the same status everywhere: ok when all ranks are ok, else that of the first rank which
// is not, with its rank in front.
Status agree(Communicator& all, const Status& mine);

}  // namespace pagoda
