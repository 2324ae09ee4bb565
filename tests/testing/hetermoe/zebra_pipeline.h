// Zebra in the stages of a pipeline (HeterMoE section 4.1: "ZP can be used in conjunction with PP,
// where we have ZP to split experts in each PP stage"). A stage is a zebra group with devices and
// layers of its own. The tokens of a step go through the pipeline in chunks, in the order of GPipe
// or 1F1B (plan/step/pipeline_actions.h), and through a stage in microbatches, in the order of
// Theorem 1; the last stage turns from the forward of a chunk to its backward with lags if one
// follows the other. Each microbatch goes on to the next stage as soon as it has passed the stage's
// layers. What a run has is timed by plan/zebra/zebra_search.h; this is for the settings of the
// paper's figures.
//
// Stages may differ, also in their devices. Copies of the pipeline (data parallelism) appear, as in
// ZebraTimes, as times of gradient sums, which each stage begins after the last chunk's backward of
// a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/step/stages.h"
#include "tests/testing/hetermoe/zebra.h"

namespace pagoda {

struct ZebraPipeline {
  // All stages have the same number of microbatches, those of a chunk, and a backward. Only the
  // last stage's head counts.
  std::vector<ZebraGroup> stages;
  int32_t chunks = 1;
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;  // or kGpipe
  // Seconds for a microbatch's rows from a stage to the next, and for their gradients back.
  double boundary_s = 0;
};

// Ok, or one line that names the first invalid value.
Status check_zebra_pipeline(const ZebraPipeline& pipeline);

// Streams of stage s begin at kPaperStageStreams * s. A task's chunk counts the microbatches of all
// chunks.
//
// For one stage and one chunk the times are those of plan_zebra(). `lags`: the last stage's.
// O(chunks x layers x microbatches). kUsage: no stage or chunk, the errors of check_zebra, stages
// without a backward or with different numbers of microbatches, a boundary with a time that no
// network has, lags that wait for each other.
Result<TimedActions> plan_zebra_pipeline(const ZebraPipeline& pipeline, const Lags& lags);

struct ZebraPipelineStep {
  Lags lags;
  TimedActions plan;
  StreamTimes times;
};

// The plan of the least time among the lags that best_zebra() tries; the first among equals.
Result<ZebraPipelineStep> best_zebra_pipeline(const ZebraPipeline& pipeline);

}  // namespace pagoda
