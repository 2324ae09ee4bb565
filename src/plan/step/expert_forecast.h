// Guesses the experts that a layer will want before its routing is known: those it used last time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/residency.h"
#include "plan/step/step_plan.h"

namespace pagoda {

class ExpertForecast {
 public:
  // `classes`: the slots of plan_memory.
  ExpertForecast(const RunShape& shape, const PageTable& pages,
                 const std::vector<SlotClass>& classes);

  // What a layer's routing chose. (num_experts)
  void note(int64_t layer, std::span<const int64_t> tokens_per_expert);
  // Records of the experts that the layer used last time on this rank's devices, in their order;
  // only as many as leave room on the devices for the experts that routing then chooses. Other
  // ranks guess for themselves.
  std::vector<int64_t> expected(const RunShape& shape, int64_t layer) const;
  // [expert] where the layer would compute its experts if it used them as it did last time.
  std::vector<int> expected_seats(const RunShape& shape, int64_t layer) const;

 private:
  std::vector<int64_t> room_;  // [device] of the run: how many experts' weights may be uploaded
  std::vector<std::vector<int64_t>> tokens_per_expert_;  // [layer]
};

}  // namespace pagoda
