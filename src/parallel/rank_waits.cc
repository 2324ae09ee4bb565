#include "parallel/rank_waits.h"

#include <algorithm>
#include <utility>

namespace pagoda {

void RankWaits::note(int rank, const Wait& wait) {
  std::lock_guard lock(mutex_);
  waits_[rank] = wait;
}

RankWaits::Wait RankWaits::of(int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = waits_.find(rank);
  return found == waits_.end() ? Wait() : found->second;
}

void RankWaits::begin_beats(int64_t period_us, std::function<void(int rank)> tell) {
  std::lock_guard lock(mutex_);
  period_us_ = period_us;
  tell_ = std::move(tell);
}

void RankWaits::end_beats() { begin_beats(0, nullptr); }

bool RankWaits::Chain::is_circle() const {
  return std::find(ranks.begin(), ranks.end(), ranks.back()) != ranks.end() - 1;
}

std::optional<RankWaits::Chain> RankWaits::chain(int rank, int peer, int64_t late_us,
                                                 int64_t now_us) const {
  std::lock_guard lock(mutex_);
  Chain chain{{rank, peer}};
  while (period_us_ > 0 && !chain.is_circle()) {
    const auto found = waits_.find(chain.ranks.back());
    const bool is_known = found != waits_.end() && found->second.known_us > late_us;
    if (!is_known && now_us < late_us + period_us_ + period_us_ / 2) return std::nullopt;
    if (!is_known || found->second.waited_us < period_us_) break;
    chain.ranks.push_back(found->second.peer);
  }
  return chain;
}

void RankWaits::accuse(int rank) const {
  std::lock_guard lock(mutex_);
  if (tell_) tell_(rank);
}

}  // namespace pagoda
