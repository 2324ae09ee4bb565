// Ranks as threads of one process, so that a test and a sanitizer see all of them: a communicator
// and a link of each, over mailboxes. What a rank sends lies in a mailbox until the receiver takes
// it; links deliver it after a delay that is drawn from a seed, so that ranks go on in other orders
// with each seed.
//
//   RankThreads ranks(3);
//   ranks.run([](RankGroup& group) { ... the program of a rank ... });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "parallel/rank_group.h"

namespace pagoda {

// A transfer between ranks: from, to (endpoints), number.
using RankTransfer = std::tuple<int, int, int64_t>;

struct RankWires {
  uint64_t seed = 0;  // of the delays; 0: there are none
  double most_delay_s = 2e-4;
  std::optional<RankTransfer> fails = {};  // does not arrive
  // This one of the pieces that communicators send does not, and breaks those of all ranks.
  int64_t fails_piece = -1;
  double piece_s = 0;  // what the sender takes for each of them
};

class RankThreads {
 public:
  // `endpoint_rank`: [endpoint] the rank that it is of: devices, then the ranks' hosts.
  RankThreads(int ranks, std::vector<int> endpoint_rank, const RankWires& wires = {});
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;

  // Runs a rank's program on a thread of its own for each, and waits for all.
  void run(const std::function<void(RankGroup&)>& program);

  std::vector<RankTransfer> sent() const;  // so far, in their order
  int64_t pieces() const;                  // sent by communicators so far
  // What came from other ranks: rows of tokens and their bytes; bytes of weights, sums and routing,
  // and of these what experts had that were guests: weights, and sums of their gradients.
  struct Arrived {
    int64_t rows = 0, row_bytes = 0, other_bytes = 0;
    int64_t guest_weights = 0, guest_sums = 0;
    int64_t lanes = 0;                     // the most by which rows came to a device
    int64_t in_turn = 0, out_of_turn = 0;  // transfers of rows
    int64_t to_other_places = 0;  // those to a device whose place among its rank's is another
    int64_t messages() const { return in_turn + out_of_turn; }
  };
  Arrived arrived() const;

 private:
  class Hub;
  std::unique_ptr<Hub> hub_;
};

}  // namespace pagoda
