// Foresight: uses to come, in their order, and when a copy of a page serves next. Pure bookkeeping
// for Residency, whose numbering of places it shares.
//
// It takes 24 bytes for each foreseen use and 8 for each page. The time of set() depends on the
// number of old and new uses, not on the number of pages.
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

  // Replaces all known uses by these. With a period, which is above all times, they repeat.
  // REQUIRES: times do not fall.
  void set(std::span<const ForeseenUse> uses, int64_t period = 0);
  bool empty() const { return uses_.empty(); }
  // Appends each page that has a known use, past or to come, once.
  void add_pages(std::vector<PageId>& pages) const;

  // Tells that a use has come. Everything foreseen before it, for any page, is over. A use that was
  // not foreseen changes nothing. A match that is over already counts only if no match is to come.
  void pass(PageId page, int place, Access access);

  int64_t now() const { return now_; }  // time of the last use that came

  // When the copy of the page at this place, if there is one, is read next. kReplaced: the content
  // is replaced first, here (kCreate) or elsewhere. The answer is up to date as of the page's last
  // use.
  int64_t next_read(PageId page, int place) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Use {
    int64_t time;
    PageId page;
    uint32_t next;     // index of the page's next use
    uint32_t run_end;  // index of the page's next use with other place or access
    int16_t place;
    Access access;
  };

  uint32_t match(PageId page, int place, Access access) const;
  // next_read() for a copy at this place, by the page's uses from `begin` on.
  int64_t find(uint32_t begin, int place) const;

  std::vector<Use> uses_;        // in order of time
  std::vector<uint32_t> first_;  // [page] index of its first use
  std::vector<uint32_t> next_;   // [page] index of its first use that has not come
  int64_t now_ = 0;
  int64_t period_ = 0;
};

}  // namespace pagoda
