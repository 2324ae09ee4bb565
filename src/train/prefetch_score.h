// Scores the speculative prefetches of a forward: how many of the pages that they uploaded were
// still there when their layer used them. One thread.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "offload/residency.h"
#include "plan/step/task.h"

namespace pagoda {

class PrefetchScore {
 public:
  // Call these before and after the task's pages are acquired.
  void before(const Task& task, const Residency& residency);
  void after(const Task& task, const Residency& residency);

  // Totals so far. A page that was uploaded and not used in that forward was a wrong guess, or was
  // evicted before its use.
  struct Counts {
    int64_t brought = 0;  // uploaded weights, which were not on their device yet
    int64_t used = 0;     // uploaded weights that the same forward used
  };
  const Counts& counts() const { return counts_; }

 private:
  // [record, device] weights that were uploaded in this forward and not used yet
  std::set<std::pair<int64_t, int>> waiting_;
  bool was_there_ = false;        // the newest prefetch found its page on the device
  Counts counts_;
};

}  // namespace pagoda
