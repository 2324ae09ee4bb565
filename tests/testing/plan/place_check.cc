#include "tests/testing/plan/place_check.h"

#include <algorithm>

#include "base/bytes.h"

namespace pagoda {

PlaceCheck::PlaceCheck(const PageTable* pages, const Residency& start, PlanFaults* faults)
    : pages_(*pages),
      faults_(*faults),
      devices_(start.devices()),
      where_(pages->pages.size() * (start.devices() + 1), kNoSlot),
      on_disk_(pages->pages.size(), 0) {
  for (const SlotClass& c : start.classes()) {
    auto& holders = holder_.emplace_back();
    for (int32_t slots : c.device_slots) holders.emplace_back(slots, kNobody);
    holders.emplace_back(c.host_slots, kNobody);
  }
  for (PageId page = 0; page < pages_.pages.size(); ++page) {
    on_disk_[page] = start.valid_at(page, {Tier::kDisk, 0});
    for (int p = 0; p <= devices_; ++p) {
      const int32_t slot = start.slot_at(page, p < host() ? Place::on_device(p) : Place::host());
      if (slot != kNoSlot) put(page, p, slot);
    }
  }
}

void PlaceCheck::fault(PlanRule rule, PageId page, const char* what) {
  faults_.push_back({rule, strf("page %u %s", page, what)});
}

int PlaceCheck::copies(PageId page) const {
  int count = on_disk_[page];
  for (int p = 0; p <= devices_; ++p) count += where(page, p) != kNoSlot;
  return count;
}

void PlaceCheck::drop(PageId page, int place) {
  int32_t& slot = where(page, place);
  if (slot == kNoSlot) return;
  holder_[pages_.pages[page].slot_class][place][slot] = kNobody;
  slot = kNoSlot;
}

void PlaceCheck::put(PageId page, int place, int32_t slot) {
  std::vector<PageId>& holders = holder_[pages_.pages[page].slot_class][place];
  if (slot < 0 || slot >= static_cast<int32_t>(holders.size())) {
    return fault(PlanRule::kBudget, page, "is put into a slot that does not exist");
  }
  const PageId victim = holders[slot];
  if (victim != kNobody && victim != page) {
    const bool made_anew = std::find(created_.begin(), created_.end(), victim) != created_.end();
    if (copies(victim) == 1 && !made_anew) fault(PlanRule::kSlots, victim, "loses its only copy");
    drop(victim, place);
  }
  if (where(page, place) != kNoSlot && where(page, place) != slot) {
    fault(PlanRule::kSlots, page, "is in two slots of a place");
    drop(page, place);
  }
  holders[slot] = page;
  where(page, place) = slot;
}

void PlaceCheck::carry_out(const Move& move) {
  const bool to_host = move.kind == Move::Kind::kFetch || move.kind == Move::Kind::kDownload;
  const int target = to_host ? host() : move.device;
  const int source = move.kind == Move::Kind::kDownload ? move.device : host();
  const int32_t from = move.kind == Move::Kind::kDownload ? move.device_slot : move.host_slot;
  const bool there = move.kind == Move::Kind::kFetch ? on_disk_[move.page]
                                                     : where(move.page, source) == from;
  if (!there) fault(PlanRule::kInputs, move.page, "is moved from where it is not");
  if (move.kind == Move::Kind::kWriteBack) {
    if (on_disk_[move.page]) fault(PlanRule::kNeeded, move.page, "is written though unchanged");
    on_disk_[move.page] = 1;
    return;
  }
  if (where(move.page, target) != kNoSlot) {
    fault(PlanRule::kNeeded, move.page, "is brought to where it is");
  }
  put(move.page, target, to_host ? move.host_slot : move.device_slot);
}

void PlaceCheck::check_use(const PageUse& use, int32_t slot) {
  const int place = place_index(use.place);
  if (use.access == Access::kCreate && where(use.page, place) != slot) put(use.page, place, slot);
  if (copies(use.page) == 0) {
    fault(PlanRule::kInputs, use.page, "is used before it was made");
  } else if (where(use.page, place) == kNoSlot) {
    fault(PlanRule::kInputs, use.page, "is used where it is not");
  } else if (where(use.page, place) != slot) {
    fault(PlanRule::kSlots, use.page, "is leased in a slot that is not its own");
  }
}

// Making room for one use must not have cost another its slot.
void PlaceCheck::check_held() {
  for (const auto& [use, slot] : held_) {
    if (where(use.page, place_index(use.place)) == slot) continue;
    fault(PlanRule::kSlots, use.page, "lost its slot to another page of its task");
  }
}

void PlaceCheck::check(const Task& task, std::span<const Move> moves,
                       std::span<const int32_t> slots) {
  created_.clear();
  for (const PageUse& use : task.used()) {
    if (use.access == Access::kCreate) created_.push_back(use.page);
  }
  for (const Move& move : moves) carry_out(move);
  if (task.kind == TaskKind::kPrefetch) return;
  for (size_t i = 0; i < task.num_uses; ++i) check_use(task.uses[i], slots[i]);
  for (size_t i = 0; i < task.num_uses; ++i) held_.emplace_back(task.uses[i], slots[i]);
  check_held();
  if (!task.joins_next) held_.clear();
  for (const PageUse& use : task.used()) {
    if (use.access == Access::kRead) continue;
    on_disk_[use.page] = 0;
    for (int p = 0; p <= devices_; ++p) {
      if (p != place_index(use.place)) drop(use.page, p);
    }
  }
  for (size_t i = 0; i < task.num_uses; ++i) {
    if (task.uses[i].last) discard(task.uses[i].page);
  }
}

void PlaceCheck::discard(PageId page) {
  on_disk_[page] = 0;
  for (int p = 0; p <= devices_; ++p) drop(page, p);
}

}  // namespace pagoda
