#include "offload/residency.h"

#include "base/check.h"

namespace pagoda {

void Residency::SlotSet::unlink(int32_t slot) {
  Slot& s = slots[slot];
  (s.older == kNoSlot ? oldest : slots[s.older].newer) = s.newer;
  (s.newer == kNoSlot ? newest : slots[s.newer].older) = s.older;
  s.older = s.newer = kNoSlot;
}

void Residency::SlotSet::push_newest(int32_t slot) {
  slots[slot].older = newest;
  (newest == kNoSlot ? oldest : slots[newest].newer) = slot;
  newest = slot;
}

void Residency::SlotSet::push_oldest(int32_t slot) {
  slots[slot].newer = oldest;
  (oldest == kNoSlot ? newest : slots[oldest].older) = slot;
  oldest = slot;
}

Residency::Residency(int devices, std::vector<SlotClass> classes, std::vector<uint16_t> page_class)
    : devices_(devices),
      classes_(std::move(classes)),
      page_class_(std::move(page_class)),
      where_(page_class_.size() * (devices + 1), kNoSlot),
      on_disk_(page_class_.size(), 0) {
  for (const SlotClass& c : classes_) {
    CHECK(static_cast<int>(c.device_slots.size()) == devices_);
    std::vector<SlotSet> places(devices_ + 1);
    for (int p = 0; p <= devices_; ++p) {
      const int32_t count = p < devices_ ? c.device_slots[p] : c.host_slots;
      places[p].slots.resize(count);
      for (int32_t s = 0; s < count; ++s) places[p].push_newest(s);
    }
    sets_.push_back(std::move(places));
  }
  for (uint16_t c : page_class_) CHECK(c < classes_.size());
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

// Frees the page's slot at `place`; the slot becomes the next to be claimed.
void Residency::drop(PageId page, int place) {
  const int32_t slot = slot_of(page, place);
  SlotSet& slots = set(page, place);
  CHECK(slots.slots[slot].pins == 0, "page %u dropped while pinned", page);
  slots.slots[slot].used = false;
  slots.unlink(slot);
  slots.push_oldest(slot);
  slot_of(page, place) = kNoSlot;
}

void Residency::evict(int place, PageId page, std::vector<Move>& moves) {
  if (copies(page) == 1) {
    if (place == host()) {
      moves.push_back({Move::Kind::kWriteBack, page, 0, kNoSlot, slot_of(page, host())});
      on_disk_[page] = 1;
    } else {
      bring_to_host(page, moves);
    }
  }
  drop(page, place);
}

// Takes a slot for the page at `place`, evicting the least recently used page if there is no free
// one, and pins it until the caller unpins.
int32_t Residency::claim(PageId page, int place, std::vector<Move>& moves) {
  SlotSet& slots = set(page, place);
  int32_t slot = slots.oldest;  // free slots are always oldest
  while (slot != kNoSlot && slots.slots[slot].pins > 0) slot = slots.slots[slot].newer;
  CHECK(slot != kNoSlot, "no slot for page %u at place %d: %zu slots of class %d all pinned", page,
        place, slots.slots.size(), page_class_[page]);
  if (slots.slots[slot].used) evict(place, slots.slots[slot].page, moves);
  slots.slots[slot] = {page, true, 1, slots.slots[slot].older, slots.slots[slot].newer};
  slots.unlink(slot);
  slots.push_newest(slot);
  slot_of(page, place) = slot;
  return slot;
}

void Residency::bring_to_host(PageId page, std::vector<Move>& moves) {
  if (slot_of(page, host()) != kNoSlot) return;
  int from = kNoSlot;
  for (int d = 0; d < devices_; ++d) {
    if (slot_of(page, d) != kNoSlot) from = d;
  }
  // The source must survive the claim below.
  if (from != kNoSlot) ++set(page, from).slots[slot_of(page, from)].pins;
  const int32_t slot = claim(page, host(), moves);
  if (from != kNoSlot) {
    moves.push_back({Move::Kind::kDownload, page, static_cast<uint8_t>(from), slot_of(page, from),
                     slot});
    --set(page, from).slots[slot_of(page, from)].pins;
  } else {
    moves.push_back({Move::Kind::kFetch, page, 0, kNoSlot, slot});
  }
  --set(page, host()).slots[slot].pins;
}

void Residency::bring(PageId page, int place, std::vector<Move>& moves) {
  if (place == host()) return bring_to_host(page, moves);
  // The device slot first: evicting for it may need a host slot, which must not be ours.
  const bool in_host = slot_of(page, host()) != kNoSlot;
  if (in_host) ++set(page, host()).slots[slot_of(page, host())].pins;
  // Claimed before the content is anywhere near it, so it must not count as a copy yet.
  const int32_t slot = claim(page, place, moves);
  slot_of(page, place) = kNoSlot;
  if (in_host) {
    --set(page, host()).slots[slot_of(page, host())].pins;
  } else {
    bring_to_host(page, moves);
  }
  slot_of(page, place) = slot;
  moves.push_back({Move::Kind::kUpload, page, static_cast<uint8_t>(place), slot,
                   slot_of(page, host())});
  --set(page, place).slots[slot].pins;
}

// Makes the page resident where it was not when the acquire began, and pins it.
int32_t Residency::place_page(const PageUse& use, int place, std::vector<Move>& moves) {
  // Making room for an earlier use may have brought it here meanwhile.
  if (slot_of(use.page, place) == kNoSlot) {
    if (use.access == Access::kCreate) return claim(use.page, place, moves);
    CHECK(has_content(use.page), "page %u is used before it was made", use.page);
    bring(use.page, place, moves);
  }
  const int32_t slot = slot_of(use.page, place);
  ++set(use.page, place).slots[slot].pins;
  return slot;
}

void Residency::acquire(std::span<const PageUse> uses, std::vector<Move>& moves,
                        std::vector<int32_t>& slots) {
  slots.assign(uses.size(), kNoSlot);
  // Pin what is already there first, so that no use evicts another's page.
  for (size_t i = 0; i < uses.size(); ++i) {
    const int place = place_index(uses[i].place);
    slots[i] = slot_of(uses[i].page, place);
    if (slots[i] != kNoSlot) ++set(uses[i].page, place).slots[slots[i]].pins;
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    const PageUse& use = uses[i];
    const int place = place_index(use.place);
    SlotSet& slot_set = set(use.page, place);
    if (slots[i] == kNoSlot) slots[i] = place_page(use, place, moves);
    const int32_t slot = slots[i];
    slot_set.unlink(slot);
    slot_set.push_newest(slot);
  }
  for (const PageUse& use : uses) {
    if (use.access == Access::kRead) continue;
    on_disk_[use.page] = 0;
    for (int p = 0; p <= devices_; ++p) {
      if (p != place_index(use.place) && slot_of(use.page, p) != kNoSlot) drop(use.page, p);
    }
  }
}

void Residency::release(std::span<const PageUse> uses) {
  for (const PageUse& use : uses) {
    const int place = place_index(use.place);
    const int32_t slot = slot_of(use.page, place);
    CHECK(slot != kNoSlot && set(use.page, place).slots[slot].pins > 0,
          "release of page %u, which is not leased", use.page);
    --set(use.page, place).slots[slot].pins;
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

bool Residency::has_content(PageId page) const { return copies(page) > 0; }

bool Residency::valid_at(PageId page, Place place) const {
  if (place.tier == Tier::kDisk) return on_disk_[page];
  return slot_of(page, place_index(place)) != kNoSlot;
}

int32_t Residency::slot_at(PageId page, Place place) const {
  return slot_of(page, place_index(place));
}

int32_t Residency::used_slots(size_t slot_class, Place place) const {
  int32_t used = 0;
  for (const SlotSet::Slot& slot : sets_[slot_class][place_index(place)].slots) used += slot.used;
  return used;
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
      size_t seen = 0;
      bool used_before = false;
      for (int32_t s = slots.oldest; s != kNoSlot; s = slots.slots[s].newer, ++seen) {
        CHECK(slots.slots[s].pins >= 0);
        CHECK(!used_before || slots.slots[s].used, "a free slot is newer than a used one");
        used_before = slots.slots[s].used;
        if (!slots.slots[s].used) continue;
        CHECK(page_class_[slots.slots[s].page] == c);
        CHECK(slot_of(slots.slots[s].page, p) == s);
      }
      CHECK(seen == slots.slots.size(), "the LRU list lost a slot");
    }
  }
}

}  // namespace pagoda
