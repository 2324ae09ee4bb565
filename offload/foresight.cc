#include "offload/foresight.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda {

void Foresight::set(std::span<const ForeseenUse> uses, int64_t period) {
  CHECK(uses.size() < UINT32_MAX);
  now_ = 0;
  period_ = period;
  std::fill(first_.begin(), first_.end(), 0u);
  for (const ForeseenUse& use : uses) {
    CHECK(use.page < next_.size(), "page %u of %zu", use.page, next_.size());
    ++first_[use.page + 1];
  }
  for (size_t page = 0; page < next_.size(); ++page) first_[page + 1] += first_[page];
  std::copy_n(first_.begin(), next_.size(), next_.begin());
  uses_.resize(uses.size());
  for (const ForeseenUse& use : uses) {
    const uint32_t at = next_[use.page]++;
    CHECK(at == first_[use.page] || uses_[at - 1].time <= use.time, "time runs backwards");
    uses_[at] = {use.time, use.place, at + 1, use.access};
  }
  for (size_t page = 0; page < next_.size(); ++page) {
    next_[page] = first_[page];
    for (uint32_t i = first_[page + 1]; i-- > first_[page];) {
      if (i + 1 == first_[page + 1]) continue;
      const bool same = uses_[i].place == uses_[i + 1].place &&
                        uses_[i].access == uses_[i + 1].access;
      if (same) uses_[i].run_end = uses_[i + 1].run_end;
    }
  }
}

void Foresight::pass(PageId page, int place, Access access) {
  for (uint32_t i = next_[page]; i < first_[page + 1]; i = uses_[i].run_end) {
    if (uses_[i].place != place || uses_[i].access != access) continue;
    next_[page] = i + 1;
    now_ = uses_[i].time;
    return;
  }
}

bool Foresight::find(uint32_t begin, uint32_t end, int place, int64_t& time) const {
  for (uint32_t i = begin; i < end; i = uses_[i].run_end) {
    const Use& use = uses_[i];
    if (use.place != place && !changes_content(use.access)) continue;
    time = use.place == place && use.access != Access::kCreate ? use.time : kNotForeseen;
    return true;
  }
  return false;
}

int64_t Foresight::next_read(PageId page, int place) const {
  const uint32_t first = first_[page], end = first_[page + 1];
  uint32_t next = next_[page];
  while (next < end && uses_[next].time < now_) ++next;  // did not come
  int64_t time = kNotForeseen;
  if (find(next, end, place, time) || period_ == 0) return time;
  if (find(first, end, place, time) && time != kNotForeseen) time += period_;
  return time;
}

}  // namespace pagoda
