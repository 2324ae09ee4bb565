#include "plan/search/node_pair_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/si_units.h"
#include "plan/search/node_pair.h"
#include "plan/search/shared_step.h"
#include "plan/search/zebra_search.h"

namespace pagoda {
namespace {

class NodePairSearch {
 public:
  NodePairSearch(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                 const NodePair& kinds, const ClusterDemand& demand)
      : model_(model), cost_(cost), cluster_(cluster), kinds_(kinds), demand_(demand) {
    const double peak = kinds.faster->device.peak_tflops * kinds.faster_devices * kTera +
                        kinds.slower->device.peak_tflops * kinds.slower_devices * kTera;
    peak_flops_s_ =
        model_flops(cost, demand.sequence_len, static_cast<double>(demand.sequences)) / peak;
  }

  std::vector<Strategy> run() {
    const int32_t most_copies = std::gcd(kinds_.faster_devices, kinds_.slower_devices);
    for (int32_t copies = 1; copies <= most_copies; ++copies) {
      if (most_copies % copies == 0 && demand_.sequences % copies == 0) copied(copies);
    }
    shared(ExpertSharing::kDataCentric);
    shared(ExpertSharing::kModelCentric);
    for (int32_t m = 1; m <= kMostPipelineMicrobatches; m *= 2) {
      if (demand_.sequences % (int64_t{m} * most_copies) == 0) pipelines(m);
    }
    search_zebras(model_, cost_, cluster_, kinds_, demand_, peak_flops_s_, strategies_);
    return std::move(strategies_);
  }

 private:
  void add(Strategy strategy, double step_s, const NodePairBytes& bytes);
  void copied(int32_t copies);
  void shared(ExpertSharing sharing);
  void pipelines(int32_t microbatches);

  const ModelShape& model_;
  const ModelCost& cost_;
  const ClusterSheet& cluster_;
  const NodePair& kinds_;
  const ClusterDemand& demand_;
  double peak_flops_s_ = 0;
  std::vector<Strategy> strategies_;
};

// Adds the strategy if devices and hosts hold it.
void NodePairSearch::add(Strategy strategy, double step_s, const NodePairBytes& bytes) {
  if (!bytes.fit(kinds_)) return;
  const auto updates =
      node_pair_updates(kinds_, strategy.state, bytes.faster_parameters, bytes.slower_parameters);
  if (!updates.ok()) return;
  strategy.step_s = step_s + updates.value().seconds;
  strategy.host_bytes = static_cast<int64_t>(updates.value().state_bytes);
  strategy.mfu = peak_flops_s_ / strategy.step_s;
  strategy.device_bytes = static_cast<int64_t>(std::max(bytes.faster, bytes.slower));
  strategies_.push_back(std::move(strategy));
}

// Adds strategies with everything on every device of a copy, and with attention on one kind of
// device and experts on the other.
void NodePairSearch::copied(int32_t copies) {
  const CopiedStep copy = copied_step(model_, cluster_, kinds_, demand_, copies);
  const NodePairMemory memory(cost_, copy.kinds, copy.demand);
  const int32_t devices = copy.kinds.faster_devices + copy.kinds.slower_devices;
  const auto together = best_expert_parallel(copy.step, kMostParts);
  const auto apart = best_disaggregated(copy.step, kMostParts);
  for (const StateChoice& state : state_choices()) {
    Strategy strategy;
    strategy.state = state;
    strategy.mesh.data = copies;
    strategy.kind = StrategyKind::kExpertParallel;
    if (together.ok() && model_.num_experts % devices == 0 &&
        copy.demand.sequences % devices == 0) {
      strategy.parts = together.value().parts;
      add(strategy, together.value().step_s, memory.expert_parallel(state));
    }
    strategy.kind = StrategyKind::kDisaggregated;
    if (apart.ok() && model_.num_experts % copy.kinds.slower_devices == 0 &&
        copy.demand.sequences % copy.kinds.faster_devices == 0) {
      strategy.parts = apart.value().parts;
      add(strategy, apart.value().step_s, memory.disaggregated(state));
    }
  }
}

void NodePairSearch::shared(ExpertSharing sharing) {
  const auto step = shared_step(model_, cluster_, kinds_, demand_, sharing);
  if (!step.ok()) return;
  for (const StateChoice& state : state_choices()) {
    Strategy strategy;
    strategy.kind = StrategyKind::kShared;
    strategy.sharing = sharing;
    strategy.state = state;
    add(std::move(strategy), step.value().step_s(),
        shared_bytes(model_, cost_, demand_, step.value(), state));
  }
}

void NodePairSearch::pipelines(int32_t microbatches) {
  const NodePairMemory memory(cost_, kinds_, demand_);
  const HeterogeneousStep all = heterogeneous_step(model_, cluster_, kinds_, demand_);
  for (const StateChoice& state : state_choices()) {
    const HeterogeneousStep step = memory.bounded(all, state, microbatches);
    if (step.faster.most_layers == 0 || step.slower.most_layers == 0) continue;
    const auto best = pipeline_step(step, microbatches);
    if (!best.ok()) continue;
    Strategy strategy;
    strategy.kind = StrategyKind::kPipeline;
    strategy.state = state;
    strategy.microbatches = microbatches;
    strategy.mesh.pipeline = static_cast<int64_t>(best.value().stage_layers.size());
    strategy.mesh.data = best.value().pipelines;
    add(std::move(strategy), best.value().step_s,
        memory.pipelined(state, best.value(), microbatches));
  }
}

}  // namespace

Result<std::vector<Strategy>> search_node_pair(const ModelShape& model, const ClusterSheet& cluster,
                                               const ClusterDemand& demand) {
  ASSIGN_OR_RETURN(const NodePair kinds, node_pair(cluster));
  ASSIGN_OR_RETURN(const ModelCost cost, node_pair_cost(model));
  std::vector<Strategy> strategies = NodePairSearch(model, cost, cluster, kinds, demand).run();
  if (!strategies.empty()) return strategies;
  return Status(
      Exit::kDoesNotFit,
      strf("no strategy fits %d faster devices of %s and %d slower ones of %s",
           kinds.faster_devices, format_bytes(kinds.faster->auto_device_bytes()).c_str(),
           kinds.slower_devices, format_bytes(kinds.slower->auto_device_bytes()).c_str()));
}

Result<double> ideal_parallel_s(const ModelShape& model, const ClusterSheet& cluster,
                                const ClusterDemand& demand) {
  ASSIGN_OR_RETURN(const NodePair kinds, node_pair(cluster));
  RETURN_IF_ERROR(node_pair_cost(model).status());
  return ideal_step_s(copied_step(model, cluster, kinds, demand, 1).step, kMostParts);
}

}  // namespace pagoda
