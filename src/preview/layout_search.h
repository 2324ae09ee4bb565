// Searches the layouts of a run that has a process on each node of a cluster: parallel.layout, with
// 2 to 16 train.chunks for zebra, in which the planner chooses what else is open
// (preview/zebra_choice.h), and for pipelines of 2, 4 and 8 stages, and as many as the run has, in
// the order that it names. Of the fastest, each parallel.exchange is tried where the run leaves it
// open. All are forecast with the tasks that `train` runs (preview/run_forecast.h), so models with
// dense layers and nodes of any kinds are no special case. The layout and the exchange change no
// bit; train.chunks does. Pure.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "preview/run_forecast.h"

namespace pagoda {

struct SearchedLayout {
  std::vector<RunConfig> configs;  // [rank] with every number of the layout in it
  bool as_it_is = false;           // the run has this layout already
  RanksForecast forecast;

  // What a run file of this layout has in [train] and [parallel]: "parallel.layout", "\"zebra\"".
  std::vector<std::pair<std::string, std::string>> settings() const;
  // The same as lines of a run file.
  std::string section() const;
};

struct LayoutSearch {
  int64_t tried = 0;                 // layouts that make valid runs
  std::vector<SearchedLayout> runs;  // those that fit, the fastest first; among equals as tried
  int64_t too_large = 0;  // left out, since their steps have too many tasks to simulate them soon
};

// configs: [rank] its settings, whose train.chunks are tried, too. REQUIRES: as for planned_ranks.
LayoutSearch search_layouts(const ModelSizes& model, std::span<const RunConfig> configs,
                            const ClusterSheet& cluster, const CoarseLimits& limits);

}  // namespace pagoda
