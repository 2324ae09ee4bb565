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
// Pages that were used just now are passed over while there is another: the work on them may not
// have begun, and a transfer into their slots would wait for it. SlotClass says how many. So misses
// are the fewest that leave room for transfers beside the work; with a depth of 1, the fewest. Both
// are said of classes that keep no pages in the host.
//
// The host is where pages pass through on their way to a device. What passes when follows from what
// the devices will miss, so where they may miss foresee() rehearses the uses and then takes them
// back; host slots are then chosen by what the devices will ask of them.
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
  // Slots that transfers and work take turns in, at least 1: one use in work and the transfers
  // beside it. On a device the next upload; in the host the next fetch and the last write back.
  int32_t device_depth = 2;
  int32_t host_depth = 3;
  // Of the class's pages, in the order of their ids, so many at equal distances that stay in the
  // host from cycle to cycle; the others pass through the rest of the slots, one of which would do
  // for the fewest misses of a cycle that takes each page once. What is missed is missed all along
  // the cycle, not one page after another while the drive alone works. At most host_slots.
  int32_t host_kept = 0;
};

class Residency {
 public:
  // page_class[p] is the class of page p; classes[c].device_slots has one entry per device.
  Residency(int devices, std::vector<SlotClass> classes, std::vector<uint16_t> page_class);

  // The uses that are certain to come, in their order, in place of what the last call foresaw;
  // others may come between them. Each acquire() passes its own by. A future that does not come
  // costs transfers and nothing else; foresee({}) forgets it. Takes O(n log slots) for n uses now
  // and at the last call, to rehearse them too; memory for n uses. Do not call it for every use.
  void foresee(std::span<const PageUse> uses);
  // Uses that are certain too, but come after all that foresee() will say until they do; in place
  // of those of the last call. Told once, they need not be repeated.
  void foresee_later(std::span<const PageUse> uses);

  // What is not foreseen is expected to come as it came in the last cycle, which ended here or
  // where it was left, and is then forgotten. Until the first call nothing is expected. Memory for
  // the uses of two cycles, those of one page in a row counted once.
  void begin_cycle();
  // What comes until the next begin_cycle() is no part of one (an evaluation between steps).
  void leave_cycle() { cycles_ = false; }

  // These pages' copies on devices are victims only when nothing else is but what was used just
  // now, until the next keep().
  void keep(std::span<const PageId> pages);

  // Makes all `uses` (distinct pages or places) resident at once, pins their slots and appends the
  // transfers needed to `moves`. slots[i] is where uses[i] is. A write or create invalidates every
  // other copy. REQUIRES: pages have content, unless created; enough slots (the plan's minimum).
  // A kPrefetch is not pinned; it takes no slot of a page that is foreseen or kept, here or in the
  // host, and slots[i] is kNoSlot when there are only such.
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
  // Slots of a class that hold a page there.
  int32_t used_slots(size_t slot_class, Place place) const;
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
  // What is asked first when a slot is wanted.
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
      int32_t rehearsed_pins = 0;  // of the rehearsal in hand, which knows no others
      bool remembered = false;     // by it
      int64_t last_use = 0;        // Count::uses then, or when it became free
      Rank rank;
    };
    // What changes with uses of its slots.
    struct Count {
      int32_t used = 0;          // slots that hold a page
      int32_t latest = kNoSlot;  // slot of the last use
      int64_t uses = 0;          // of another slot than the last one, each counted
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
  // What a rehearsal has changed, each as it was before.
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
    std::vector<SlotSet::Count> counts;  // of all sets, changed or not
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
  // [class] 1: its pages pass through the host: there are more than slots, and two slots at least,
  // so that one page goes up while another comes down.
  std::vector<uint8_t> passes_host_;
  std::vector<int32_t> where_;              // [page][place] -> slot
  std::vector<uint8_t> on_disk_;            // [page]
  std::vector<uint8_t> kept_;               // [page] on devices
  std::vector<uint8_t> kept_in_host_;       // [page]
  Foresight foreseen_, later_;
  Foresight expected_;                // of the cycle in hand
  std::vector<ForeseenUse> cycle_;    // what came in it
  bool cycles_ = false;               // whether that is recorded
  bool rehearses_ = false;            // what happens now is taken back
  Undo undo_;                         // of that
  std::vector<uint8_t> remembered_;   // [page] in undo_
  std::vector<int16_t> seen_at_;      // [page] kNowhere, but inside of classes_that_may_miss()
  int64_t evictions_ = 0;
};

}  // namespace pagoda
