// The report of `pagoda plan --cluster` on the best strategy, beside its row: a step by lanes and
// kinds of work, the memory in use on devices and hosts, time for a number of tokens, and changes
// that would help.
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
  int64_t total_tokens = 0;  // --tokens; 0: not given

  std::string text() const;
  Json json() const;
};

// The text behind "limited by": the work that one lane does longest; and waiting, if that work
// takes much less than the step.
std::string bottleneck_name(const StrategyTimeline& timeline);

// The time that so many tokens take, and the changes that help; empty where there are none.
std::string run_time_text(int64_t tokens, double tokens_per_s, const char* more);
std::string helps_text(const std::vector<ClusterChange>& helps);
// The same as members of a JSON object.
void add_tokens(int64_t tokens, double tokens_per_s, Json& json);
void add_helps(const std::vector<ClusterChange>& helps, Json& json);

// The changes with which a model fits, a line each.
std::string fits_with_text(const std::vector<ClusterChange>& changes);

}  // namespace pagoda
