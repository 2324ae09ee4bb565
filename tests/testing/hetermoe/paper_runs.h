// The runs of HeterMoE's evaluation (section 6) as `pagoda plan` forecasts them: the tasks that
// `train` executes, on the paper's machines by their sheets in configs/, with these machines'
// memory. The paper does not give the width of its experts; Mixtral's, 3.5 times the hidden size,
// makes models of the sizes that it names.
//
// Layers are computed again in the backward, and a step has as many tokens as memory allows for all
// baselines (both section 6.1): each of these and zebra has weights, states and activations on its
// devices then, and nothing moves between these and their hosts. A pipeline, which section 6.3
// compares with apart, is none of these baselines. Each way takes as many whole sequences of that
// as its devices share evenly, so it is rates that compare.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "preview/model_sizes.h"
#include "preview/run_forecast.h"

namespace pagoda {

struct PaperModel {
  const char* name;
  int layers, experts, hidden, ffn;
};
inline constexpr PaperModel kMixtralD1 = {"Mixtral-D1", 8, 24, 1024, 3584};
inline constexpr PaperModel kMixtralD2 = {"Mixtral-D2", 6, 18, 1024, 3584};
inline constexpr PaperModel kMixtralD3 = {"Mixtral-D3", 8, 40, 1024, 3584};
inline constexpr PaperModel kMixtralW1 = {"Mixtral-W1", 4, 12, 2048, 7168};
inline constexpr PaperModel kMixtralW2 = {"Mixtral-W2", 4, 24, 2048, 7168};
// The same with so many experts of a layer.
PaperModel with_experts(PaperModel model, int experts);

struct PaperSetup {
  ModelSizes model;
  ClusterSheet cluster;  // the faster devices first
  int64_t faster = 0;    // how many of them there are, each a node's only one; 0: all are equal
  int64_t tokens = 0;    // of a step, at most

  int64_t devices() const { return cluster.devices(); }
  int64_t slower() const { return devices() - faster; }
};

// Takes so many devices of a setup's two kinds, which its first and its last node are, and as many
// tokens as memory allows with sequences of kLongest.
PaperSetup paper_setup(const PaperModel& model, const ClusterSheet& cluster, int64_t faster,
                       int64_t slower);
// The same of equal nodes, for EP alone.
PaperSetup paper_setup(const PaperModel& model, const ClusterSheet& cluster);
inline constexpr int64_t kLongest = 32 * 1024;

struct PaperStep {
  RunConfig config;  // with every number of zebra's
  RanksForecast forecast;

  double tokens_per_s() const { return forecast.tokens_per_s(); }
  bool on_devices() const { return forecast.step.state_on_device; }
};
// None: the step has no whole sequence for each device, or it does not fit.
using MaybeStep = std::optional<PaperStep>;

// EP: attention and experts in equal shares, or in those that the sheets' rates say.
MaybeStep expert_parallel_step(const PaperSetup& setup, int64_t sequence_len,
                               ShareKind shares = ShareKind::kUniform);
// EP (Ideal): each kind by itself, in tokens a second that are added up. 0: none fits.
double ideal_tokens_per_s(const PaperSetup& setup, int64_t sequence_len);
// DistEP: attention on the faster devices, experts on the others, and one waits for the other. As
// with EP, rows come to their experts again for the backward.
MaybeStep disaggregated_step(const PaperSetup& setup, int64_t sequence_len);
// Zebra, each with the best number of microbatches; lags and kept rows are the planner's.
struct ZebraSteps {
  MaybeStep planned;  // with the experts that the planner leaves to the faster devices
  MaybeStep plain;    // without Asym-EA: with none
};
ZebraSteps zebra_steps(const PaperSetup& setup, int64_t sequence_len);
// The same run as `plain`, zebra without Asym-EA, with the experts that Algorithm 1 leaves to the
// faster devices, by what devices of `plain` do. None: it leaves none, or the paper has no number
// for such devices.
MaybeStep algorithm_1_step(const PaperSetup& setup, int64_t sequence_len, const PaperStep& plain);
// Pipelines of a device of the rarer kind and its part of the others each, whose stages divide the
// experts of their layers over all pipelines, with the layers that suit them best (1F1B).
MaybeStep pipeline_step(const PaperSetup& setup, int64_t sequence_len);

// Parts of the step, on the mean: in which a device of each kind computes, and its card sends.
struct BusyShares {
  double faster = 0, slower = 0, network = 0;
};
BusyShares busy_shares(const PaperSetup& setup, const PaperStep& step);

}  // namespace pagoda
