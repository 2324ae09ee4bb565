#include "train/prefetch_score.h"

#include <algorithm>

namespace pagoda {
namespace {

bool is_there(const Task& task, const Residency& residency) {
  return residency.valid_at(task.uses[0].page, task.uses[0].place);
}

}  // namespace

void PrefetchScore::before(const Task& task, const Residency& residency) {
  const bool forward_begins = task.kind == TaskKind::kEmbed && task.microbatch <= 0;
  if (forward_begins) std::fill(waiting_.begin(), waiting_.end(), uint8_t{0});
  if (task.kind == TaskKind::kPrefetch) was_there_ = is_there(task, residency);
  if (task.kind != TaskKind::kExpert) return;
  uint8_t& waiting = waiting_[static_cast<size_t>(task.record)];
  counts_.used += waiting != 0 && is_there(task, residency);
  waiting = 0;
}

void PrefetchScore::after(const Task& task, const Residency& residency) {
  const bool guess = task.kind == TaskKind::kPrefetch && task.phase == Phase::kForward;
  if (!guess || was_there_ || !is_there(task, residency)) return;
  ++counts_.brought;
  waiting_[static_cast<size_t>(task.record)] = 1;
}

}  // namespace pagoda
