#include "offload/residency.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagoda {
namespace {

constexpr int64_t kLater = INT64_MAX / 4;  // no foresee() has as many uses

}  // namespace

void Residency::SlotSet::set_rank(int32_t slot, const Rank& rank) {
  auto node = order.extract(slots[slot].rank);
  node.value() = slots[slot].rank = rank;
  order.insert(std::move(node));
}

bool Residency::SlotSet::just_used(const Slot& slot) const {
  return slot.used && count.uses - slot.last_use < depth - 1;
}

// kNoSlot when all are pinned.
int32_t Residency::SlotSet::next_victim() const {
  int32_t instead = kNoSlot;
  for (const Rank& rank : order) {
    const Slot& slot = slots[rank.slot];
    if (pins(rank.slot) > 0) continue;
    if (!just_used(slot)) return rank.slot;
    if (instead == kNoSlot) instead = rank.slot;
  }
  return instead;
}

// Slots besides `except` that a prefetch may take, counted up to 2.
int32_t Residency::SlotSet::spare_slots(int32_t except) const {
  int32_t spare = 0;
  for (const Rank& rank : order) {
    const Slot& slot = slots[rank.slot];
    if (rank.group > Rank::kExpected || spare == 2) break;
    spare += pins(rank.slot) == 0 && !just_used(slot) && rank.slot != except;
  }
  return spare;
}

Residency::Residency(int devices, std::vector<SlotClass> classes, std::vector<uint16_t> page_class)
    : devices_(devices),
      classes_(std::move(classes)),
      page_class_(std::move(page_class)),
      class_pages_(classes_.size(), 0),
      where_(page_class_.size() * (devices + 1), kNoSlot),
      on_disk_(page_class_.size(), 0),
      kept_(page_class_.size(), 0),
      kept_in_host_(page_class_.size(), 0),
      foreseen_(page_class_.size()),
      later_(page_class_.size()),
      expected_(page_class_.size()),
      remembered_(page_class_.size(), 0),
      seen_at_(page_class_.size(), kNowhere) {
  for (const SlotClass& c : classes_) {
    CHECK(static_cast<int>(c.device_slots.size()) == devices_);
    std::vector<SlotSet> places(devices_ + 1);
    for (int p = 0; p <= devices_; ++p) {
      const int32_t count = p < devices_ ? c.device_slots[p] : c.host_slots;
      places[p].slots.resize(count);
      places[p].depth = p < devices_ ? c.device_depth : c.host_depth;
      CHECK(places[p].depth >= 1);
      for (int32_t s = 0; s < count; ++s) {
        places[p].slots[s].rank.slot = s;
        places[p].order.insert(places[p].slots[s].rank);
      }
    }
    sets_.push_back(std::move(places));
  }
  for (uint16_t c : page_class_) {
    if (c == kNoSlotClass) continue;
    CHECK(c < classes_.size());
    ++class_pages_[c];
  }
  for (size_t c = 0; c < classes_.size(); ++c) {
    const auto pages = static_cast<int64_t>(class_pages_[c]);
    passes_host_.push_back(pages > classes_[c].host_slots && classes_[c].host_slots >= 2);
    const SlotClass& slots = classes_[c];
    CHECK(slots.host_kept <= slots.host_slots, "class %zu keeps %d pages in %d slots", c,
          slots.host_kept, slots.host_slots);
  }
  std::vector<int64_t> nth(classes_.size(), 0);
  for (size_t page = 0; page < page_class_.size(); ++page) {
    const uint16_t c = page_class_[page];
    if (c == kNoSlotClass) continue;
    const auto pages = static_cast<int64_t>(class_pages_[c]);
    const int64_t before = nth[c]++ * classes_[c].host_kept / pages;
    kept_in_host_[page] = nth[c] * classes_[c].host_kept / pages > before;
  }
}

int64_t Residency::next_foreseen(PageId page, int place) const {
  const int64_t soon = foreseen_.next_read(page, place);
  if (soon != kNotForeseen || rehearses_) return soon;
  const int64_t later = later_.next_read(page, place);
  return later < kReplaced ? kLater + later : later;
}

Residency::Rank Residency::rank(const SlotSet& slots, int32_t slot, int place) const {
  const SlotSet::Slot& s = slots.slots[slot];
  if (!s.used) return {Rank::kFree, s.last_use, slot};
  if (kept_[s.page] && place != host()) return {Rank::kKept, s.last_use, slot};
  const bool stays = place == host() && kept_in_host_[s.page];
  const int64_t foreseen = next_foreseen(s.page, place);
  if (foreseen < kReplaced && stays) return {Rank::kKept, s.last_use, slot};
  if (foreseen < kReplaced) return {Rank::kForeseen, -foreseen, slot};
  if (rehearses_) return {Rank::kUnforeseen, s.last_use, slot};
  const int64_t expected = expected_.next_read(s.page, place);
  if (expected < kReplaced && stays) return {Rank::kKept, s.last_use, slot};
  if (expected < kReplaced) return {Rank::kExpected, -expected, slot};
  return {Rank::kUnforeseen, s.last_use, slot};
}

void Residency::update_rank(PageId page, int place) {
  const int32_t slot = slot_of(page, place);
  if (slot == kNoSlot) return;
  SlotSet& slots = set(page, place);
  const Rank now = rank(slots, slot, place);
  if (now != slots.slots[slot].rank) slots.set_rank(slot, now);
}

void Residency::update_ranks() {
  for (auto& places : sets_) {
    for (int p = 0; p <= devices_; ++p) {
      for (const SlotSet::Slot& slot : places[p].slots) {
        if (slot.used) update_rank(slot.page, p);
      }
    }
  }
}

// The page in the slot it has at `place` is used now.
void Residency::touch(PageId page, int place) {
  SlotSet& slots = set(page, place);
  const int32_t slot = slot_of(page, place);
  if (slots.count.latest != slot) ++slots.count.uses;
  slots.count.latest = slot;
  slots.slots[slot].last_use = slots.count.uses;
  update_rank(page, place);
}

bool Residency::is_latest(PageId page, int place) const {
  const int32_t slot = slot_of(page, place);
  return slot != kNoSlot && set(page, place).count.latest == slot;
}

// Tells that the cycle has come to a use, or to a read in the host for an upload. `again`: the
// class's use before at this place had the same page. If every page of a class has a slot nothing
// is evicted, so nothing is recorded.
void Residency::go_round(PageId page, int place, Access access, bool again) {
  if (!cycles_ || rehearses_ || (again && access != Access::kCreate)) return;
  if (set(page, place).slots.size() >= class_pages_[page_class_[page]]) return;
  expected_.pass(page, place, access);
  cycle_.push_back({static_cast<int64_t>(cycle_.size()), page, place, access});
}

void Residency::begin_cycle() {
  expected_.set(cycle_, static_cast<int64_t>(cycle_.size()));
  cycle_.clear();
  cycles_ = true;
  update_ranks();
}

void Residency::keep(std::span<const PageId> pages) {
  std::fill(kept_.begin(), kept_.end(), uint8_t{0});
  for (PageId page : pages) kept_[page] = 1;
  update_ranks();
}

int Residency::place_index(Place place) const {
  CHECK(place.tier != Tier::kDisk, "pages are not used on disk");
  CHECK(place.tier == Tier::kHost || place.device < devices_);
  return place.tier == Tier::kHost ? host() : place.device;
}

int Residency::copies(PageId page) const {
  int count = on_disk_[page];
  for (int p = 0; p <= devices_; ++p) count += slot_of(page, p) != kNoSlot;
  return count;
}

// Frees the page's slot at `place`.
void Residency::drop(PageId page, int place) {
  const int32_t slot = slot_of(page, place);
  SlotSet& slots = set(page, place);
  CHECK(slots.pins(slot) == 0, "page %u dropped while pinned", page);
  slots.slots[slot].used = false;
  --slots.count.used;
  slots.slots[slot].last_use = slots.count.uses;
  if (slots.count.latest == slot) slots.count.latest = kNoSlot;
  slots.set_rank(slot, rank(slots, slot, place));
  slot_of(page, place) = kNoSlot;
}

void Residency::drop_elsewhere(PageId page, int place) {
  for (int p = 0; p <= devices_; ++p) {
    if (p != place && slot_of(page, p) != kNoSlot) drop(page, p);
  }
}

void Residency::evict(int place, PageId page, std::vector<Move>& moves) {
  remember(page);
  if (copies(page) == 1) {
    if (place == host()) {
      moves.push_back({Move::Kind::kWriteBack, page, 0, kNoSlot, slot_of(page, host())});
      on_disk_[page] = 1;
    } else {
      bring_to_host(page, moves);
    }
  }
  drop(page, place);
  ++evictions_;
}

// Takes a slot for the page at `place`, evicting another page if there is no free one, and pins it
// until the caller unpins.
int32_t Residency::claim(PageId page, int place, std::vector<Move>& moves) {
  SlotSet& slots = set(page, place);
  const int32_t slot = slots.next_victim();
  CHECK(slot != kNoSlot, "no slot for page %u at place %d: %zu slots of class %d all pinned", page,
        place, slots.slots.size(), page_class_[page]);
  remember_slot(slots, slot);
  if (slots.slots[slot].used) evict(place, slots.slots[slot].page, moves);
  slots.slots[slot].page = page;
  slots.slots[slot].used = true;
  ++slots.count.used;
  slots.pins(slot) = 1;
  slot_of(page, place) = slot;
  touch(page, place);
  return slot;
}

void Residency::bring_to_host(PageId page, std::vector<Move>& moves) {
  if (slot_of(page, host()) != kNoSlot) return;
  int from = kNoSlot;
  for (int d = 0; d < devices_; ++d) {
    if (slot_of(page, d) != kNoSlot) from = d;
  }
  // The source must survive the claim below.
  if (from != kNoSlot) ++set(page, from).pins(slot_of(page, from));
  const int32_t slot = claim(page, host(), moves);
  if (from != kNoSlot) {
    moves.push_back({Move::Kind::kDownload, page, static_cast<uint8_t>(from), slot_of(page, from),
                     slot});
    --set(page, from).pins(slot_of(page, from));
  } else {
    moves.push_back({Move::Kind::kFetch, page, 0, kNoSlot, slot});
  }
  --set(page, host()).pins(slot);
}

void Residency::bring(PageId page, int place, std::vector<Move>& moves) {
  if (place == host()) return bring_to_host(page, moves);
  // The device slot first: evicting for it may need a host slot, which must not be ours.
  const bool in_host = slot_of(page, host()) != kNoSlot, again = is_latest(page, host());
  if (in_host) ++set(page, host()).pins(slot_of(page, host()));
  // The slot is claimed before it has the content, so it must not count as a copy yet.
  const int32_t slot = claim(page, place, moves);
  slot_of(page, place) = kNoSlot;
  if (in_host) {
    touch(page, host());
    --set(page, host()).pins(slot_of(page, host()));
  } else {
    bring_to_host(page, moves);
  }
  go_round(page, host(), Access::kRead, again);
  slot_of(page, place) = slot;
  moves.push_back({Move::Kind::kUpload, page, static_cast<uint8_t>(place), slot,
                   slot_of(page, host())});
  --set(page, place).pins(slot);
}

// Makes a page resident that was not there when the acquire began, and pins it.
int32_t Residency::place_page(const PageUse& use, int place, std::vector<Move>& moves) {
  // Making room for an earlier use may have brought it here meanwhile.
  if (slot_of(use.page, place) == kNoSlot) {
    if (use.access == Access::kCreate) return claim(use.page, place, moves);
    CHECK(has_content(use.page), "page %u is used before it was made", use.page);
    bring(use.page, place, moves);
  }
  const int32_t slot = slot_of(use.page, place);
  ++set(use.page, place).pins(slot);
  return slot;
}

// Whether the page can be uploaded into free slots, or slots of pages without a foreseen use.
bool Residency::room_for(PageId page, int place) const {
  const SlotSet& slots = set(page, place);
  if (slots.spare_slots(kNoSlot) == 0) return false;
  if (place == host()) return true;
  const SlotSet::Slot& victim = slots.slots[slots.next_victim()];
  const int32_t in_host = slot_of(page, host());
  const bool victim_passes = victim.used && copies(victim.page) == 1;
  return set(page, host()).spare_slots(in_host) >= (in_host == kNoSlot) + victim_passes;
}

int32_t Residency::prefetch(PageId page, int place, std::vector<Move>& moves) {
  CHECK(has_content(page), "page %u is prefetched before it was made", page);
  if (slot_of(page, place) == kNoSlot) {
    if (room_for(page, place)) bring(page, place, moves);
    foreseen_.pass(page, host(), Access::kPrefetch);  // uploaded or not
    update_rank(page, host());
  }
  if (slot_of(page, place) != kNoSlot) touch(page, place);
  return slot_of(page, place);
}

void Residency::acquire(std::span<const PageUse> uses, std::vector<Move>& moves,
                        std::vector<int32_t>& slots) {
  slots.assign(uses.size(), kNoSlot);
  // Pin what is already there first, so that no use evicts another's page.
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].access == Access::kPrefetch) continue;
    const int place = place_index(uses[i].place);
    slots[i] = slot_of(uses[i].page, place);
    if (slots[i] != kNoSlot) ++set(uses[i].page, place).pins(slots[i]);
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    const PageUse& use = uses[i];
    const int place = place_index(use.place);
    if (use.access == Access::kPrefetch) {
      slots[i] = prefetch(use.page, place, moves);
      continue;
    }
    const bool again = is_latest(use.page, place);
    if (slots[i] == kNoSlot) slots[i] = place_page(use, place, moves);
    foreseen_.pass(use.page, place, use.access);  // its fetch into the host just before it too
    if (!rehearses_) later_.pass(use.page, place, use.access);
    go_round(use.page, place, use.access, again);
    touch(use.page, place);
    for (int p = 0; p <= devices_; ++p) update_rank(use.page, p);
  }
  for (const PageUse& use : uses) {
    if (!changes_content(use.access)) continue;
    on_disk_[use.page] = 0;
    drop_elsewhere(use.page, place_index(use.place));
  }
}

void Residency::release(std::span<const PageUse> uses) {
  for (const PageUse& use : uses) {
    if (use.access == Access::kPrefetch) continue;
    const int place = place_index(use.place);
    const int32_t slot = slot_of(use.page, place);
    CHECK(slot != kNoSlot && set(use.page, place).pins(slot) > 0,
          "release of page %u, which is not leased", use.page);
    --set(use.page, place).pins(slot);
  }
}

void Residency::flush(PageId page, std::vector<Move>& moves) {
  CHECK(has_content(page), "page %u has no content to save", page);
  if (on_disk_[page]) return;
  bring_to_host(page, moves);
  moves.push_back({Move::Kind::kWriteBack, page, 0, kNoSlot, slot_of(page, host())});
  on_disk_[page] = 1;
}

void Residency::discard(PageId page) {
  for (int p = 0; p <= devices_; ++p) {
    if (slot_of(page, p) != kNoSlot) drop(page, p);
  }
  on_disk_[page] = 0;
}

void Residency::set_on_disk(PageId page) {
  CHECK(!has_content(page));
  on_disk_[page] = 1;
}

void Residency::replace(PageId out, PageId in) {
  CHECK(!has_content(out) && !has_content(in), "page %u cannot take the place of page %u", in, out);
  CHECK(page_class_[out] != kNoSlotClass && page_class_[in] == kNoSlotClass);
  std::swap(page_class_[out], page_class_[in]);
  std::swap(kept_in_host_[out], kept_in_host_[in]);
  kept_[out] = kept_[in] = 0;
  for (ForeseenUse& use : cycle_) {
    if (use.page == out) use.page = in;
  }
}

bool Residency::has_content(PageId page) const { return copies(page) > 0; }

bool Residency::valid_at(PageId page, Place place) const {
  if (place.tier == Tier::kDisk) return on_disk_[page];
  return slot_of(page, place_index(place)) != kNoSlot;
}

int32_t Residency::slot_at(PageId page, Place place) const {
  return slot_of(page, place_index(place));
}

int32_t Residency::used_slots(size_t slot_class, Place place) const {
  return sets_[slot_class][place_index(place)].count.used;
}

int64_t Residency::used_bytes(std::span<const int64_t> slot_bytes, Place place) const {
  CHECK(slot_bytes.size() == sets_.size());
  int64_t bytes = 0;
  for (size_t c = 0; c < sets_.size(); ++c) bytes += used_slots(c, place) * slot_bytes[c];
  return bytes;
}

void Residency::check_invariants() const {
  for (PageId page = 0; page < num_pages(); ++page) {
    for (int p = 0; p <= devices_; ++p) {
      const int32_t slot = slot_of(page, p);
      if (slot == kNoSlot) continue;
      const SlotSet::Slot& s = sets_[page_class_[page]][p].slots[slot];
      CHECK(s.used && s.page == page, "page %u and slot %d disagree", page, slot);
    }
  }
  for (size_t c = 0; c < sets_.size(); ++c) {
    for (int p = 0; p <= devices_; ++p) {
      const SlotSet& slots = sets_[c][p];
      CHECK(slots.order.size() == slots.slots.size(), "the order lost a slot");
      const auto used = std::count_if(slots.slots.begin(), slots.slots.end(),
                                      [](const SlotSet::Slot& slot) { return slot.used; });
      CHECK(slots.count.used == used, "%d slots are counted as used, %lld are", slots.count.used,
            static_cast<long long>(used));
      for (int32_t s = 0; s < static_cast<int32_t>(slots.slots.size()); ++s) {
        const SlotSet::Slot& slot = slots.slots[s];
        CHECK(slot.pins >= 0 && slot.last_use <= slots.count.uses);
        CHECK(slot.rehearsed_pins == 0 && !slot.remembered, "slot %d is still rehearsed", s);
        CHECK(slot.rank.slot == s && slots.order.contains(slot.rank), "slot %d has no rank", s);
        CHECK(slot.used == (slot.rank.group != Rank::kFree), "slot %d is taken for free", s);
        if (!slot.used) continue;
        CHECK(page_class_[slot.page] == c);
        CHECK(slot_of(slot.page, p) == s);
      }
    }
  }
}

}  // namespace pagoda
