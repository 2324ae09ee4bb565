// What `pagoda plan --search` prints: ways to train, best first.
#pragma once

#include <string>
#include <vector>

#include "plan/cluster_search.h"
#include "train/planned_model.h"

namespace pagoda {

struct SearchReport {
  const PlannedModel& model;
  std::string where;     // the cluster's or the machine's name
  int64_t tokens = 0;    // of a step
  std::vector<SearchedWay> ways;
  size_t shown = 1;

  std::string text() const;
  std::string json() const;
};

}  // namespace pagoda
