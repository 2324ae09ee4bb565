// What `pagoda plan --search` prints: settings of a run on one machine, strategies to train on
// several devices, best first.
#pragma once

#include <string>
#include <vector>

#include "cli/plan/strategy_report.h"
#include "plan/search/cluster_changes.h"
#include "preview/settings_search.h"

namespace pagoda {

struct SearchReport {
  const ModelSizes& model;
  const char* of = "cluster";  // or "machine"
  std::string where;           // its name
  int64_t tokens = 0;          // of a step
  size_t shown = 1;            // rows of each table
  SettingsSearch settings = {};  // of a machine
  std::vector<Strategy> strategies = {};  // of several devices
  StrategyTimeline timeline = {};         // of the first of them; none: not asked for
  std::vector<ClusterChange> helps = {}, fit_with = {};
  int64_t total_tokens = 0;    // --tokens; 0: not asked
  std::string why = {};        // where nothing fits

  // REQUIRES: strategies, and the timeline of the first.
  StrategyReport best_strategy() const {
    return {strategies.front(), timeline, helps, tokens, total_tokens};
  }
  bool fits() const { return !settings.runs.empty() || !strategies.empty(); }
  std::string text() const;
  std::string json() const;
};

}  // namespace pagoda
