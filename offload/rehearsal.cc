// What Residency makes of the uses it is told of: its foresight, and the rehearsal of what devices
// will ask of the host.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "offload/residency.h"

namespace pagoda {

// Only the ranks of pages it knew or knows of change.
void Residency::set_future(Foresight& foresight, std::span<const ForeseenUse> uses) {
  std::vector<PageId> pages;
  foresight.add_pages(pages);
  foresight.set(uses);
  foresight.add_pages(pages);
  for (PageId page : pages) {
    for (int p = 0; p <= devices_; ++p) update_rank(page, p);
  }
}

// Expected uses that should have come and did not: in the ranks they are still the nearest of all.
void Residency::update_overdue_ranks() {
  for (auto& places : sets_) {
    for (int p = 0; p <= devices_; ++p) {
      SlotSet& slots = places[p];
      std::vector<PageId> pages;
      for (auto at = slots.order.lower_bound({Rank::kExpected, -expected_.now() + 1, 0});
           at != slots.order.end() && at->group == Rank::kExpected; ++at) {
        pages.push_back(slots.slots[at->slot].page);
      }
      for (PageId page : pages) update_rank(page, p);
    }
  }
}

std::vector<ForeseenUse> Residency::as_foreseen(std::span<const PageUse> uses) const {
  std::vector<ForeseenUse> future;
  future.reserve(uses.size());
  for (const PageUse& use : uses) {
    CHECK(use.page < num_pages());
    if (use.access == Access::kPrefetch) continue;
    const auto time = static_cast<int64_t>(future.size());
    future.push_back({time, use.page, place_index(use.place), use.access});
  }
  return future;
}

void Residency::foresee(std::span<const PageUse> uses) {
  if (uses.empty() && foreseen_.empty()) return;
  update_overdue_ranks();
  set_future(foreseen_, as_foreseen(uses));
  const std::vector<uint8_t> may_miss = classes_that_may_miss(uses);
  if (std::find(may_miss.begin(), may_miss.end(), 1) == may_miss.end()) return;
  set_future(foreseen_, rehearse(uses, may_miss));
}

void Residency::foresee_later(std::span<const PageUse> uses) {
  if (uses.empty() && later_.empty()) return;
  set_future(later_, as_foreseen(uses));
}

// [class] 0: each of these uses on a device finds its page there or, for a new page, a free slot,
// so that nothing passes through the host.
std::vector<uint8_t> Residency::classes_that_may_miss(std::span<const PageUse> uses) const {
  constexpr int16_t kNowhere = -1;
  std::vector<uint8_t> may_miss(classes_.size(), 0);
  std::vector<int16_t> seen_at(num_pages(), kNowhere);
  std::vector<int32_t> slots_taken(classes_.size() * (devices_ + 1), 0);
  for (const PageUse& use : uses) {
    const uint16_t c = page_class_[use.page];
    if (!passes_host_[c] || may_miss[c]) continue;
    const int place = place_index(use.place);
    const int before = std::exchange(seen_at[use.page], static_cast<int16_t>(place));
    if (place == host() || before == place) continue;
    if (before == kNowhere && slot_of(use.page, place) != kNoSlot) continue;
    int32_t& taken = slots_taken[c * (devices_ + 1) + place];
    const bool new_page = before == kNowhere && use.access == Access::kCreate;
    may_miss[c] = !new_page || ++taken > sets_[c][place].free_slots();
  }
  return may_miss;
}

// Without leases, which will have been returned, and without what is expected or comes later: those
// pages go before all that is foreseen, in whatever order.
Residency Residency::copy_to_rehearse() {
  Foresight expected = std::exchange(expected_, Foresight(0));
  Foresight later = std::exchange(later_, Foresight(0));
  std::vector<ForeseenUse> cycle = std::exchange(cycle_, {});
  Residency copy(*this);
  expected_ = std::move(expected);
  later_ = std::move(later);
  cycle_ = std::move(cycle);
  copy.expected_ = copy.later_ = Foresight(num_pages());
  copy.cycles_ = false;
  for (auto& places : copy.sets_) {
    for (SlotSet& slots : places) {
      for (SlotSet::Slot& slot : slots.slots) slot.pins = 0;
    }
  }
  return copy;
}

// True when the use brings its page up from the host, on a copy. What devices miss depends on
// devices alone: the host's choices do not matter here, and a use in the host matters as far as it
// replaces what devices hold. A prefetch also asks the host for room, of which the copy knows less:
// it may come here and not later, or later and not here. That costs transfers and nothing else.
bool Residency::rehearse(const PageUse& use, std::vector<Move>& moves) {
  if (use.access != Access::kCreate && !has_content(use.page)) return false;
  const int place = place_index(use.place);
  bool up = false;
  if (place == host()) {
    foreseen_.pass(use.page, place, use.access);
    if (changes_content(use.access)) {
      on_disk_[use.page] = 1;
      drop_elsewhere(use.page, place);
    }
  } else if (!set(use.page, place).slots.empty()) {
    moves.clear();
    std::vector<int32_t> slots;
    acquire({&use, 1}, moves, slots);
    release({&use, 1});
    // What else moves makes room for it.
    up = std::any_of(moves.begin(), moves.end(),
                     [](const Move& move) { return move.kind == Move::Kind::kUpload; });
  }
  if (use.last) discard(use.page);
  return up;
}

// The same uses with what the devices will ask of the host: before each upload a read there.
std::vector<ForeseenUse> Residency::rehearse(std::span<const PageUse> uses,
                                             const std::vector<uint8_t>& may_miss) {
  Residency copy = copy_to_rehearse();
  std::vector<ForeseenUse> future;
  future.reserve(uses.size());
  std::vector<Move> moves;
  for (size_t i = 0; i < uses.size(); ++i) {
    const PageUse& use = uses[i];
    const auto time = static_cast<int64_t>(i);
    if (may_miss[page_class_[use.page]] && copy.rehearse(use, moves)) {
      const bool guess = use.access == Access::kPrefetch;
      future.push_back({time, use.page, host(), guess ? Access::kPrefetch : Access::kRead});
    }
    if (use.access == Access::kPrefetch) continue;
    future.push_back({time, use.page, place_index(use.place), use.access});
  }
  return future;
}

}  // namespace pagoda
