// The part of Residency that handles foreseen uses: its foresight, and the rehearsal of the
// devices' requests to the host.
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

// Updates the ranks of expected uses that should have come and did not; they still rank as the
// nearest of all.
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
std::vector<uint8_t> Residency::classes_that_may_miss(std::span<const PageUse> uses) {
  std::vector<uint8_t> may_miss(classes_.size(), 0);
  std::vector<int32_t> slots_taken(classes_.size() * (devices_ + 1), 0);
  for (const PageUse& use : uses) {
    const uint16_t c = page_class_[use.page];
    if (!passes_host_[c] || may_miss[c]) continue;
    const int place = place_index(use.place);
    const int before = std::exchange(seen_at_[use.page], static_cast<int16_t>(place));
    if (place == host() || before == place) continue;
    if (before == kNowhere && slot_of(use.page, place) != kNoSlot) continue;
    int32_t& taken = slots_taken[c * (devices_ + 1) + place];
    const bool new_page = before == kNowhere && use.access == Access::kCreate;
    may_miss[c] = !new_page || ++taken > sets_[c][place].free_slots();
  }
  for (const PageUse& use : uses) seen_at_[use.page] = kNowhere;
  return may_miss;
}

// Until its end the rehearsal ignores leases, which will have been returned, and expected and later
// uses: their pages are victims before all foreseen ones, in any order.
void Residency::begin_rehearsal() {
  rehearses_ = true;
  undo_.evictions = evictions_;
  for (auto& places : sets_) {
    for (SlotSet& slots : places) {
      undo_.counts.push_back(slots.count);
      slots.rehearses = true;
    }
  }
}

// Takes everything back, except that the foresight has passed its uses.
void Residency::end_rehearsal() {
  rehearses_ = false;
  for (const Undo::SlotWas& undo : undo_.slots) {
    undo.set->set_rank(undo.slot, undo.was.rank);
    undo.set->slots[undo.slot] = undo.was;
  }
  auto where = undo_.where.begin();
  for (const Undo::PageWas& undo : undo_.pages) {
    on_disk_[undo.page] = undo.on_disk;
    for (int p = 0; p <= devices_; ++p) slot_of(undo.page, p) = *where++;
    remembered_[undo.page] = 0;
  }
  auto count = undo_.counts.begin();
  for (auto& places : sets_) {
    for (SlotSet& slots : places) {
      slots.count = *count++;
      slots.rehearses = false;
    }
  }
  evictions_ = undo_.evictions;
  undo_.slots.clear();
  undo_.pages.clear();
  undo_.where.clear();
  undo_.counts.clear();
}

// Call before a rehearsal changes the page or its slots.
void Residency::remember(PageId page) {
  if (!rehearses_ || std::exchange(remembered_[page], uint8_t{1}) != 0) return;
  undo_.pages.push_back({page, on_disk_[page]});
  for (int p = 0; p <= devices_; ++p) {
    const int32_t slot = slot_of(page, p);
    undo_.where.push_back(slot);
    if (slot != kNoSlot) remember_slot(set(page, p), slot);
  }
}

// Call before a rehearsal changes the slot.
void Residency::remember_slot(SlotSet& slots, int32_t slot) {
  SlotSet::Slot& now = slots.slots[slot];
  if (!rehearses_ || now.remembered) return;
  undo_.slots.push_back({&slots, slot, now});
  now.remembered = true;
}

// True when the use uploads its page from the host. The devices' misses depend on devices alone:
// the host's choices do not matter here, and a use in the host matters only if it replaces a page's
// content on devices. A prefetch also needs room in the host, which the rehearsal does not know
// exactly: it may succeed here and not later, or later and not here. That costs transfers and
// nothing else.
bool Residency::rehearse(const PageUse& use, std::vector<Move>& moves) {
  remember(use.page);
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
    // Other moves make room for it.
    up = std::any_of(moves.begin(), moves.end(),
                     [](const Move& move) { return move.kind == Move::Kind::kUpload; });
  }
  if (use.last) discard(use.page);
  return up;
}

// The same uses, with a read in the host before each upload.
std::vector<ForeseenUse> Residency::rehearse(std::span<const PageUse> uses,
                                             const std::vector<uint8_t>& may_miss) {
  begin_rehearsal();
  std::vector<ForeseenUse> future;
  future.reserve(uses.size());
  std::vector<Move> moves;
  for (size_t i = 0; i < uses.size(); ++i) {
    const PageUse& use = uses[i];
    const auto time = static_cast<int64_t>(i);
    if (may_miss[page_class_[use.page]] && rehearse(use, moves)) {
      const bool guess = use.access == Access::kPrefetch;
      future.push_back({time, use.page, host(), guess ? Access::kPrefetch : Access::kRead});
    }
    if (use.access == Access::kPrefetch) continue;
    future.push_back({time, use.page, place_index(use.place), use.access});
  }
  end_rehearsal();
  return future;
}

}  // namespace pagoda
