#include "train/prefetch_score.h"

namespace pagoda {
namespace {

bool is_there(const Task& task, const Residency& residency) {
  return residency.valid_at(task.uses[0].page, task.uses[0].place);
}

}  // namespace

void PrefetchScore::before(const Task& task, const Residency& residency) {
  const bool forward_begins = task.kind == TaskKind::kEmbed && task.microbatch <= 0;
  if (forward_begins) waiting_.clear();
  if (task.kind == TaskKind::kPrefetch) was_there_ = is_there(task, residency);
  if (task.kind != TaskKind::kExpert) return;
  const bool waited = waiting_.erase({task.record, task.device}) > 0;
  counts_.used += waited && is_there(task, residency);
}

void PrefetchScore::after(const Task& task, const Residency& residency) {
  const bool guess = task.kind == TaskKind::kPrefetch && task.phase == Phase::kForward;
  if (!guess || was_there_ || !is_there(task, residency)) return;
  ++counts_.brought;
  waiting_.insert({task.record, task.device});
}

}  // namespace pagoda
