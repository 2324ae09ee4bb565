// What time it is on rank 0. Clocks of other hosts began elsewhere, and run at rates of their own.
//
// A message to rank 0 and its answer say that rank 0's clock showed the answer's time between this
// clock's times of sending and receiving. Many of them together leave a narrow range; its middle is
// taken. What is left of the error is the difference of the fastest messages of both directions.
// Messages of the run itself may be faster than that, so they can be asked to be in their order.
//
// One thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "parallel/rank_group.h"

namespace pagoda {

class RankClock {
 public:
  // `now`: this rank's clock, in microseconds.
  explicit RankClock(std::function<int64_t()> now = monotonic_us) : now_(std::move(now)) {}

  // Compares the clocks, which takes some milliseconds for each rank. All ranks call it together.
  // Errors of RankGroup::pass().
  Status compare(RankGroup& ranks);
  // A message as one of its ends saw it. The other end names it alike.
  struct Seen {
    int peer = 0;  // the other end's rank
    int64_t from = 0, to = 0, number = 0;
    int64_t own_us = 0;  // when sending began, or when receiving ended
  };
  // Corrects the clocks so that no message which both ends name is received before it was sent, as
  // little as that takes. All ranks call it together, behind compare(). Errors of RankGroup's.
  Status put_in_order(RankGroup& ranks, const std::vector<Seen>& sent,
                      const std::vector<Seen>& received);
  // Rank 0's clock at this clock's `own_us`: that of the first and the newest comparison, and of a
  // steady rate otherwise. Without a comparison the clocks are taken for the same.
  int64_t on_rank_0(int64_t own_us) const;
  // How far it may be off at a comparison.
  int64_t error_us() const { return error_us_; }
  int64_t correction_us() const { return correction_us_; }  // by put_in_order()

 private:
  struct Comparison {
    int64_t own_us = 0;    // when it was
    double offset_us = 0;  // rank 0's clock is ahead by so much
  };

  struct Passed {  // a message, at rank 0's time
    std::array<int64_t, 3> name = {};
    int64_t at_us = 0;
    auto operator<=>(const Passed&) const = default;
  };
  std::vector<Passed> seen_with(int peer, const std::vector<Seen>& all) const;
  static int64_t least_delay(const std::vector<Passed>& sent, const std::vector<Passed>& received);
  Status correct(const std::vector<std::string>& delays, int rank);

  std::function<int64_t()> now_;
  std::optional<Comparison> first_, newest_;
  int64_t error_us_ = 0, correction_us_ = 0;
};

}  // namespace pagoda
