// RankWaits has which rank waits for which, as far as this one knows: its carrier says for whom it
// waits itself (carrier_flows.h), and the heartbeats of the others say it of them (heartbeat.h). So
// a rank from which nothing comes in time is not named if it waits for another itself: that one is.
//
// Times are of monotonic_us(). Threading: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace pagoda {

class RankWaits {
 public:
  struct Wait {
    int peer = 0;           // for whom
    int64_t waited_us = 0;  // for how long already; 0: for nobody
    int64_t known_us = 0;   // when this became known
  };
  void note(int rank, const Wait& wait);
  Wait of(int rank) const;

  // Heartbeats come with this period from now on. `tell` hears whom this rank accuses; it is called
  // on the thread that does, and must not block.
  void begin_beats(int64_t period_us, std::function<void(int rank)> tell);
  void end_beats();

  struct Chain {
    // First who asks, then for whom it waits, and so on. The last one waits for nobody or, in a
    // circle, is there twice.
    std::vector<int> ranks;
    bool is_circle() const;
    // Who holds up the one that asks: the last, or in a circle, which has none, the next.
    int culprit() const { return is_circle() ? ranks[1] : ranks.back(); }
  };
  // Who holds up `rank`, which has waited for `peer` for too long since `late_us`. A wait counts
  // from a heartbeat's period on, and what was heard before `late_us` does not: nothing is returned
  // until each rank of the chain has been heard since, or should have been.
  std::optional<Chain> chain(int rank, int peer, int64_t late_us, int64_t now_us) const;
  void accuse(int rank) const;  // tells the heartbeat, if there is one

 private:
  mutable std::mutex mutex_;   // guards the rest
  std::map<int, Wait> waits_;  // [rank]
  int64_t period_us_ = 0;      // 0: there are no heartbeats
  std::function<void(int rank)> tell_;
};

}  // namespace pagoda
