// ExtentPool: which extents of a store are free, and whether there are enough for its pages. It
// knows numbers and sizes only; who holds an extent is its caller's affair. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "offload/page_layout.h"

namespace pagoda {

class ExtentPool {
 public:
  ExtentPool() = default;
  // All extents of the layout are free but those that are `taken`.
  ExtentPool(const PageLayout& layout, const std::vector<bool>& taken);

  // Sets `extents` for pages of `page_bytes` apart, and from the next commit() on `later` more.
  // False if nobody has so many left by then: then nothing changes.
  bool reserve(int64_t page_bytes, int extents, int later = 0);
  // Sets apart what all of these pages need that are here; false if that is not left.
  bool reserve_all(const std::vector<PageSpec>& pages, int slots);
  // Takes back what reserve() gave. `later` of them are still reserved until the next commit(), or
  // `not_yet`, and would have been from then on.
  void cancel(int64_t page_bytes, int extents, int later, bool not_yet);

  // Takes the extent that has been free for longest. REQUIRES: one is free.
  uint32_t take(int64_t page_bytes);
  void free(uint32_t extent);
  void free_at_commit(uint32_t extent);
  void commit();

 private:
  struct Size {
    std::deque<uint32_t> free;  // in the order in which they became so
    int64_t unreserved = 0;
    int64_t cancelled = 0;  // will be unreserved at the next commit
    int64_t promised = 0;   // will be reserved then
  };
  std::vector<int64_t> page_bytes_;  // by extent
  std::map<int64_t, Size> sizes_;    // by the bytes of a page
  std::vector<uint32_t> left_;       // free at the next commit
};

}  // namespace pagoda
