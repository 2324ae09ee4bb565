// What `pagoda plan --cluster` prints of the best strategy beside its row: a step by lanes and
// kinds of work, how full devices and hosts are, time for a number of tokens, what would help.
#pragma once

#include <string>
#include <vector>

#include "model/json_type.h"
#include "plan/search/cluster_changes.h"
#include "plan/search/strategy_timeline.h"

namespace pagoda {

struct StrategyReport {
  const Strategy& strategy;
  const StrategyTimeline& timeline;
  const std::vector<ClusterChange>& helps;
  int64_t tokens = 0;        // of a step
  int64_t total_tokens = 0;  // --tokens; 0: not asked

  std::string text() const;
  Json json() const;
};

// "limited by": what one lane does longest; and waiting, where that is well below the step.
std::string bottleneck_name(const StrategyTimeline& timeline);

// Changes with which a model fits, a line each.
std::string fits_with_text(const std::vector<ClusterChange>& changes);

}  // namespace pagoda
