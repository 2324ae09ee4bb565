// Which experts a layer will want, before its routing is known: those it had last time.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step_plan.h"
#include "train/session.h"

namespace pagoda {

class ExpertForecast {
 public:
  explicit ExpertForecast(const Session& session);

  // What a layer's routing chose. (num_experts)
  void note(int64_t layer, const std::vector<int64_t>& tokens_per_expert);
  // Tasks that bring up the experts the layer had last, as many as leave room for those that turn
  // out to be.
  void prefetch(const StepPlan& plan, int64_t layer, TaskList& tasks) const;

 private:
  const Session& session_;
  std::vector<std::vector<int64_t>> tokens_per_expert_;  // [layer]
};

}  // namespace pagoda
