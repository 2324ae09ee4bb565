// Searches the layouts of a run that has a process on each node of a cluster: parallel.layout, with
// 2 to 16 train.chunks for zebra, in which the planner chooses what else is open
// (preview/zebra_choice.h), and for pipelines of 2, 4, 8 and 16 stages, and as many as the run has,
// in the order that it names, and zebra in these stages; where the run leaves shards open and a
// stage has more devices, without zebra also with as many shards as devices; zebra, where unequal
// nodes have several GPUs, also with shares as a run would measure them. The fastest of each
// number of stages, with zebra and without, is tried with parallel.copies: one on each node of a
// stage, and 2, 4, 8 and 16, which may be of unequal size, as far as all devices have room for so
// many copies of the weights. Of the fastest with zebra and the fastest without, if both are near
// each other, the other orders are tried, on unequal nodes shares as a run would measure them and
// other parallel.stage_layers, larger microbatches, and, where the run leaves it open, each
// parallel.exchange (rounds of up to 16 devices). All are forecast with the tasks that
// `train` runs (preview/run_forecast.h), so models with dense layers and nodes of any kinds are no
// special case. Fewer layouts are tried where devices are many, of train.chunks the fewest and then
// more, of copies one on each node and then more, and of zebra on equal nodes those whose experts
// are all away from attention; and steps of a few layers are simulated (preview/few_layers.h),
// which for zebra in stages is breadth-first alone, with the fewest chunks. parallel changes no
// bit; train does. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "preview/cluster_changes.h"
#include "preview/run_forecast.h"

namespace pagoda {

struct SearchedLayout {
  std::vector<RunConfig> configs;  // [rank] with every number of the layout in it
  bool as_it_is = false;           // the run has this layout, what it leaves open as planned
  RanksForecast forecast;
  bool few_layers = false;  // forecast from runs of a few layers

  std::string text() const;  // its settings in a line

  // What the run file of a run with the settings `own` gets in [train] and [parallel] to have this
  // layout, "parallel.layout", "\"zebra\"": what the layout says, and what it has not as the run.
  std::vector<std::pair<std::string, std::string>> settings(const RunConfig& own) const;
  // The same as lines of its tables, in place of those of the same keys; empty: the run file makes
  // this run as it is. own: [rank].
  std::string section(std::span<const RunConfig> own) const;
};

// Whether what runs say of devices, sums and layout is the same; what one leaves open ("auto") is
// not what the other says, but for the layout and its stages.
bool same_layout(const RunConfig& a, const RunConfig& b);

struct LayoutSearch {
  int64_t tried = 0;                 // layouts that make valid runs
  std::vector<SearchedLayout> runs;  // those that fit, the fastest first; among equals as tried
  int64_t too_large = 0;  // left out, since their steps have too many tasks to simulate them soon
};

// A step of the layout that `configs` say, by a few layers where all have many tasks. The errors of
// forecast_ranks. REQUIRES: as for planned_ranks.
Result<SearchedLayout> forecast_layout(const ModelSizes& model, std::vector<RunConfig> configs,
                                       const ClusterSheet& cluster, const CoarseLimits& limits);

// configs: [rank] its settings, whose train.chunks are tried, too. REQUIRES: as for planned_ranks.
LayoutSearch search_layouts(const ModelSizes& model, std::span<const RunConfig> configs,
                            const ClusterSheet& cluster, const CoarseLimits& limits);

// The fastest run with attention and experts on all devices, in its own chunks, one stage and one
// copy: with as many shards as devices, shares as it would measure them, larger microbatches and
// each parallel.exchange where search_layouts() tries these. None: none fits. REQUIRES: as for
// search_layouts().
std::optional<SearchedLayout> search_experts(const ModelSizes& model,
                                             std::span<const RunConfig> configs,
                                             const ClusterSheet& cluster,
                                             const CoarseLimits& limits);

// Plans the layout alone on other clusters and with other tokens, as rank 0's settings have it.
// `model` must outlive it.
ClusterPlanner layout_planner(const ModelSizes& model, const SearchedLayout& layout,
                              const CoarseLimits& limits);

}  // namespace pagoda
