#include "plan/step/weight_copies.h"

#include <algorithm>

namespace pagoda {

WeightCopies::WeightCopies(const RunShape& shape)
    : ranks_(shape.ranks()), device_rank_(shape.device_rank) {
  if (ranks_ > 1) good_.assign(shape.records.size() * static_cast<size_t>(ranks_), 0);
}

void WeightCopies::set_good(int64_t record, bool good) {
  if (ranks_ == 1) return;
  std::fill_n(good_.begin() + static_cast<int64_t>(place(record, 0)), ranks_,
              static_cast<uint8_t>(good));
}

void WeightCopies::account(const TaskList& tasks) {
  if (ranks_ == 1) return;
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kAdam) set_good(task.record, false);
    if (task.kind == TaskKind::kReceivePage && task.expert < 0) {
      good_[place(task.record, device_rank_[task.device])] = 1;
    }
  }
}

}  // namespace pagoda
