// Foresight: uses to come, in their order, and when a copy of a page serves next. Pure bookkeeping
// for Residency, whose numbering of places it shares.
//
// Memory is 24 bytes a foreseen use and 8 a page. What it costs to know other uses depends on how
// many were and are known, not on how many pages there are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/page_use.h"

namespace pagoda {

inline constexpr int64_t kNotForeseen = INT64_MAX;    // no use is known
inline constexpr int64_t kReplaced = INT64_MAX - 1;  // the content will not be read before it is

struct ForeseenUse {
  int64_t time = 0;
  PageId page = 0;
  int32_t place = 0;
  Access access = Access::kRead;
};

class Foresight {
 public:
  explicit Foresight(size_t pages) : first_(pages, kNone), next_(pages, kNone) {}

  // Knows these uses and no others from now on. REQUIRES: times do not fall. With a period, above
  // all times, they come again and again.
  void set(std::span<const ForeseenUse> uses, int64_t period = 0);
  bool empty() const { return uses_.empty(); }
  // Appends the pages of which it knows uses, those that have come among them; each once.
  void add_pages(std::vector<PageId>& pages) const;

  // A use has come. What was foreseen before it, of its page and of others, is over; a use that was
  // not foreseen changes nothing. One that is over already is taken only where none is to come.
  void pass(PageId page, int place, Access access);

  int64_t now() const { return now_; }  // time of the last use that came

  // When the copy of the page at this place, if there is one, is next read. kReplaced: here
  // (kCreate) or elsewhere. The answer changes when a use of the page has come; it may be out of
  // date when others have.
  int64_t next_read(PageId page, int place) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Use {
    int64_t time;
    PageId page;
    uint32_t next;     // index of the page's next use
    uint32_t run_end;  // of its first use after this one with other place or access
    int16_t place;
    Access access;
  };

  uint32_t match(PageId page, int place, Access access) const;
  // What the page's uses from `begin` on say of a copy at this place.
  int64_t find(uint32_t begin, int place) const;

  std::vector<Use> uses_;        // in order of time
  std::vector<uint32_t> first_;  // [page] index of its first use
  std::vector<uint32_t> next_;   // [page] index of its first use that has not come
  int64_t now_ = 0;
  int64_t period_ = 0;
};

}  // namespace pagoda
