// What `pagoda plan --search` prints: settings of a run on one machine, ways to train on several
// devices, best first.
#pragma once

#include <string>
#include <vector>

#include "plan/cluster_search.h"
#include "train/settings_search.h"

namespace pagoda {

struct SearchReport {
  const PlannedModel& model;
  const char* of = "cluster";  // or "machine"
  std::string where;           // its name
  int64_t tokens = 0;          // of a step
  size_t shown = 1;            // rows of each table
  SettingsSearch settings = {};  // of a machine
  std::vector<SearchedWay> ways = {};  // of several devices
  std::string why = {};        // where nothing fits

  bool fits() const { return !settings.runs.empty() || !ways.empty(); }
  std::string text() const;
  std::string json() const;
};

}  // namespace pagoda
