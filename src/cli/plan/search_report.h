// What `pagoda plan --search` prints: settings of a run on one machine, ways to train on several
// devices, best first.
#pragma once

#include <string>
#include <vector>

#include "cli/plan/way_report.h"
#include "plan/search/cluster_changes.h"
#include "preview/settings_search.h"

namespace pagoda {

struct SearchReport {
  const PlannedModel& model;
  const char* of = "cluster";  // or "machine"
  std::string where;           // its name
  int64_t tokens = 0;          // of a step
  size_t shown = 1;            // rows of each table
  SettingsSearch settings = {};  // of a machine
  std::vector<SearchedWay> ways = {};  // of several devices
  WayTimeline timeline = {};           // of the first of them; none: not asked for
  std::vector<ClusterChange> helps = {}, fit_with = {};
  int64_t total_tokens = 0;    // --tokens; 0: not asked
  std::string why = {};        // where nothing fits

  // REQUIRES: ways, and the timeline of the first.
  WayReport best_way() const {
    return {ways.front(), timeline, helps, tokens, total_tokens};
  }
  bool fits() const { return !settings.runs.empty() || !ways.empty(); }
  std::string text() const;
  std::string json() const;
};

}  // namespace pagoda
