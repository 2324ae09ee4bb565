// The pages in which the gradients of a layer's experts are summed while an action computes them:
// which page a row block adds to, which pages are added when a cell of the grid of microbatches is
// complete, and which holds the whole sum in the end (plan/sums/sum_shape.h). By chunks a page is
// an expert's for the whole step (plan/step/pages.h); else a device's experts take pages by turns,
// and give them up when they need no more. The same calls in the same order give the same pages.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "plan/step/action.h"
#include "plan/step/expert_blocks.h"
#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/sums/sum_plan.h"

namespace pagoda {

class ExpertSums {
 public:
  // `routing`: of the layer, of all microbatches up to the action's last. REQUIRES:
  // shape.pages_expert_sums(). Nothing is owned.
  ExpertSums(const RunShape& shape, const PageTable& pages, int64_t layer,
             const LayerRouting& routing);

  struct Chain {
    PageId page = 0;
    bool begins = false;  // at zero
  };
  // Where a block of the expert, which the device computes, adds. Padding alone adds zeros, to the
  // expert's newest chain, or to a page of its own.
  Chain chain(const ExpertGroup::Block& block, int device);

  struct Addition {
    PageId to = 0, from = 0;
  };
  // What is added behind the block, if it ends a cell. REQUIRES: chain() was called for it.
  std::vector<Addition> behind(const ExpertGroup::Block& block, int device);
  // The additions that wait for all cells of an expert that has no rows in the last chunk.
  std::vector<Addition> rest(int64_t expert, int device);

  // The page of the expert's whole sum, which it gives up.
  PageId take_whole(int64_t expert, int device);

 private:
  struct Expert {
    SumPlan plan;
    std::vector<uint8_t> present;      // [cell]
    std::map<int64_t, int64_t> taken;  // [buffer of the plan] page of the device, if by turns
  };
  Expert& of(int64_t expert);
  int64_t place(int64_t expert, int device, int64_t buffer);
  void give_up(Expert& expert, int device, int64_t buffer);
  std::vector<Addition> additions_from(int64_t expert, int device, size_t step);

  const RunShape& shape_;
  const PageTable& pages_;
  int64_t layer_;
  const LayerRouting& routing_;
  std::map<int64_t, Expert> experts_;
  std::map<int, std::set<int64_t>> used_;  // [device] pages, if by turns
};

}  // namespace pagoda
