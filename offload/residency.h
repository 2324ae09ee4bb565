// Residency: which places hold a valid copy of each page, and who is evicted. A pure, deterministic
// state machine: no device, no I/O, no clock. It is driven in plan order only; completion times
// never reach it, so the pager (which executes its decisions) and the simulator (which times them)
// see the same sequence of moves for the same plan and budgets.
//
// Memory at a place is divided into slots, fixed at the start, one set for each size class of
// pages. Disk has room for every page.
//
// Invariants, checked after every call in tests:
//  - a page that has content has at least one valid copy, and all valid copies are equal;
//  - a slot holds at most one page, a page at most one slot per place;
//  - a copy is dropped without a transfer only while another valid copy exists;
//  - a pinned slot is never a victim.
// The victim is the least recently used unpinned slot of the class at that place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/place.h"

namespace pagoda {

using PageId = uint32_t;
inline constexpr int32_t kNoSlot = -1;

enum class Access : uint8_t {
  kRead,
  kWrite,   // read and changed
  kCreate,  // written without looking at what was there
};

struct PageUse {
  PageId page = 0;
  Place place;
  Access access = Access::kRead;
};

// One transfer the pager must carry out, in the order given.
struct Move {
  enum class Kind : uint8_t {
    kFetch,      // disk -> host slot
    kUpload,     // host slot -> device slot
    kDownload,   // device slot -> host slot
    kWriteBack,  // host slot -> disk
  };
  Kind kind = Kind::kFetch;
  PageId page = 0;
  uint8_t device = 0;         // kUpload, kDownload
  int32_t device_slot = kNoSlot;
  int32_t host_slot = kNoSlot;
};

// Slot counts of one size class.
struct SlotClass {
  std::vector<int32_t> device_slots;  // one entry per device
  int32_t host_slots = 0;
};

class Residency {
 public:
  // page_class[p] is the class of page p; classes[c].device_slots has one entry per device.
  Residency(int devices, std::vector<SlotClass> classes, std::vector<uint16_t> page_class);

  // Makes all `uses` (distinct pages or places) resident at once, pins their slots and appends the
  // transfers needed to `moves`. slots[i] is where uses[i] is. A write or create invalidates every
  // other copy. REQUIRES: read and written pages have content; enough slots (the plan's minimum).
  void acquire(std::span<const PageUse> uses, std::vector<Move>& moves,
               std::vector<int32_t>& slots);
  // Unpins what acquire(uses) pinned.
  void release(std::span<const PageUse> uses);

  // Makes the page's content valid on disk (a commit). REQUIRES: it has content.
  void flush(PageId page, std::vector<Move>& moves);
  // Forgets the content. REQUIRES: not pinned.
  void discard(PageId page);
  // The page's content is what the disk holds (start of a resumed run). REQUIRES: no content.
  void set_on_disk(PageId page);

  bool has_content(PageId page) const;
  bool valid_at(PageId page, Place place) const;
  int32_t slot_at(PageId page, Place place) const;  // kNoSlot when not there
  // Slots of a class that hold a page there. Linear in slots; for traces.
  int32_t used_slots(size_t slot_class, Place place) const;
  int devices() const { return devices_; }
  size_t num_pages() const { return page_class_.size(); }
  const std::vector<SlotClass>& classes() const { return classes_; }
  uint16_t page_class(PageId page) const { return page_class_[page]; }

  // Aborts if an invariant does not hold. Linear in pages and slots; for tests.
  void check_invariants() const;

 private:
  // The slots of one class at one place, in a list from least to most recently used.
  struct SlotSet {
    struct Slot {
      PageId page = 0;
      bool used = false;
      int32_t pins = 0;
      int32_t older = kNoSlot, newer = kNoSlot;
    };
    std::vector<Slot> slots;
    int32_t oldest = kNoSlot, newest = kNoSlot;
    void unlink(int32_t slot);
    void push_newest(int32_t slot);
    void push_oldest(int32_t slot);
  };

  int place_index(Place place) const;
  SlotSet& set(PageId page, int place) { return sets_[page_class_[page]][place]; }
  int32_t& slot_of(PageId page, int place) { return where_[page * (devices_ + 1) + place]; }
  int32_t slot_of(PageId page, int place) const { return where_[page * (devices_ + 1) + place]; }
  int host() const { return devices_; }

  int32_t place_page(const PageUse& use, int place, std::vector<Move>& moves);
  int32_t claim(PageId page, int place, std::vector<Move>& moves);
  void evict(int place, PageId page, std::vector<Move>& moves);
  void drop(PageId page, int place);
  void bring(PageId page, int place, std::vector<Move>& moves);
  void bring_to_host(PageId page, std::vector<Move>& moves);
  int copies(PageId page) const;

  int devices_;
  std::vector<SlotClass> classes_;
  std::vector<uint16_t> page_class_;
  std::vector<std::vector<SlotSet>> sets_;  // [class][place]; places: devices, then host
  std::vector<int32_t> where_;              // [page][place] -> slot
  std::vector<uint8_t> on_disk_;            // [page]
};

}  // namespace pagoda
