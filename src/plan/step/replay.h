// Runs a residency over tasks as the executor and the pager do, without bytes and without time. It
// tells which moves each task needs, what crosses each link and how full each place gets.
// "Predicted bytes" are the sum of the moves of a resolved plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/residency.h"
#include "plan/step/pages.h"
#include "plan/step/task.h"

namespace pagoda {

// Transfers of pages. Bytes exclude the header that a page has on disk.
struct PageTraffic {
  struct Link {
    int64_t moves = 0, bytes = 0;
    Link operator-(const Link& other) const;
    bool operator==(const Link&) const = default;
  };
  Link fetch, upload, download, write_back;

  Link& of(Move::Kind kind);
  PageTraffic operator-(const PageTraffic& other) const;
  bool operator==(const PageTraffic&) const = default;
};

// A rank's residency at the start of a run: every page that its page file keeps is on disk, nothing
// anywhere else.
Residency all_on_disk(const RunShape& shape, const PageTable& pages,
                      const std::vector<SlotClass>& classes);

class Replay {
 public:
  // `pages` is not owned. `start` may be a copy of a pager's residency, to predict what the pager
  // does.
  Replay(const PageTable* pages, Residency start);

  // The same calls as Residency's.
  void begin_cycle() { residency_.begin_cycle(); }
  void leave_cycle() { residency_.leave_cycle(); }
  void foresee(std::span<const PageUse> uses) { residency_.foresee(uses); }
  void foresee_later(std::span<const PageUse> uses) { residency_.foresee_later(uses); }
  void keep(std::span<const PageId> pages) { residency_.keep(pages); }

  // Valid until the next call.
  struct Placed {
    std::span<const Move> moves;     // to be made in this order, before the task
    std::span<const int32_t> slots;  // the slots of the task's uses
  };
  // Leases the task's pages, and forgets those whose last use this is. The leases end with the
  // task; those of a task that joins the next end with that one.
  Placed place(const Task& task);
  void discard(PageId page) { residency_.discard(page); }
  // Makes the page's content valid on disk, as for a checkpoint.
  void flush(PageId page);

  const Residency& residency() const { return residency_; }
  const PageTraffic& traffic() const { return traffic_; }
  // Bytes of pages that lie at the place.
  int64_t held_bytes(Place place) const { return residency_.used_bytes(slot_bytes_, place); }
  // The most that lay there at the start, or while a task had its pages.
  int64_t peak_bytes(Place place) const { return peak_bytes_[residency_.place_index(place)]; }

 private:
  void note_peaks();
  void count_moves();

  const PageTable& pages_;
  Residency residency_;
  PageTraffic traffic_;
  std::vector<Move> moves_;
  std::vector<int32_t> slots_;
  std::vector<PageUse> held_;        // uses of tasks that join the next
  std::vector<int64_t> slot_bytes_;  // [class]
  std::vector<int64_t> peak_bytes_;  // [place]
};

}  // namespace pagoda
