#include "plan/step/weight_copies.h"

#include <algorithm>

namespace pagoda {

WeightCopies::WeightCopies(const RunShape& shape)
    : ranks_(shape.ranks()), device_rank_(shape.device_rank) {
  if (ranks_ == 1) return;
  good_.assign(shape.records.size() * static_cast<size_t>(ranks_), 0);
  changes_.assign(shape.records.size(), 0);
}

bool WeightCopies::is_good_guest(int64_t record, PageId page) const {
  const auto guest = guests_.find(page);
  return guest != guests_.end() && guest->second.record == record &&
         guest->second.change == changes_[static_cast<size_t>(record)];
}

void WeightCopies::set_good(int64_t record, bool good) {
  if (ranks_ == 1) return;
  ++changes_[static_cast<size_t>(record)];
  std::fill_n(good_.begin() + static_cast<int64_t>(place(record, 0)), ranks_,
              static_cast<uint8_t>(good));
}

void WeightCopies::account(std::span<const Task> tasks) {
  if (ranks_ == 1) return;
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kAdam) set_good(task.record, false);
    if (task.kind != TaskKind::kReceivePage) continue;
    if (task.on_host) {
      good_[place(task.record, device_rank_[task.device])] = 1;
    } else {
      guests_[task.uses[0].page] = {task.record, changes_[static_cast<size_t>(task.record)]};
    }
  }
}

}  // namespace pagoda
