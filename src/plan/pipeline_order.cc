#include "plan/pipeline_order.h"

#include <algorithm>

#include "plan/refusals.h"

namespace pagoda {
namespace {

Status check_pipeline(int64_t stages, int64_t microbatches) {
  RETURN_IF_ERROR(check_integer("the number of stages", stages));
  return check_integer("the number of microbatches", microbatches);
}

}  // namespace

int64_t most_in_flight(PipelineSchedule schedule, int64_t stages, int64_t stage,
                       int64_t microbatches) {
  CHECK(stage >= 0 && stage < stages && microbatches > 0);
  if (schedule == PipelineSchedule::kGpipe) return microbatches;
  return std::min(stages - stage, microbatches);
}

Result<std::vector<PipelineWork>> stage_order(PipelineSchedule schedule, int64_t stages,
                                              int64_t stage, int64_t microbatches) {
  RETURN_IF_ERROR(check_pipeline(stages, microbatches));
  RETURN_IF_ERROR(check_integer("the stage", stage, 0, stages - 1));
  const int64_t in_flight = most_in_flight(schedule, stages, stage, microbatches);
  std::vector<PipelineWork> order;
  order.reserve(static_cast<size_t>(2 * microbatches));
  for (int64_t m = 0; m < in_flight; ++m) order.push_back({Phase::kForward, m});
  for (int64_t m = 0; m < microbatches; ++m) {
    order.push_back({Phase::kBackward, m});
    if (m + in_flight < microbatches) order.push_back({Phase::kForward, m + in_flight});
  }
  return order;
}

Result<double> pipeline_makespan(int64_t stages, int64_t microbatches, double forward,
                                 double backward) {
  RETURN_IF_ERROR(check_pipeline(stages, microbatches));
  RETURN_IF_ERROR(check_amount("the time of a forward", forward));
  RETURN_IF_ERROR(check_amount("the time of a backward", backward));
  return static_cast<double>(microbatches + stages - 1) * (forward + backward);
}

}  // namespace pagoda
