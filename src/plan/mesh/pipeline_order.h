// Pipeline schedules as data: the work of each stage in its order, and its times. GPipe runs all
// forwards of a step before the first backward; 1F1B (PipeDream-Flush, Narayanan et al. 2021) lets
// one forward and one backward follow each other as soon as a stage has its first backward, so that
// stage i keeps the activations of at most PP - i microbatches (Piper, sections II-C and III-A).
// `pagoda plan --cluster` times meshes by it; the tasks of a run's own pipeline come from
// plan/step/pipeline_actions.h. Pure.
//
// A forward waits for the forward of the stage before, a backward for the backward of the stage
// after; a stage does one thing at a time. If a forward takes tf and a backward tb on every stage
// and sending takes no time, both schedules end after (M + PP - 1) (tf + tb): they differ in memory
// alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/step/task.h"

namespace pagoda {

enum class PipelineSchedule : uint8_t { kGpipe, kOneForwardOneBackward };

struct PipelineWork {
  Phase phase = Phase::kForward;  // or kBackward
  int64_t microbatch = 0;
};

// The 2 M pieces of one stage in their order. kUsage: counts that are not positive, no such stage.
// O(microbatches).
Result<std::vector<PipelineWork>> stage_order(PipelineSchedule schedule, int64_t stages,
                                              int64_t stage, int64_t microbatches);

// The most microbatches whose forward a stage has done and whose backward it has not: M in GPipe,
// min(PP - stage, M) in 1F1B. REQUIRES: 0 <= stage < stages, microbatches > 0.
int64_t most_in_flight(PipelineSchedule schedule, int64_t stages, int64_t stage,
                       int64_t microbatches);

// The time of a stage for one microbatch, with what the stage sends on after it.
struct StageSeconds {
  double forward_s = 0;
  double backward_s = 0;
};

struct PipelinePiece {
  PipelineWork work;
  double start_s = 0, end_s = 0;
};

struct PipelineRun {
  std::vector<std::vector<PipelinePiece>> stages;  // [stage] in its order
  double end_s(size_t stage) const { return stages[stage].back().end_s; }
};

// Simulates the schedule: a piece begins when the stage has done the piece before it, and when the
// piece that it waits for has ended. In any schedule a stage ends no sooner than one microbatch's
// forwards of the stages before it, its own work and the backwards of those stages take one after
// the other; and no end comes earlier when a piece takes longer. kUsage: no stage, no microbatch,
// times that are negative or not numbers. O(PP M).
Result<PipelineRun> run_pipeline(PipelineSchedule schedule, std::span<const StageSeconds> stages,
                                 int64_t microbatches);

}  // namespace pagoda
