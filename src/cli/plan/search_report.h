// The report of `pagoda plan --search` and `--cluster`: settings of a run on one machine, or its
// layouts on several devices, best first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "preview/cluster_changes.h"
#include "preview/equal_copies.h"
#include "preview/layout_search.h"
#include "preview/layout_ways.h"
#include "preview/routed_forecast.h"
#include "preview/run_forecast.h"
#include "preview/settings_search.h"
#include "preview/sharing_choice.h"

namespace pagoda {

struct SearchReport {
  const ModelSizes& model;
  const char* of = "cluster";  // or "machine"
  std::string where;           // its name
  int64_t tokens = 0;          // of a step
  size_t shown = 1;            // rows of each table
  SettingsSearch settings = {};  // for a machine
  std::vector<ClusterChange> helps = {}, fit_with = {};
  int64_t total_tokens = 0;    // --tokens; 0: not given
  std::string why = {};        // the reason if nothing fits, of a cluster no layout
  // For a cluster: the run that a process on each node makes, or why there is none.
  std::optional<RanksForecast> ranks = {};
  bool few_layers = false;  // a step of few layers was simulated in place of all
  std::string no_ranks = {};
  std::vector<SharingChoice> sharing = {};    // the same run's
  LayoutSearch layouts = {};                  // of the same run
  std::vector<RunConfig> own = {};            // [rank] its settings, as the run file has them
  std::vector<LayoutWay> ways = {};           // layout_ways() of those
  bool best_layout = false;                   // the first layout is what is planned
  // What a cluster is planned as whose devices are more than a run has; layouts are of one copy.
  std::optional<EqualCopies> copies = {};
  std::vector<std::string> hostfile = {};     // its lines; empty: for a machine
  std::optional<RoutedForecast> routed = {};  // the same run's: --routing

  // REQUIRES: best_layout.
  double best_tokens_per_s() const {
    return copies ? copies->tokens_per_s : layouts.runs.front().forecast.tokens_per_s();
  }
  bool fits() const { return !settings.runs.empty() || ranks || !layouts.runs.empty(); }
  std::string text() const;
  std::string json() const;
};

}  // namespace pagoda
