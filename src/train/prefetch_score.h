// How good speculative prefetches of a forward were: which of the pages they brought up were still
// there when their layer used them. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/residency.h"
#include "plan/step/task.h"

namespace pagoda {

class PrefetchScore {
 public:
  explicit PrefetchScore(size_t num_records) : waiting_(num_records, 0) {}

  // Before and after the task's pages are acquired.
  void before(const Task& task, const Residency& residency);
  void after(const Task& task, const Residency& residency);

  // Totals so far. What was brought up and not used in that forward was a wrong guess, or was
  // evicted before its turn.
  struct Counts {
    int64_t brought = 0;  // weights that were not on their device yet
    int64_t used = 0;     // of them
  };
  const Counts& counts() const { return counts_; }

 private:
  std::vector<uint8_t> waiting_;  // [record], brought up in this forward and not used yet
  bool was_there_ = false;        // what the newest prefetch brings
  Counts counts_;
};

}  // namespace pagoda
