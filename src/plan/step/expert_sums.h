// The pages in which the gradients of a layer's experts are summed while an action computes them:
// which page a row block adds to, which pages are added when a cell of the grid of microbatches is
// complete, which go to another device, and which holds the whole sum in the end, at the expert's
// seat (plan/sums/sum_shape.h). By chunks a page is an expert's for the whole step
// (plan/step/pages.h); else a device's experts take pages by turns, and give them up when they need
// no more. The page that was given up longest ago is taken first, so that a sum may be on its way
// while others are computed. The same calls in the same order give the same pages.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "plan/step/action.h"
#include "plan/step/expert_blocks.h"
#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/sums/sum_plan.h"

namespace pagoda {

class ExpertSums {
 public:
  // `routing`: of the layer, of all microbatches up to the action's last. `seats`: where the action
  // computes rows. REQUIRES: shape.pages_expert_sums(). Nothing is owned.
  ExpertSums(const RunShape& shape, const PageTable& pages, int64_t layer,
             const LayerRouting& routing, const LayerSeats& seats);

  struct Chain {
    PageId page = 0;
    bool begins = false;  // at zero
  };
  // Where a block of the expert adds. Padding alone adds zeros, to the expert's newest chain, or to
  // a page of its own.
  Chain chain(const ExpertGroup::Block& block);

  // A sum is added to another one of its device, or goes to another device.
  struct Step {
    int device = 0;
    PageId page = 0;
    PageId other = 0;  // is added to it; or on device `to`, receives it
    int to = -1;       // -1: it is an addition
    bool waits = false;  // it is an addition that waits for a sum of another device
  };
  // What follows the block, if it ends a cell. REQUIRES: chain() was called for it; behind() is
  // called for all blocks of a wave, and in the order of experts and cells.
  std::vector<Step> behind(const ExpertGroup::Block& block);
  // The additions that wait for all cells of an expert that has no rows in the last chunk.
  std::vector<Step> rest(int64_t expert);

  // The expert's whole sum, whose page it gives up.
  struct Whole {
    PageId page = 0;
    bool waits = false;  // for sums of other devices
  };
  Whole take_whole(int64_t expert);

 private:
  // What an expert's plan follows from; experts of a device that have rows in the same cells share
  // one.
  struct Source {
    std::vector<uint8_t> present;  // [cell]
    std::vector<int> shard_device;
    int home = 0;
    auto operator<=>(const Source&) const = default;
  };
  struct Expert {
    const SumPlan* plan = nullptr;  // of plans_
    // [device, buffer of the plan] page of the device, if by turns
    std::map<std::pair<int, int64_t>, int64_t> taken;
  };
  Expert& of(int64_t expert);
  const std::vector<SumStep>& steps_of(int64_t expert) { return of(expert).plan->steps; }
  PageId page(int64_t expert, int device, int64_t buffer);
  std::deque<int64_t>& free_pages(int device);
  void give_up(Expert& expert, int device, int64_t buffer);
  std::vector<Step> steps_from(int64_t expert, size_t step);

  const RunShape& shape_;
  const PageTable& pages_;
  int64_t layer_;
  const LayerRouting& routing_;
  const LayerSeats& seats_;
  std::map<Source, SumPlan> plans_;
  std::map<int64_t, Expert> experts_;
  // [device] pages, if by turns; that which was given up longest ago comes first
  std::map<int, std::deque<int64_t>> free_;
};

}  // namespace pagoda
