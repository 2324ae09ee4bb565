// Random transfers between endpoints of several ranks, in one order that all ranks know: each rank
// gives its part to its link, and compares what arrives with what both sides can work out.
#pragma once

#include <vector>

#include "base/status.h"
#include "parallel/link.h"

namespace pagoda {

struct TransferTrial {
  std::vector<int> rank_of;  // [endpoint]
  int transfers = 100;
  int64_t most_bytes = 0;  // of one; some are empty
  uint64_t seed = 1;
  int turns = 0;  // the highest Transfer::turns
  // This rank gives the link up, for "tired", before its part of the transfer with this index.
  int giving_up = -1;
  int gives_up_at = 0;

  // In their order; between endpoints of different ranks.
  std::vector<Transfer> all() const;
  // The part of a rank. Sources are overwritten as soon as they may be, and so are targets. Returns
  // the link's status, or else the first difference.
  Status run(Link& link, int rank) const;
};

}  // namespace pagoda
