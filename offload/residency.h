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
//
// The victim is an unpinned slot of the class at that place, chosen in this order:
//  1. a free slot, the one free for longest;
//  2. a page of which no use is foreseen or expected, least recently used first (LRU);
//  3. a page of which no use is foreseen but one expected, because the cycle (a step) before had
//     it: the farthest first. Steps go round the same layers, for which LRU is the worst rule;
//  4. the page whose next foreseen use is farthest (Belady, "A study of replacement algorithms for
//     a virtual-storage computer", 1966; with pages of one size the fewest misses, also where some
//     uses create their page, which costs nothing, or ask for several at once);
//  5. a kept page, least recently used first; in the host, while its use is foreseen or expected.
// Pages that were used just now (SlotClass says how many) are passed over while there is another:
// the work on them may not have begun, and a transfer into their slots would wait for it. So in
// classes that keep no pages in the host, misses are the fewest that leave room for transfers
// beside the work; with a depth of 1 they are the fewest of all.
//
// Pages pass through the host on their way to a device. The order in which they pass follows from
// the devices' misses. So where devices may miss, foresee() rehearses the uses and takes them back;
// host slots are then chosen by what the devices will ask of them.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "offload/foresight.h"
#include "offload/page_use.h"

namespace pagoda {

inline constexpr int32_t kNoSlot = -1;
inline constexpr uint16_t kNoSlotClass = 0xffff;

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
  // How many slots work and transfers need at a time, at least 1: one for the use in work, the
  // others for the transfers beside it. On a device that is the next upload, in the host the next
  // fetch and the last write back.
  int32_t device_depth = 2;
  int32_t host_depth = 3;
  // How many of the class's pages stay in the host from cycle to cycle: pages at equal distances in
  // the order of their ids. The others pass through the rest of the slots; one such slot already
  // gives the fewest misses of a cycle that uses each page once. The equal distances spread the
  // misses over the cycle, so that the drive and the computation work side by side. At most
  // host_slots.
  int32_t host_kept = 0;
};

class Residency {
 public:
  // page_class[p] is the class of page p, or kNoSlotClass for one that is never used here;
  // classes[c].device_slots has one entry per device.
  Residency(int devices, std::vector<SlotClass> classes, std::vector<uint16_t> page_class);

  // Tells the uses that are certain to come, in their order; they replace those of the last call,
  // and other uses may come between them. An acquire() takes its own uses off the list. Uses that
  // never come cost transfers and nothing else; foresee({}) forgets them. Takes O(n log slots) time
  // for n uses in this and the last call, rehearsal included, and memory for n uses. Do not call it
  // for every use.
  void foresee(std::span<const PageUse> uses);
  // Tells uses that are certain too, but come after all that foresee() tells until then; they
  // replace those of the last call and need not be repeated.
  void foresee_later(std::span<const PageUse> uses);

  // Begins a cycle. Uses that are not foreseen are expected to come as they came in the last cycle,
  // which ended here or at leave_cycle(); older cycles are forgotten. Before the first call nothing
  // is expected. Takes memory for the uses of two cycles; uses of one page in a row count once.
  void begin_cycle();
  // Uses until the next begin_cycle() belong to no cycle (an evaluation between steps).
  void leave_cycle() { cycles_ = false; }

  // Until the next keep(), copies of these pages on devices are victims only when all others are
  // pinned or were used just now.
  void keep(std::span<const PageId> pages);

  // Makes all `uses` (distinct pages or places) resident at once, pins their slots and appends the
  // transfers needed to `moves`. slots[i] is where uses[i] is. A write or create invalidates every
  // other copy. REQUIRES: pages have content, unless created; enough slots (the plan's minimum). A
  // kPrefetch is not pinned, and never takes the slot of a page that is foreseen or kept, here or
  // in the host; slots[i] is kNoSlot when no other slot is free.
  void acquire(std::span<const PageUse> uses, std::vector<Move>& moves,
               std::vector<int32_t>& slots);
  // Unpins what acquire(uses) pinned.
  void release(std::span<const PageUse> uses);

  // Makes the page's content valid on disk (a commit). REQUIRES: it has content.
  void flush(PageId page, std::vector<Move>& moves);
  // Forgets the content. REQUIRES: not pinned.
  void discard(PageId page);
  // Says that the page's content is on disk (at the start of a resumed run). REQUIRES: no content.
  void set_on_disk(PageId page);
  // From now on `in` is a page of the class of `out`, in whose place it is, and `out` is never used
  // here. REQUIRES: neither has content, `in` has no class, and nothing is foreseen.
  void replace(PageId out, PageId in);

  bool has_content(PageId page) const;
  bool valid_at(PageId page, Place place) const;
  int32_t slot_at(PageId page, Place place) const;  // kNoSlot when not there
  // Slots of a class that hold a page there.
  int32_t used_slots(size_t slot_class, Place place) const;
  // The bytes of all these slots there. slot_bytes: [class].
  int64_t used_bytes(std::span<const int64_t> slot_bytes, Place place) const;
  // Copies that have lost their slot to another page so far.
  int64_t evictions() const { return evictions_; }
  int devices() const { return devices_; }
  // The devices' places in their order, and behind them the host's. REQUIRES: not a disk.
  int place_index(Place place) const;
  size_t num_pages() const { return page_class_.size(); }
  const std::vector<SlotClass>& classes() const { return classes_; }
  uint16_t page_class(PageId page) const { return page_class_[page]; }

  // Aborts if an invariant does not hold. Linear in pages and slots; for tests.
  void check_invariants() const;

 private:
  // Orders slots as victims: the smallest goes first.
  struct Rank {
    enum Group : uint8_t { kFree, kUnforeseen, kExpected, kForeseen, kKept };
    Group group = kFree;
    int64_t value = 0;  // the smallest goes first
    int32_t slot = 0;
    auto operator<=>(const Rank&) const = default;
  };
  // The slots of one class at one place.
  struct SlotSet {
    struct Slot {
      PageId page = 0;
      bool used = false;
      int32_t pins = 0;
      int32_t rehearsed_pins = 0;  // pins of the current rehearsal, which sees no others
      bool remembered = false;     // by the current rehearsal, in Undo
      int64_t last_use = 0;        // Count::uses then, or when it became free
      Rank rank;
    };
    // What changes with uses of its slots.
    struct Count {
      int32_t used = 0;          // slots that hold a page
      int32_t latest = kNoSlot;  // slot of the last use
      int64_t uses = 0;          // counts each use of another slot than the one before
    };
    std::vector<Slot> slots;
    std::set<Rank> order;  // of all slots
    Count count;
    int32_t depth = 1;
    bool rehearses = false;
    int32_t& pins(int32_t slot) {
      return rehearses ? slots[slot].rehearsed_pins : slots[slot].pins;
    }
    int32_t pins(int32_t slot) const { return const_cast<SlotSet*>(this)->pins(slot); }
    void set_rank(int32_t slot, const Rank& rank);
    bool just_used(const Slot& slot) const;
    int32_t next_victim() const;
    int32_t spare_slots(int32_t except) const;
    int32_t free_slots() const { return static_cast<int32_t>(slots.size()) - count.used; }
  };
  // The state before a rehearsal of all that it has changed.
  struct Undo {
    struct SlotWas {
      SlotSet* set = nullptr;
      int32_t slot = 0;
      SlotSet::Slot was;
    };
    struct PageWas {
      PageId page = 0;
      uint8_t on_disk = 0;
    };
    std::vector<SlotWas> slots;
    std::vector<PageWas> pages;
    std::vector<int32_t> where;          // [one of `pages`][place]
    std::vector<SlotSet::Count> counts;  // of all sets
    int64_t evictions = 0;
  };

  static constexpr int16_t kNowhere = -1;

  SlotSet& set(PageId page, int place) { return sets_[page_class_[page]][place]; }
  const SlotSet& set(PageId page, int place) const { return sets_[page_class_[page]][place]; }
  int32_t& slot_of(PageId page, int place) { return where_[page * (devices_ + 1) + place]; }
  int32_t slot_of(PageId page, int place) const { return where_[page * (devices_ + 1) + place]; }
  int host() const { return devices_; }
  int64_t next_foreseen(PageId page, int place) const;
  Rank rank(const SlotSet& slots, int32_t slot, int place) const;
  void update_rank(PageId page, int place);
  void update_ranks();
  void update_overdue_ranks();
  void set_future(Foresight& foresight, std::span<const ForeseenUse> uses);
  void touch(PageId page, int place);
  bool is_latest(PageId page, int place) const;
  void go_round(PageId page, int place, Access access, bool again);
  std::vector<ForeseenUse> as_foreseen(std::span<const PageUse> uses) const;
  std::vector<uint8_t> classes_that_may_miss(std::span<const PageUse> uses);
  void begin_rehearsal();
  void end_rehearsal();
  void remember(PageId page);
  void remember_slot(SlotSet& slots, int32_t slot);
  std::vector<ForeseenUse> rehearse(std::span<const PageUse> uses,
                                    const std::vector<uint8_t>& may_miss);
  bool rehearse(const PageUse& use, std::vector<Move>& moves);

  int32_t place_page(const PageUse& use, int place, std::vector<Move>& moves);
  int32_t prefetch(PageId page, int place, std::vector<Move>& moves);
  bool room_for(PageId page, int place) const;
  int32_t claim(PageId page, int place, std::vector<Move>& moves);
  void evict(int place, PageId page, std::vector<Move>& moves);
  void drop(PageId page, int place);
  void drop_elsewhere(PageId page, int place);
  void bring(PageId page, int place, std::vector<Move>& moves);
  void bring_to_host(PageId page, std::vector<Move>& moves);
  int copies(PageId page) const;

  int devices_;
  std::vector<SlotClass> classes_;
  std::vector<uint16_t> page_class_;
  std::vector<size_t> class_pages_;  // [class] how many there are
  std::vector<std::vector<SlotSet>> sets_;  // [class][place]; places: devices, then host
  // [class] 1: its pages pass through the host. There are more pages than slots, and at least two
  // slots, so that one page is uploaded while another is downloaded.
  std::vector<uint8_t> passes_host_;
  std::vector<int32_t> where_;              // [page][place] -> slot
  std::vector<uint8_t> on_disk_;            // [page]
  std::vector<uint8_t> kept_;               // [page] on devices
  std::vector<uint8_t> kept_in_host_;       // [page]
  Foresight foreseen_, later_;
  Foresight expected_;                // for the current cycle
  std::vector<ForeseenUse> cycle_;    // uses of the current cycle so far
  bool cycles_ = false;               // whether uses are recorded in cycle_
  bool rehearses_ = false;            // a rehearsal runs, which end_rehearsal() takes back
  Undo undo_;                         // what it has changed
  std::vector<uint8_t> remembered_;   // [page] in undo_
  std::vector<int16_t> seen_at_;      // [page] kNowhere outside of classes_that_may_miss()
  int64_t evictions_ = 0;
};

}  // namespace pagoda
