#include "train/prefetch_score.h"

#include <algorithm>

namespace pagoda {

void PrefetchScore::note(const Task& task, const Residency& residency) {
  const bool forward_begins = task.kind == TaskKind::kEmbed && task.microbatch == 0;
  if (forward_begins) std::fill(waiting_.begin(), waiting_.end(), uint8_t{0});
  const bool prefetch = task.kind == TaskKind::kPrefetch;
  if (!prefetch && task.kind != TaskKind::kExpert) return;
  uint8_t& waiting = waiting_[static_cast<size_t>(task.record)];
  const bool there = residency.valid_at(task.uses[0].page, task.uses[0].place);
  if (prefetch) {
    counts_.brought += !there;
    waiting |= !there;
  } else {
    counts_.used += waiting != 0 && there;
    waiting = 0;
  }
}

}  // namespace pagoda
