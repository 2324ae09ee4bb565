#include "plan/search/zebra_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace pagoda {
namespace {

// A layout, with states that leave the same bounds.
struct Candidate {
  ZebraLayout layout;
  std::vector<AsymBounds> bounds;
  std::vector<StateChoice> states;
  double least_s = 0;
  // What was found: times without updates.
  std::vector<int32_t> offloaded;
  Lags lags;
  double step_s = std::numeric_limits<double>::infinity();
};

bool same_bounds(const std::vector<AsymBounds>& a, const std::vector<AsymBounds>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const AsymBounds& x, const AsymBounds& y) {
                      return x.least == y.least &&
                             x.most_per_attention_device == y.most_per_attention_device;
                    });
}

// The most tasks that a plan of it may have: attention, experts on both kinds of devices, what
// begins their backward, transfers in both directions.
int64_t tasks_of(const ZebraPipeline& pipeline) {
  constexpr int64_t kKinds = 11;
  int64_t layers = 0;
  for (const ZebraGroup& stage : pipeline.stages) layers += stage.layers;
  return kKinds * layers * pipeline.chunks * pipeline.stages.front().microbatches;
}

class ZebraSearch {
 public:
  ZebraSearch(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
              const NodePair& kinds, const ClusterDemand& demand, double peak_flops_s,
              std::vector<Strategy>& strategies)
      : model_(model),
        cluster_(cluster),
        kinds_(kinds),
        demand_(demand),
        memory_(cost, kinds, demand),
        peak_flops_s_(peak_flops_s),
        strategies_(strategies) {
    for (const Strategy& strategy : strategies) best_.push_back(strategy.step_s);
    std::sort(best_.begin(), best_.end());
  }

  void run() {
    for (const ZebraLayout& layout : zebra_layouts(model_, kinds_, demand_)) add(layout);
    by(&Candidate::least_s);
    for (Candidate& c : candidates_) {
      if (any_timed_ && c.least_s > worst_s()) break;  // so are all after it
      time_some(c);
      any_timed_ = any_timed_ || !c.offloaded.empty();
    }
    by(&Candidate::step_s);
    for (Candidate& c : candidates_) improve(c);
    by(&Candidate::step_s);
    for (Candidate& c : candidates_) {
      if (c.offloaded.empty() || c.least_s > worst_s()) continue;
      for (const auto& start : even_starts(pipeline_of(c), c.bounds)) improve_from(c, start);
    }
    for (const bool again : {false, true}) {
      for (const Candidate& c : candidates_) {
        if (c.layout.send_again == again) add_strategies(c);
      }
    }
  }

 private:
  void add(ZebraLayout layout);
  bool add(const ZebraLayout& layout, const StateChoice& state, size_t first);
  void time_some(Candidate& c);
  void improve(Candidate& c);
  void improve_from(Candidate& c, const std::vector<int32_t>& start);
  std::optional<Strategy> strategy_of(const Candidate& c, const StateChoice& state) const;
  void add_strategies(const Candidate& c);
  void try_plan(Candidate& c, const ZebraPipeline& pipeline, const std::vector<int32_t>& offloaded,
                const Lags& lags);
  ZebraPipeline pipeline_of(const Candidate& c) const {
    return zebra_pipeline(model_, cluster_, kinds_, demand_, c.layout).take();
  }
  void by(double Candidate::*seconds) {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [&](const Candidate& a, const Candidate& b) {
                       return a.*seconds < b.*seconds;
                     });
  }
  double worst_s() const {  // the slowest of the best
    return best_.size() < kBestStrategies ? std::numeric_limits<double>::infinity()
                                          : best_[kBestStrategies - 1];
  }
  void found(double step_s) {
    best_.insert(std::upper_bound(best_.begin(), best_.end(), step_s), step_s);
  }

  const ModelShape& model_;
  const ClusterSheet& cluster_;
  const NodePair& kinds_;
  const ClusterDemand& demand_;
  const ZebraMemory memory_;
  const double peak_flops_s_;
  std::vector<Strategy>& strategies_;
  std::vector<double> best_;  // seconds of strategies found, ascending
  bool any_timed_ = false;    // one zebra is, even if it is not among the best
  std::vector<Candidate> candidates_;
  int64_t tasks_left_ = kMostZebraTasks;
};

// If inputs can be kept and no expert must move, sending them again is no faster.
void ZebraSearch::add(ZebraLayout layout) {
  const size_t first = candidates_.size();
  for (const StateChoice& state : state_choices()) {
    layout.send_again = false;
    if (add(layout, state, first)) continue;
    layout.send_again = true;
    add(layout, state, first);
  }
}

// Whether it fits with any moved experts. It may already be among the candidates from `first` on.
bool ZebraSearch::add(const ZebraLayout& layout, const StateChoice& state, size_t first) {
  auto bounds = memory_.bounds(layout, state);
  if (!bounds.ok()) return false;
  const bool forced = std::any_of(bounds->begin(), bounds->end(),
                                  [](const AsymBounds& b) { return b.least > 0; });
  for (size_t c = first; c < candidates_.size(); ++c) {
    Candidate& same = candidates_[c];
    if (same.layout.send_again != layout.send_again) continue;
    if (!same_bounds(same.bounds, bounds.value())) continue;
    same.states.push_back(state);
    return !forced;
  }
  Candidate& c = candidates_.emplace_back();
  c.layout = layout;
  c.bounds = bounds.take();
  c.states = {state};
  c.least_s = zebra_least_s(pipeline_of(c), c.bounds);
  return !forced;
}

void ZebraSearch::try_plan(Candidate& c, const ZebraPipeline& pipeline,
                           const std::vector<int32_t>& offloaded, const Lags& lags) {
  auto step = time_zebra_pipeline(pipeline, lags);
  if (!step.ok()) return;  // these lags wait for each other
  tasks_left_ -= static_cast<int64_t>(step->plan.tasks.size());
  if (step->times.makespan_s >= c.step_s) return;
  c.step_s = step->times.makespan_s;
  c.offloaded = offloaded;
  c.lags = lags;
}

// Times the layout with as few moved experts as memory allows, and with those of Algorithm 1.
void ZebraSearch::time_some(Candidate& c) {
  ZebraPipeline pipeline = pipeline_of(c);
  std::vector<std::vector<int32_t>> starts;
  if (const auto gathered = gather_and_squeeze(pipeline, c.bounds); gathered.ok()) {
    starts.push_back(gathered.value());
  }
  const bool forced = std::any_of(c.bounds.begin(), c.bounds.end(),
                                  [](const AsymBounds& b) { return b.least > 0; });
  if (!forced) starts.emplace_back(static_cast<size_t>(model_.num_layers()), 0);
  const int32_t all = c.layout.microbatches - 1;
  for (const std::vector<int32_t>& offloaded : starts) {
    pipeline.set_offloaded(offloaded);
    try_plan(c, pipeline, offloaded, {});
    if (all > 0) try_plan(c, pipeline, offloaded, {all, all, all});
  }
  for (const StateChoice& state : c.states) {
    if (const auto strategy = strategy_of(c, state)) found(strategy->step_s);
  }
}

void ZebraSearch::improve(Candidate& c) {
  if (c.offloaded.empty() || c.least_s > worst_s()) return;
  ZebraPipeline pipeline = pipeline_of(c);
  pipeline.set_offloaded(c.offloaded);
  const ZebraGroup& last = pipeline.stages.back();
  for (const Lags& lags : lag_choices(last.microbatches, last.last_layer_experts)) {
    if (tasks_left_ > 0) try_plan(c, pipeline, c.offloaded, lags);
  }
  const auto gathered = gather_and_squeeze(pipeline, c.bounds);
  if (!gathered.ok()) return;  // experts cannot move between so many devices
  improve_from(c, gathered.value());
}

void ZebraSearch::improve_from(Candidate& c, const std::vector<int32_t>& start) {
  const ZebraPipeline pipeline = pipeline_of(c);
  const int64_t tasks = tasks_of(pipeline);
  const int64_t most_plans = tasks_left_ / tasks;
  if (most_plans < 1) return;
  auto plan = plan_asym_ea(pipeline, c.bounds, most_plans, start);
  if (!plan.ok()) return;
  tasks_left_ -= plan->plans_timed * tasks;
  if (plan->step_s >= c.step_s) return;
  c.step_s = plan->step_s;
  c.offloaded = plan->offloaded;
  c.lags = plan->lags;
}

// nullopt if it was not timed, or if hosts cannot hold the states.
std::optional<Strategy> ZebraSearch::strategy_of(const Candidate& c,
                                                 const StateChoice& state) const {
  if (c.offloaded.empty()) return {};
  Strategy strategy;
  strategy.kind = StrategyKind::kZebra;
  strategy.state = state;
  strategy.mesh = {c.layout.stages, kinds_.slower_devices / c.layout.groups(), c.layout.copies};
  strategy.attention_devices = kinds_.faster_devices / c.layout.groups();
  strategy.chunks = c.layout.chunks;
  strategy.microbatches = c.layout.microbatches;
  strategy.send_again = c.layout.send_again;
  strategy.offloaded = c.offloaded;
  strategy.lags = c.lags;
  const ZebraMemory::Fullest fullest = memory_.fullest(c.layout, state, c.offloaded);
  const auto updates = node_pair_updates(kinds_, state, fullest.attention, fullest.experts);
  if (!updates.ok()) return {};
  strategy.step_s = c.step_s + updates.value().seconds;
  strategy.host_bytes = static_cast<int64_t>(updates.value().state_bytes);
  strategy.mfu = peak_flops_s_ / strategy.step_s;
  strategy.device_bytes = static_cast<int64_t>(fullest.bytes);
  return strategy;
}

// Sending inputs again is no strategy of its own if keeping them is as fast.
void ZebraSearch::add_strategies(const Candidate& c) {
  for (const StateChoice& state : c.states) {
    auto strategy = strategy_of(c, state);
    if (!strategy) continue;
    const bool kept =
        std::any_of(strategies_.begin(), strategies_.end(), [&](const Strategy& other) {
          ZebraLayout layout = layout_of(other);
          layout.send_again = true;
          return other.kind == StrategyKind::kZebra && !other.send_again && layout == c.layout &&
                 other.state.name == state.name && other.step_s <= strategy->step_s;
        });
    if (!kept) strategies_.push_back(std::move(*strategy));
  }
}

}  // namespace

std::vector<ZebraLayout> zebra_layouts(const ModelShape& model, const NodePair& kinds,
                                       const ClusterDemand& demand) {
  std::vector<ZebraLayout> layouts;
  const int32_t most_groups = std::gcd(kinds.faster_devices, kinds.slower_devices);
  for (int32_t stages = 1; stages <= most_groups && stages <= model.num_layers(); ++stages) {
    for (int32_t copies = 1; stages * copies <= most_groups; ++copies) {
      if (most_groups % (stages * copies) != 0) continue;
      const int32_t experts = kinds.slower_devices / (stages * copies);
      if (model.num_experts % experts != 0) continue;
      const int64_t devices = int64_t{kinds.faster_devices} / stages;  // attention, of all copies
      for (int32_t chunks = 1; chunks <= kMostZebraMicrobatches; chunks *= 2) {
        for (int32_t m = 1; chunks * m <= kMostZebraMicrobatches; m *= 2) {
          if (demand.sequences % (devices * chunks * m) != 0) continue;
          layouts.push_back({stages, copies, chunks, m, false});
        }
      }
    }
  }
  return layouts;
}

ZebraLayout layout_of(const Strategy& strategy) {
  return {static_cast<int32_t>(strategy.mesh.pipeline), static_cast<int32_t>(strategy.mesh.data),
          strategy.chunks, strategy.microbatches, strategy.send_again};
}

void search_zebras(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                   const NodePair& kinds, const ClusterDemand& demand, double peak_flops_s,
                   std::vector<Strategy>& strategies) {
  ZebraSearch(model, cost, cluster, kinds, demand, peak_flops_s, strategies).run();
}

}  // namespace pagoda
