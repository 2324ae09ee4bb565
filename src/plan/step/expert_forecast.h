// Guesses the experts that a layer will want before its routing is known: those it used last time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "offload/residency.h"
#include "plan/step/step_plan.h"

namespace pagoda {

class ExpertForecast {
 public:
  // `classes`: the slots of plan_memory.
  ExpertForecast(const RunShape& shape, const PageTable& pages,
                 const std::vector<SlotClass>& classes);

  // What a layer's routing chose for a pass's first microbatches, or for all of them.
  void note(int64_t layer, LayerRouting routing) {
    newest_[static_cast<size_t>(layer)] = std::move(routing);
  }
  // The experts that the layer used last time, each on those of this rank's devices that would
  // compute its rows now, in the order of the records; only as many as leave room on the devices
  // for the experts that routing then chooses. Other ranks guess for themselves.
  std::vector<ExpertUse> expected(const RunShape& shape, int64_t layer) const;
  // The guests on other ranks that the layer had last time, as far_guests(). All ranks say the
  // same.
  std::vector<ExpertUse> expected_guests(const RunShape& shape, int64_t layer) const;

 private:
  std::vector<int64_t> room_;  // [device] of the run: how many experts' weights may be uploaded
  std::vector<LayerRouting> newest_;  // [layer]; empty: there is none
};

}  // namespace pagoda
