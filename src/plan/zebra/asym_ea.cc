#include "plan/zebra/asym_ea.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace pagoda {
namespace {

// Products of counts and times, far below its limit.
using Wide = __int128;

constexpr int64_t kMostTime = 1'000'000'000'000'000;

struct Chunks {
  int32_t acquired = 0;  // n1, by each attention device
  int32_t given = 0;     // n2, by each expert device
  int32_t layers = 0;    // with experts
  int64_t layer_most = 0;
  int64_t least = 0, most = 0;  // over all layers
};

Result<Chunks> chunks_of(const ZebraGroup& g, const AsymBounds& bounds) {
  const int32_t m = g.attention_devices, n = g.expert_devices;
  if (m % n != 0 && n % m != 0) {
    return Status(Exit::kUsage,
                  strf("asymmetric assignment: neither of %d attention and %d expert devices "
                       "divides the other; offload nothing, or choose a multiple",
                       m, n));
  }
  if (bounds.least < 0 || bounds.most_per_attention_device < 0) {
    return Status(Exit::kUsage,
                  "asymmetric assignment: a bound is below 0 experts; give what fits");
  }
  Chunks chunks;
  chunks.acquired = std::max(1, n / m);
  chunks.given = static_cast<int32_t>(int64_t{chunks.acquired} * m / n);
  chunks.layers = g.layers - (g.last_layer_experts ? 0 : 1);
  chunks.layer_most = g.experts / n / chunks.given;
  const int64_t of_chunk = int64_t{n} * chunks.given;
  chunks.least = bounds.least / of_chunk + (bounds.least % of_chunk != 0);
  chunks.most = std::min(bounds.most_per_attention_device / chunks.acquired,
                         chunks.layer_most * chunks.layers);
  if (chunks.least <= chunks.most) return chunks;
  return Status(Exit::kDoesNotFit,
                strf("asymmetric assignment: expert devices cannot hold %lld experts, attention "
                     "devices can take %lld of them; nothing was placed; add devices or memory",
                     static_cast<long long>(bounds.least),
                     static_cast<long long>(chunks.most * of_chunk)));
}

std::vector<int32_t> experts_of(const ZebraGroup& g, const Chunks& chunks,
                                const std::vector<int64_t>& counts) {
  std::vector<int32_t> offloaded(static_cast<size_t>(g.layers), 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    offloaded[i] = static_cast<int32_t>(counts[i] * chunks.given);
  }
  return offloaded;
}

Result<std::vector<int64_t>> gather(const ZebraGroup& g, const Chunks& chunks,
                                    const AsymTimes& times) {
  for (const int64_t time : {times.attention, times.expert, times.offloaded_expert}) {
    if (time < 1 || time > kMostTime) {
      return Status(Exit::kUsage,
                    strf("asymmetric assignment: a time of %lld; measure it again, or take a unit "
                         "in which it is from 1 to 10^15",
                         static_cast<long long>(time)));
    }
  }
  // Both times n: whole numbers. Bubbles times the layers besides.
  const Wide gather_time = Wide{g.experts} * (times.expert - times.attention);
  const Wide squeeze_time =
      Wide{g.expert_devices} *
      (Wide{times.expert} * chunks.given + Wide{times.offloaded_expert} * chunks.acquired);
  const Wide in_all = std::clamp<Wide>(gather_time * chunks.layers, squeeze_time * chunks.least,
                                       squeeze_time * chunks.most);
  const Wide squeezed = squeeze_time * chunks.layers;
  std::vector<int64_t> counts;
  Wide bubble = 0;
  for (int32_t i = 0; i < chunks.layers; ++i) {
    bubble += in_all;
    counts.push_back(static_cast<int64_t>(bubble / squeezed));
    bubble %= squeezed;
  }
  return counts;
}

// The time of a list of o_l, and its lags.
struct TimedPlan {
  Lags lags;
  double step_s = 0;
};

// Times one list of o_l, of all layers.
class Timer {
 public:
  virtual ~Timer() = default;
  // The best over all lags; and the time with given ones, {} if they wait for each other.
  virtual Result<TimedPlan> best(const std::vector<int32_t>& offloaded) = 0;
  virtual std::optional<double> with(const std::vector<int32_t>& offloaded, const Lags& lags) = 0;
};

class GroupTimer : public Timer {
 public:
  explicit GroupTimer(const ZebraGroup& group) : group_(group) {}
  Result<TimedPlan> best(const std::vector<int32_t>& offloaded) override {
    group_.offloaded = offloaded;
    ASSIGN_OR_RETURN(const ZebraStep step, best_zebra(group_));
    return TimedPlan{step.lags, step.times.makespan_s};
  }
  std::optional<double> with(const std::vector<int32_t>& offloaded, const Lags& lags) override {
    group_.offloaded = offloaded;
    const Result<TimedActions> plan = plan_zebra(group_, lags);
    if (!plan.ok()) return {};
    return time_streams(plan.value().queue, kStepStreams).makespan_s;
  }

 private:
  ZebraGroup group_;
};

class PipelineTimer : public Timer {
 public:
  explicit PipelineTimer(const ZebraPipeline& pipeline) : pipeline_(pipeline) {}
  Result<TimedPlan> best(const std::vector<int32_t>& offloaded) override {
    pipeline_.set_offloaded(offloaded);
    ASSIGN_OR_RETURN(const ZebraPipelineStep step, best_zebra_pipeline(pipeline_));
    return TimedPlan{step.lags, step.times.makespan_s};
  }
  std::optional<double> with(const std::vector<int32_t>& offloaded, const Lags& lags) override {
    pipeline_.set_offloaded(offloaded);
    const auto step = time_zebra_pipeline(pipeline_, lags);
    if (!step.ok()) return {};
    return step.value().times.makespan_s;
  }

 private:
  ZebraPipeline pipeline_;
};

// Layers that share bounds.
struct StageChunks {
  Chunks chunks;
  size_t first = 0, layers = 0;  // of the list of all layers, those without experts too
};

// Looks for better o_l.
class Search {
 public:
  Search(Timer& timer, std::vector<StageChunks> stages, std::vector<int32_t> start,
         int64_t plans_of_lags, int64_t most_plans)
      : timer_(timer),
        stages_(std::move(stages)),
        plans_of_lags_(plans_of_lags),
        most_plans_(most_plans) {
    plan_.offloaded = std::move(start);
  }

  Status run();
  AsymPlan take() { return std::move(plan_); }

 private:
  // Changes by a chunk; -1: no layer.
  struct Neighbour {
    int32_t more = -1, less = -1;
  };
  Status choose_lags();
  bool allows(const StageChunks& stage, const Neighbour& change) const;
  std::optional<double> time_of(const StageChunks& stage, const Neighbour& change);
  bool step();
  void apply(const StageChunks& stage, const Neighbour& change, int32_t chunks);

  Timer& timer_;
  const std::vector<StageChunks> stages_;
  const int64_t plans_of_lags_, most_plans_;
  AsymPlan plan_;
};

Status Search::choose_lags() {
  ASSIGN_OR_RETURN(const TimedPlan best, timer_.best(plan_.offloaded));
  plan_.plans_timed += plans_of_lags_;
  plan_.lags = best.lags;
  plan_.step_s = best.step_s;
  return Status();
}

Status Search::run() {
  RETURN_IF_ERROR(choose_lags());
  plan_.gathered = plan_.offloaded;
  plan_.gathered_step_s = plan_.step_s;
  while (plan_.plans_timed < most_plans_) {
    const double before = plan_.step_s;
    while (step()) {
    }
    if (plan_.plans_timed >= most_plans_) return Status();
    RETURN_IF_ERROR(choose_lags());
    if (plan_.step_s >= before) return Status();
  }
  return Status();
}

void Search::apply(const StageChunks& stage, const Neighbour& change, int32_t chunks) {
  const int32_t experts = chunks * stage.chunks.given;
  if (change.more >= 0) plan_.offloaded[static_cast<size_t>(change.more)] += experts;
  if (change.less >= 0) plan_.offloaded[static_cast<size_t>(change.less)] -= experts;
}

// Whether the change stays within the bounds.
bool Search::allows(const StageChunks& stage, const Neighbour& change) const {
  const Chunks& chunks = stage.chunks;
  const auto count_of = [&](size_t l) { return int64_t{plan_.offloaded[l]} / chunks.given; };
  int64_t in_all = (change.more >= 0) - (change.less >= 0);
  for (size_t l = stage.first; l < stage.first + stage.layers; ++l) in_all += count_of(l);
  if (in_all < chunks.least || in_all > chunks.most) return false;
  if (change.more >= 0 && count_of(static_cast<size_t>(change.more)) == chunks.layer_most) {
    return false;
  }
  return change.less < 0 || count_of(static_cast<size_t>(change.less)) > 0;
}

// {}: outside of the bounds, or not with these lags, or enough were timed.
std::optional<double> Search::time_of(const StageChunks& stage, const Neighbour& change) {
  if (plan_.plans_timed >= most_plans_ || !allows(stage, change)) return {};
  apply(stage, change, 1);
  const std::optional<double> step_s = timer_.with(plan_.offloaded, plan_.lags);
  apply(stage, change, -1);
  plan_.plans_timed += step_s.has_value();
  return step_s;
}

// Goes to the best neighbour, if it is better.
bool Search::step() {
  constexpr int32_t kReach = 4;
  std::optional<Neighbour> best;
  const StageChunks* of = nullptr;
  const auto consider = [&](const StageChunks& stage, const Neighbour& change) {
    const std::optional<double> step_s = time_of(stage, change);
    if (!step_s || *step_s >= plan_.step_s) return;
    plan_.step_s = *step_s;
    best = change;
    of = &stage;
  };
  for (const StageChunks& stage : stages_) {
    const auto first = static_cast<int32_t>(stage.first);
    const int32_t end = first + stage.chunks.layers;
    for (int32_t i = first; i < end; ++i) {
      consider(stage, {i, -1});
      consider(stage, {-1, i});
      for (int32_t k = std::max(first, i - kReach); k < std::min(end, i + kReach + 1); ++k) {
        if (k != i) consider(stage, {i, k});
      }
    }
  }
  if (best) apply(*of, *best, 1);
  return best.has_value();
}

// Times longer than kMostTime are cut to twice that, which is refused.
AsymTimes nanoseconds_of(const ZebraTimes& times) {
  const auto nanoseconds = [](double s) {
    return static_cast<int64_t>(std::llround(std::min(s * 1e9, 2.0 * kMostTime)));
  };
  return {nanoseconds(times.attention.forward_s), nanoseconds(times.expert.forward_s),
          nanoseconds(times.offloaded_expert.forward_s)};
}

Result<std::vector<StageChunks>> stage_chunks(const ZebraPipeline& pipeline,
                                              std::span<const AsymBounds> bounds) {
  RETURN_IF_ERROR(check_zebra_pipeline(pipeline));
  if (bounds.size() != pipeline.stages.size()) {
    return Status(Exit::kUsage, strf("asymmetric assignment: bounds of %zu stages of %zu; give "
                                     "each its own",
                                     bounds.size(), pipeline.stages.size()));
  }
  std::vector<StageChunks> stages;
  size_t first = 0;
  for (size_t s = 0; s < bounds.size(); ++s) {
    const ZebraGroup& group = pipeline.stages[s];
    ASSIGN_OR_RETURN(const Chunks chunks, chunks_of(group, bounds[s]));
    stages.push_back({chunks, first, static_cast<size_t>(group.layers)});
    first += stages.back().layers;
  }
  return stages;
}

}  // namespace

Result<std::vector<int32_t>> gather_and_squeeze(const ZebraGroup& group, const AsymTimes& times,
                                                const AsymBounds& bounds) {
  RETURN_IF_ERROR(check_zebra_counts(group));
  ASSIGN_OR_RETURN(const Chunks chunks, chunks_of(group, bounds));
  ASSIGN_OR_RETURN(const std::vector<int64_t> counts, gather(group, chunks, times));
  return experts_of(group, chunks, counts);
}

Result<std::vector<int32_t>> gather_and_squeeze(const ZebraPipeline& pipeline,
                                                std::span<const AsymBounds> bounds) {
  ASSIGN_OR_RETURN(const std::vector<StageChunks> stages, stage_chunks(pipeline, bounds));
  std::vector<int32_t> offloaded;
  for (size_t s = 0; s < stages.size(); ++s) {
    const ZebraGroup& group = pipeline.stages[s];
    ASSIGN_OR_RETURN(const std::vector<int32_t> of_stage,
                     gather_and_squeeze(group, nanoseconds_of(group.times), bounds[s]));
    offloaded.insert(offloaded.end(), of_stage.begin(), of_stage.end());
  }
  return offloaded;
}

Result<AsymPlan> plan_asym_ea(const ZebraGroup& group, const AsymBounds& bounds) {
  ZebraGroup base = group;
  base.offloaded.assign(static_cast<size_t>(std::max(0, group.layers)), 0);
  RETURN_IF_ERROR(check_zebra(base));
  ASSIGN_OR_RETURN(const Chunks chunks, chunks_of(base, bounds));
  ASSIGN_OR_RETURN(std::vector<int32_t> start,
                   gather_and_squeeze(base, nanoseconds_of(base.times), bounds));
  GroupTimer timer(base);
  const StageChunks all = {chunks, 0, start.size()};
  Search search(timer, {all}, std::move(start), 0, std::numeric_limits<int64_t>::max());
  RETURN_IF_ERROR(search.run());
  return search.take();
}

Result<AsymPlan> plan_asym_ea(const ZebraPipeline& pipeline, std::span<const AsymBounds> bounds,
                              int64_t most_plans, std::vector<int32_t> start) {
  ASSIGN_OR_RETURN(std::vector<StageChunks> stages, stage_chunks(pipeline, bounds));
  PipelineTimer timer(pipeline);
  const ZebraGroup& last = pipeline.stages.back();
  const auto lags =
      static_cast<int64_t>(lag_choices(last.microbatches, last.last_layer_experts).size());
  Search search(timer, std::move(stages), std::move(start), lags, most_plans);
  RETURN_IF_ERROR(search.run());
  return search.take();
}

std::vector<std::vector<int32_t>> even_starts(const ZebraPipeline& pipeline,
                                              std::span<const AsymBounds> bounds) {
  std::vector<std::vector<int32_t>> starts;
  const auto stages = stage_chunks(pipeline, bounds);
  if (!stages.ok()) return starts;
  int64_t most = 0;
  for (const StageChunks& stage : stages.value()) most = std::max(most, stage.chunks.layer_most);
  for (int64_t count = 0; count <= most; ++count) {
    std::vector<int32_t> start;
    for (size_t s = 0; s < bounds.size(); ++s) {
      const Chunks& chunks = stages.value()[s].chunks;
      const int64_t of_layer = std::min(count, chunks.layer_most);
      if (of_layer * chunks.layers < chunks.least || of_layer * chunks.layers > chunks.most) break;
      const std::vector<int64_t> counts(static_cast<size_t>(chunks.layers), of_layer);
      const std::vector<int32_t> of_stage = experts_of(pipeline.stages[s], chunks, counts);
      start.insert(start.end(), of_stage.begin(), of_stage.end());
    }
    const StageChunks& last = stages.value().back();
    if (start.size() == last.first + last.layers) starts.push_back(std::move(start));
  }
  return starts;
}

}  // namespace pagoda
