#include "plan/mesh/pipeline_order.h"

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

namespace {

class Pipeline {
 public:
  Pipeline(std::span<const StageSeconds> stages, int64_t microbatches)
      : seconds_(stages),
        ends_(2, std::vector<double>(stages.size() * static_cast<size_t>(microbatches), kNotYet)),
        microbatches_(static_cast<size_t>(microbatches)) {}

  // Each stage goes as far as what it waits for lets it; then its neighbours may be able to.
  PipelineRun run(const std::vector<std::vector<PipelineWork>>& orders) {
    PipelineRun run;
    run.stages.resize(orders.size());
    std::vector<size_t> woken;
    for (size_t s = orders.size(); s > 0; --s) woken.push_back(s - 1);
    while (!woken.empty()) {
      const size_t stage = woken.back();
      woken.pop_back();
      if (!advance(stage, orders[stage], run.stages[stage])) continue;
      if (stage > 0) woken.push_back(stage - 1);
      if (stage + 1 < orders.size()) woken.push_back(stage + 1);
    }
    return run;
  }

 private:
  static constexpr double kNotYet = -1;

  double& end(Phase phase, size_t stage, int64_t microbatch) {
    const size_t pass = phase == Phase::kForward ? 0 : 1;
    return ends_[pass][stage * microbatches_ + static_cast<size_t>(microbatch)];
  }
  double ready_s(const PipelineWork& work, size_t stage) {
    if (work.phase == Phase::kForward) {
      return stage == 0 ? 0 : end(Phase::kForward, stage - 1, work.microbatch);
    }
    const bool last = stage + 1 == seconds_.size();
    return last ? end(Phase::kForward, stage, work.microbatch)
                : end(Phase::kBackward, stage + 1, work.microbatch);
  }
  // Whether anything was done.
  bool advance(size_t stage, const std::vector<PipelineWork>& order,
               std::vector<PipelinePiece>& done) {
    const size_t before = done.size();
    done.reserve(order.size());
    while (done.size() < order.size()) {
      const PipelineWork& work = order[done.size()];
      const double ready = ready_s(work, stage);
      if (ready == kNotYet) break;
      const double start_s = std::max(ready, done.empty() ? 0 : done.back().end_s);
      const bool forward = work.phase == Phase::kForward;
      const double end_s =
          start_s + (forward ? seconds_[stage].forward_s : seconds_[stage].backward_s);
      end(work.phase, stage, work.microbatch) = end_s;
      done.push_back({work, start_s, end_s});
    }
    return done.size() > before;
  }

  std::span<const StageSeconds> seconds_;
  std::vector<std::vector<double>> ends_;  // [forward, backward][stage x microbatch]
  size_t microbatches_;
};

}  // namespace

Result<PipelineRun> run_pipeline(PipelineSchedule schedule, std::span<const StageSeconds> stages,
                                 int64_t microbatches) {
  const auto count = static_cast<int64_t>(stages.size());
  RETURN_IF_ERROR(check_pipeline(count, microbatches));
  std::vector<std::vector<PipelineWork>> orders;
  for (int64_t s = 0; s < count; ++s) {
    const StageSeconds& seconds = stages[static_cast<size_t>(s)];
    RETURN_IF_ERROR(check_amount("the time of a forward", seconds.forward_s));
    RETURN_IF_ERROR(check_amount("the time of a backward", seconds.backward_s));
    ASSIGN_OR_RETURN(orders.emplace_back(), stage_order(schedule, count, s, microbatches));
  }
  return Pipeline(stages, microbatches).run(orders);
}

}  // namespace pagoda
