#include "offload/extent_pool.h"

#include <algorithm>

namespace pagoda {

ExtentPool::ExtentPool(const PageLayout& layout, const std::vector<bool>& taken) {
  for (size_t extent = 0; extent < layout.extents.size(); ++extent) {
    const int64_t page_bytes = layout.extents[extent].page_bytes;
    page_bytes_.push_back(page_bytes);
    Size& size = sizes_[page_bytes];
    ++size.unreserved;
    if (!taken[extent]) size.free.push_back(static_cast<uint32_t>(extent));
  }
}

bool ExtentPool::reserve(int64_t page_bytes, int extents, int later) {
  Size& size = sizes_[page_bytes];
  const int64_t left = size.unreserved - extents;
  if (left < 0 || left + size.cancelled - size.promised < later) return false;
  size.unreserved = left;
  size.promised += later;
  return true;
}

bool ExtentPool::reserve_all(const std::vector<PageSpec>& pages, int slots) {
  return std::all_of(pages.begin(), pages.end(), [&](const PageSpec& page) {
    return reserve(page.bytes, page.extents(slots));
  });
}

void ExtentPool::cancel(int64_t page_bytes, int extents, int later, bool not_yet) {
  Size& size = sizes_[page_bytes];
  size.unreserved += extents;
  (not_yet ? size.promised : size.cancelled) += not_yet ? -later : later;
}

uint32_t ExtentPool::take(int64_t page_bytes) {
  std::deque<uint32_t>& free = sizes_[page_bytes].free;
  CHECK(!free.empty(), "no extent for a page of %lld bytes is free", (long long)page_bytes);
  const uint32_t extent = free.front();
  free.pop_front();
  return extent;
}

void ExtentPool::free(uint32_t extent) { sizes_[page_bytes_[extent]].free.push_back(extent); }

void ExtentPool::free_at_commit(uint32_t extent) { left_.push_back(extent); }

void ExtentPool::commit() {
  // In order of number, so that they are taken from all files in turn.
  std::sort(left_.begin(), left_.end());
  for (const uint32_t extent : left_) free(extent);
  left_.clear();
  for (auto& [bytes, size] : sizes_) {
    size.unreserved += size.cancelled - size.promised;
    size.cancelled = size.promised = 0;
  }
}

}  // namespace pagoda
