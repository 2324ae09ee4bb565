// Checks a residency's moves and slots for a plan against its own account of the content of each
// slot. Part of the validator.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "offload/residency.h"
#include "plan/step/pages.h"
#include "plan/step/task.h"
#include "tests/testing/plan/plan_fault.h"

namespace pagoda {

class PlaceCheck {
 public:
  // `pages` and `faults` are not owned. `start`: where pages are before the first task.
  PlaceCheck(const PageTable* pages, const Residency& start, PlanFaults* faults);

  // One task with what it was given.
  void check(const Task& task, std::span<const Move> moves, std::span<const int32_t> slots);
  void discard(PageId page);
  bool has_content(PageId page) const { return copies(page) > 0; }

 private:
  static constexpr PageId kNobody = ~PageId{0};

  void fault(PlanRule rule, PageId page, const char* what);
  int place_index(Place place) const { return place.tier == Tier::kHost ? host() : place.device; }
  int host() const { return devices_; }
  int32_t& where(PageId page, int place) { return where_[page * (devices_ + 1) + place]; }
  int32_t where(PageId page, int place) const { return where_[page * (devices_ + 1) + place]; }
  int copies(PageId page) const;
  void carry_out(const Move& move);
  void put(PageId page, int place, int32_t slot);
  void drop(PageId page, int place);
  void check_use(const PageUse& use, int32_t slot);
  void check_held();

  const PageTable& pages_;
  PlanFaults& faults_;
  int devices_;
  std::vector<int32_t> where_;    // [page][place]; places: devices, then host
  std::vector<uint8_t> on_disk_;  // [page]
  std::vector<PageId> created_;   // by the task: what they held before may be lost
  std::vector<std::pair<PageUse, int32_t>> held_;  // with their slots: of tasks that go together
  std::vector<std::vector<std::vector<PageId>>> holder_;  // [class][place][slot]
};

}  // namespace pagoda
