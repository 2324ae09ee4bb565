#include "offload/foresight.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda {

void Foresight::set(std::span<const ForeseenUse> uses, int64_t period) {
  CHECK(uses.size() < kNone);
  for (const Use& use : uses_) first_[use.page] = next_[use.page] = kNone;
  now_ = 0;
  period_ = period;
  uses_.resize(uses.size());
  int64_t time = INT64_MAX;
  for (uint32_t i = static_cast<uint32_t>(uses.size()); i-- > 0;) {
    const ForeseenUse& use = uses[i];
    CHECK(use.page < first_.size(), "page %u of %zu", use.page, first_.size());
    CHECK(use.time <= time, "time runs backwards");
    time = use.time;
    const uint32_t after = first_[use.page];
    const bool same = after != kNone && uses_[after].place == use.place &&
                      uses_[after].access == use.access;
    uses_[i] = {time,   use.page,   after, same ? uses_[after].run_end : after,
                static_cast<int16_t>(use.place), use.access};
    first_[use.page] = next_[use.page] = i;
  }
}

void Foresight::add_pages(std::vector<PageId>& pages) const {
  for (uint32_t i = 0; i < uses_.size(); ++i) {
    if (first_[uses_[i].page] == i) pages.push_back(uses_[i].page);
  }
}

// The page's first use of this kind that is not over, or else the last one.
uint32_t Foresight::match(PageId page, int place, Access access) const {
  uint32_t found = kNone;
  for (uint32_t i = next_[page]; i != kNone; i = uses_[i].run_end) {
    if (uses_[i].place != place || uses_[i].access != access) continue;
    for (uint32_t same = i; same != uses_[i].run_end; same = uses_[same].next) {
      found = same;
      if (uses_[same].time >= now_) return found;
    }
  }
  return found;
}

void Foresight::pass(PageId page, int place, Access access) {
  const uint32_t use = match(page, place, access);
  if (use == kNone) return;
  next_[page] = uses_[use].next;
  now_ = uses_[use].time;
}

int64_t Foresight::find(uint32_t begin, int place) const {
  for (uint32_t i = begin; i != kNone; i = uses_[i].run_end) {
    const Use& use = uses_[i];
    if (use.place != place && !changes_content(use.access)) continue;
    return use.place == place && use.access != Access::kCreate ? use.time : kReplaced;
  }
  return kNotForeseen;
}

int64_t Foresight::next_read(PageId page, int place) const {
  uint32_t next = next_[page];
  while (next != kNone && uses_[next].time < now_) next = uses_[next].next;  // did not come
  const int64_t time = find(next, place);
  if (time != kNotForeseen || period_ == 0) return time;
  const int64_t again = find(first_[page], place);
  return again < kReplaced ? again + period_ : again;
}

}  // namespace pagoda
