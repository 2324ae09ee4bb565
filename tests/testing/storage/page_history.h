// The fewest misses that a place could have had, from what happened there. References that share no
// code with Residency: every choice of victims tried (small instances), and a plain simulation of
// Belady's rule that looks for the farthest use by walking the trace (long ones). A miss on a
// device is an upload, one in the host a fetch from disk. Of one device and of classes that keep no
// pages in the host.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "offload/residency.h"

namespace pagoda {

inline constexpr PageId kNobody = ~PageId{0};

// What happens to one place.
struct Happening {
  enum Kind { kRead, kCreate, kReplaced } kind;  // kReplaced: this place's copy is void from now on
  PageId page;
  PageId held = kNobody;  // must stay meanwhile
};

// What happens to one place in a row: before the first miss that counts, and what counts.
struct PlaceTrace {
  int slots = 0, depth = 1;
  std::vector<Happening> before, counted;
  std::set<PageId> start;  // resident between the two
};

// Fewest misses over all choices of victims: for every set of pages that can be resident, the
// fewest misses that lead to it.
int fewest_misses(const PlaceTrace& trace);

// The same by Belady's rule.
int belady_misses(const PlaceTrace& trace);

// The two places' traces of the pages of one class, and what moved.
class PageHistory {
 public:
  // `residency` is not owned.
  PageHistory(const Residency* residency, uint16_t slot_class);

  // From here on misses count.
  void start();
  // A use of one of its pages, the only one of an acquire that made these moves and came last. A
  // guess that brought its page up was no miss, and nothing where it found no room.
  void note(const PageUse& use, std::span<const Move> all_moves);

  const PlaceTrace& device() const { return device_; }
  const PlaceTrace& host() const { return host_; }
  int uploads() const { return uploads_; }
  int fetches() const { return fetches_; }

 private:
  bool has(PageId page) const { return residency_.page_class(page) == slot_class_; }
  void add(PlaceTrace& trace, const Happening& h) {
    (counting_ ? trace.counted : trace.before).push_back(h);
  }

  const Residency& residency_;
  uint16_t slot_class_;
  PlaceTrace device_, host_;
  bool counting_ = false;
  int uploads_ = 0, fetches_ = 0;
};

}  // namespace pagoda
