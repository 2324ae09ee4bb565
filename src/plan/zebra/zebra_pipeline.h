// Zebra in the stages of a pipeline (HeterMoE section 4.1: "ZP can be used in conjunction with PP,
// where we have ZP to split experts in each PP stage"). A stage is a zebra group with devices and
// layers of its own. The tokens of a step go through the pipeline in chunks, in the order of GPipe
// or 1F1B (plan/mesh/pipeline_order.h), and through a stage in microbatches, in the order of
// Theorem 1; the last stage turns from the forward of a chunk to its backward with turn lags where
// one follows the other. Each microbatch goes on to the next stage as soon as it has passed the
// stage's layers. Planned only: `pagoda plan` simulates it, and no run executes it yet. Pure.
//
// Stages may be unlike each other, also in their devices. Copies of the pipeline (data parallelism)
// are as in plan/zebra/zebra.h: the times of gradient sums, which each stage begins behind the last
// chunk's backward of a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "plan/mesh/pipeline_order.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

struct ZebraPipeline {
  // Equally many microbatches, those of a chunk, and a backward in all. The head of any but the
  // last is not looked at.
  std::vector<ZebraGroup> stages;
  int32_t chunks = 1;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  // A microbatch's rows from a stage to the next, and their gradients back.
  double boundary_s = 0;

  // ZebraGroup::offloaded of all stages, the layers in one list. REQUIRES: as many as there are.
  void set_offloaded(const std::vector<int32_t>& offloaded);
};

// Ok, or the first thing that makes no sense, in one line.
Status check_zebra_pipeline(const ZebraPipeline& pipeline);

struct ZebraStageTask {
  int32_t stage = 0, chunk = 0, microbatch = 0;
  Phase phase = Phase::kForward;
  std::optional<ZebraTask> task;  // none: to the next stage, in the backward to the one before
};

struct ZebraPipelinePlan {
  std::vector<ZebraStageTask> tasks;
  std::vector<StreamTask> queue;  // [tasks]; a task waits for earlier ones only
};

// Streams of stage s: from kPipelineStreams * s on those of ZebraStream, then to the next stage and
// to the one before.
inline constexpr int kPipelineStreams = kZebraStreams + 2;

// Of one stage and one chunk the same times as plan_zebra(). `lags`: of the last stage.
// O(chunks x layers x microbatches). kUsage: no stage or chunk, what check_zebra refuses, stages
// without a backward or with other numbers of microbatches, a boundary that takes no time that a
// network takes, lags that wait for each other.
Result<ZebraPipelinePlan> plan_zebra_pipeline(const ZebraPipeline& pipeline, const Lags& lags);

struct ZebraPipelineStep {
  Lags lags;
  ZebraPipelinePlan plan;
  StreamTimes times;
};

Result<ZebraPipelineStep> time_zebra_pipeline(const ZebraPipeline& pipeline, const Lags& lags);

// The plan of the least time among the lags that best_zebra() tries; of equal ones the first.
Result<ZebraPipelineStep> best_zebra_pipeline(const ZebraPipeline& pipeline);

}  // namespace pagoda
