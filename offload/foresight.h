// Foresight: uses to come, in their order, and when a copy of a page serves next. Pure bookkeeping
// for Residency, whose numbering of places it shares.
//
// Memory is 24 bytes a foreseen use and 8 a page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/page_use.h"

namespace pagoda {

inline constexpr int64_t kNotForeseen = INT64_MAX;

struct ForeseenUse {
  int64_t time = 0;
  PageId page = 0;
  int32_t place = 0;
  Access access = Access::kRead;
};

class Foresight {
 public:
  explicit Foresight(size_t pages) : first_(pages + 1, 0), next_(pages, 0) {}

  // Knows these uses and no others from now on. REQUIRES: times do not fall. With a period, above
  // all times, they come again and again.
  void set(std::span<const ForeseenUse> uses, int64_t period = 0);
  bool empty() const { return uses_.empty(); }

  // A use has come. What was foreseen before it, of its page and of others, is over; a use that was
  // not foreseen changes nothing.
  void pass(PageId page, int place, Access access);

  // When the copy of the page at this place, if there is one, is next read. kNotForeseen: no use is
  // known, or the content will have been replaced by then, here (kCreate) or elsewhere. The answer
  // changes when a use of the page has come; it may be out of date when others have.
  int64_t next_read(PageId page, int place) const;

 private:
  struct Use {
    int64_t time;
    int32_t place;
    uint32_t run_end;  // index of the page's first use after this one with other place or access
    Access access;
  };

  // Of the page's uses [begin, end): true when one decides, in `time`.
  bool find(uint32_t begin, uint32_t end, int place, int64_t& time) const;

  std::vector<Use> uses_;        // grouped by page, in order of time
  std::vector<uint32_t> first_;  // [page] index of its first use; one more at the end
  std::vector<uint32_t> next_;   // [page] index of its first use that has not come
  int64_t now_ = 0;              // time of the last use that came
  int64_t period_ = 0;
};

}  // namespace pagoda
