#include "plan/two_kinds_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "plan/asym_ea.h"
#include "plan/two_kinds.h"

namespace pagoda {
namespace {

constexpr double kTera = 1e12;

class TwoKindsSearch {
 public:
  TwoKindsSearch(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                 const TwoKinds& kinds, const StepDemand& demand)
      : model_(model),
        kinds_(kinds),
        demand_(demand),
        memory_(cost, kinds, demand),
        step_(unequal_step(model, cluster, kinds, demand)) {
    const double peak =
        kinds.newer->device.peak_tflops * kinds.newer_devices * kTera +
        kinds.older->device.peak_tflops * kinds.older_devices * kTera;
    flops_per_peak_ = model_flops(cost, demand.sequence_len,
                                  static_cast<double>(demand.sequences)) / peak;
  }

  std::vector<SearchedWay> run() {
    std::vector<StateChoice> states = state_choices();
    std::erase_if(states, [](const StateChoice& s) { return s.on_host; });  // not timed here
    // The shortest first: what it has room for is often within the others' bounds.
    std::sort(states.begin(), states.end(), [](const StateChoice& a, const StateChoice& b) {
      return a.state_bytes < b.state_bytes;
    });
    for (const StateChoice& state : states) {
      zebras(state);
      whole(state);
      pipelines(state);
    }
    return std::move(ways_);
  }

 private:
  void add(SearchedWay way, const StateChoice& state, double step_s, double bytes);
  void zebras(const StateChoice& state);
  void zebra(const StateChoice& state, int32_t microbatches);
  std::optional<AsymPlan> asym_plan(const ZebraGroup& group, const AsymBounds& bounds);
  void whole(const StateChoice& state);
  void pipelines(const StateChoice& state);

  const ModelShape& model_;
  const TwoKinds& kinds_;
  const StepDemand& demand_;
  const TwoKindsMemory memory_;
  const UnequalStep step_;
  double flops_per_peak_ = 0;
  std::vector<SearchedWay> ways_;
  std::map<int32_t, AsymPlan> found_;  // the newest, by microbatches
};

void TwoKindsSearch::add(SearchedWay way, const StateChoice& state, double step_s, double bytes) {
  way.state = state;
  way.step_s = step_s;
  way.mfu = flops_per_peak_ / step_s;
  way.device_bytes = static_cast<int64_t>(bytes);
  ways_.push_back(std::move(way));
}

// One that was found with more room is taken again where it is within these bounds too.
std::optional<AsymPlan> TwoKindsSearch::asym_plan(const ZebraGroup& group,
                                                  const AsymBounds& bounds) {
  if (const auto at = found_.find(group.microbatches); at != found_.end()) {
    int64_t given = 0;
    for (const int32_t o : at->second.offloaded) given += o;
    given *= group.expert_devices;
    if (given >= bounds.least &&
        given <= bounds.most_per_attention_device * group.attention_devices) {
      return at->second;
    }
  }
  const auto plan = plan_asym_ea(group, bounds);
  if (!plan.ok()) return std::nullopt;
  found_[group.microbatches] = plan.value();
  return plan.value();
}

void TwoKindsSearch::zebra(const StateChoice& state, int32_t microbatches) {
  const auto experts = static_cast<int32_t>(model_.num_experts);
  const auto group = zebra_group(step_, microbatches, experts);
  if (!group.ok()) return;
  const auto newer_bytes = static_cast<double>(kinds_.newer->auto_device_bytes());
  const auto older_bytes = static_cast<double>(kinds_.older->auto_device_bytes());
  const double attention_bytes =
      memory_.attention_room(state, microbatches) + memory_.attention_inputs();
  const double kept = memory_.expert_room(microbatches) + memory_.expert_inputs();
  const double each = memory_.expert_bytes(state);
  const double all = static_cast<double>(model_.num_layers()) * experts;
  if (attention_bytes > newer_bytes || kept > older_bytes) return;
  AsymBounds bounds;  // of experts of all layers
  bounds.most_per_attention_device =
      static_cast<int64_t>((newer_bytes - attention_bytes) / each);
  const double held = kinds_.older_devices * std::floor((older_bytes - kept) / each);
  bounds.least = static_cast<int64_t>(std::max(0.0, all - held));
  const std::optional<AsymPlan> plan = asym_plan(group.value(), bounds);
  if (!plan) return;
  SearchedWay way;
  way.kind = WayKind::kZebra;
  way.microbatches = microbatches;
  way.offloaded = plan->offloaded;
  way.state = state;
  const TwoKindsMemory::ZebraRoom room = memory_.zebra_room(way);
  add(std::move(way), state, plan->step_s,
      std::max(room.attention_bytes + memory_.attention_inputs(),
               room.expert_bytes + memory_.expert_inputs()));
}

void TwoKindsSearch::zebras(const StateChoice& state) {
  for (int32_t m = 1; m <= kMostZebraMicrobatches; m *= 2) {
    if (demand_.sequences % (int64_t{m} * kinds_.newer_devices) == 0) zebra(state, m);
  }
}

// Everything on every device; and attention here, experts there.
void TwoKindsSearch::whole(const StateChoice& state) {
  const int32_t devices = kinds_.newer_devices + kinds_.older_devices;
  const double least = static_cast<double>(
      std::min(kinds_.newer->auto_device_bytes(), kinds_.older->auto_device_bytes()));
  const double all = memory_.experts_bytes(state), dense = memory_.dense_bytes(state);
  const double own = memory_.tokens() / devices;
  const double bytes =
      dense + all / devices + memory_.inputs_bytes(own) + memory_.layer_bytes(own);
  SearchedWay way;
  way.kind = WayKind::kExpertParallel;
  const auto together = best_expert_parallel(step_, kMostParts);
  if (together.ok() && bytes <= least && model_.num_experts % devices == 0 &&
      demand_.sequences % devices == 0) {
    add(way, state, together.value().step_s, bytes);
  }
  const double attended = memory_.tokens() / kinds_.newer_devices;
  const double here =
      dense + memory_.attention_inputs() + memory_.layer_bytes(attended);
  const double there = all / kinds_.older_devices + memory_.expert_inputs();
  const auto apart = best_disaggregated(step_, kMostParts);
  way.kind = WayKind::kDisaggregated;
  if (apart.ok() && model_.num_experts % kinds_.older_devices == 0 &&
      demand_.sequences % kinds_.newer_devices == 0 &&
      here <= static_cast<double>(kinds_.newer->auto_device_bytes()) &&
      there <= static_cast<double>(kinds_.older->auto_device_bytes())) {
    add(way, state, apart.value().step_s, std::max(here, there));
  }
}

void TwoKindsSearch::pipelines(const StateChoice& state) {
  for (int32_t m = 1; m <= kMostZebraMicrobatches; m *= 2) {
    if (demand_.sequences % m != 0) continue;
    const UnequalStep step = memory_.bounded(step_, state, m);
    if (step.newer.most_layers == 0 || step.older.most_layers == 0) continue;
    const auto best = pipeline_step(step, m);
    if (!best.ok()) continue;
    const auto& layers = best.value().stage_layers;
    const TwoKindsMemory::StageBytes bytes = memory_.stage_bytes(state, m);
    SearchedWay way;
    way.kind = WayKind::kPipeline;
    way.microbatches = m;
    add(std::move(way), state, best.value().step_s,
        bytes.fixed + *std::max_element(layers.begin(), layers.end()) * bytes.layer);
  }
}

}  // namespace

Result<std::vector<SearchedWay>> search_two_kinds(const ModelShape& model,
                                                  const ClusterSheet& cluster,
                                                  const StepDemand& demand) {
  ASSIGN_OR_RETURN(const TwoKinds kinds, two_kinds(cluster));
  ASSIGN_OR_RETURN(const ModelCost cost, two_kinds_cost(model));
  std::vector<SearchedWay> ways = TwoKindsSearch(model, cost, cluster, kinds, demand).run();
  if (!ways.empty()) return ways;
  return Status(Exit::kDoesNotFit,
                strf("no way fits %d newer devices of %s and %d older ones of %s",
                     kinds.newer_devices,
                     format_bytes(kinds.newer->auto_device_bytes()).c_str(), kinds.older_devices,
                     format_bytes(kinds.older->auto_device_bytes()).c_str()));
}

}  // namespace pagoda
