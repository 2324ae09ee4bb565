#include "plan/search/two_kinds_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "plan/search/shared_step.h"
#include "plan/search/two_kinds.h"
#include "plan/search/zebra_search.h"

namespace pagoda {
namespace {

constexpr double kTera = 1e12;

class TwoKindsSearch {
 public:
  TwoKindsSearch(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                 const TwoKinds& kinds, const StepDemand& demand)
      : model_(model), cost_(cost), cluster_(cluster), kinds_(kinds), demand_(demand) {
    const double peak =
        kinds.newer->device.peak_tflops * kinds.newer_devices * kTera +
        kinds.older->device.peak_tflops * kinds.older_devices * kTera;
    peak_flops_s_ = model_flops(cost, demand.sequence_len,
                                static_cast<double>(demand.sequences)) / peak;
  }

  std::vector<SearchedWay> run() {
    const int32_t most_copies = std::gcd(kinds_.newer_devices, kinds_.older_devices);
    for (int32_t copies = 1; copies <= most_copies; ++copies) {
      if (most_copies % copies == 0 && demand_.sequences % copies == 0) copied(copies);
    }
    shared(ExpertSharing::kDataCentric);
    shared(ExpertSharing::kModelCentric);
    for (int32_t m = 1; m <= kMostPipelineMicrobatches; m *= 2) {
      if (demand_.sequences % (int64_t{m} * most_copies) == 0) pipelines(m);
    }
    search_zebras(model_, cost_, cluster_, kinds_, demand_, peak_flops_s_, ways_);
    return std::move(ways_);
  }

 private:
  void add(SearchedWay way, double step_s, const TwoKindsBytes& bytes);
  void copied(int32_t copies);
  void shared(ExpertSharing sharing);
  void pipelines(int32_t microbatches);

  const ModelShape& model_;
  const ModelCost& cost_;
  const ClusterSheet& cluster_;
  const TwoKinds& kinds_;
  const StepDemand& demand_;
  double peak_flops_s_ = 0;
  std::vector<SearchedWay> ways_;
};

// If devices and hosts hold it.
void TwoKindsSearch::add(SearchedWay way, double step_s, const TwoKindsBytes& bytes) {
  if (!bytes.fit(kinds_)) return;
  const auto updates =
      two_kinds_updates(kinds_, way.state, bytes.newer_parameters, bytes.older_parameters);
  if (!updates.ok()) return;
  way.step_s = step_s + updates.value().seconds;
  way.host_bytes = static_cast<int64_t>(updates.value().state_bytes);
  way.mfu = peak_flops_s_ / way.step_s;
  way.device_bytes = static_cast<int64_t>(std::max(bytes.newer, bytes.older));
  ways_.push_back(std::move(way));
}

// Everything on every device of a copy; and attention here, experts there.
void TwoKindsSearch::copied(int32_t copies) {
  const CopiedStep copy = copied_step(model_, cluster_, kinds_, demand_, copies);
  const TwoKindsMemory memory(cost_, copy.kinds, copy.demand);
  const int32_t devices = copy.kinds.newer_devices + copy.kinds.older_devices;
  const auto together = best_expert_parallel(copy.step, kMostParts);
  const auto apart = best_disaggregated(copy.step, kMostParts);
  for (const StateChoice& state : state_choices()) {
    SearchedWay way;
    way.state = state;
    way.mesh.data = copies;
    way.kind = WayKind::kExpertParallel;
    if (together.ok() && model_.num_experts % devices == 0 &&
        copy.demand.sequences % devices == 0) {
      way.parts = together.value().parts;
      add(way, together.value().step_s, memory.expert_parallel(state));
    }
    way.kind = WayKind::kDisaggregated;
    if (apart.ok() && model_.num_experts % copy.kinds.older_devices == 0 &&
        copy.demand.sequences % copy.kinds.newer_devices == 0) {
      way.parts = apart.value().parts;
      add(way, apart.value().step_s, memory.disaggregated(state));
    }
  }
}

void TwoKindsSearch::shared(ExpertSharing sharing) {
  const auto step = shared_step(model_, cluster_, kinds_, demand_, sharing);
  if (!step.ok()) return;
  for (const StateChoice& state : state_choices()) {
    SearchedWay way;
    way.kind = WayKind::kShared;
    way.sharing = sharing;
    way.state = state;
    add(std::move(way), step.value().step_s(),
        shared_bytes(model_, cost_, demand_, step.value(), state));
  }
}

void TwoKindsSearch::pipelines(int32_t microbatches) {
  const TwoKindsMemory memory(cost_, kinds_, demand_);
  const UnequalStep all = unequal_step(model_, cluster_, kinds_, demand_);
  for (const StateChoice& state : state_choices()) {
    const UnequalStep step = memory.bounded(all, state, microbatches);
    if (step.newer.most_layers == 0 || step.older.most_layers == 0) continue;
    const auto best = pipeline_step(step, microbatches);
    if (!best.ok()) continue;
    SearchedWay way;
    way.kind = WayKind::kPipeline;
    way.state = state;
    way.microbatches = microbatches;
    way.mesh.pipeline = static_cast<int64_t>(best.value().stage_layers.size());
    way.mesh.data = best.value().pipelines;
    add(std::move(way), best.value().step_s,
        memory.pipelined(state, best.value(), microbatches));
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
