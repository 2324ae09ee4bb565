#include "plan/search/node_pair.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/si_units.h"
#include "plan/machine/pass_cost.h"

namespace pagoda {
namespace {

double step_tokens(const ClusterDemand& demand) {
  return static_cast<double>(demand.sequence_len) * static_cast<double>(demand.sequences);
}

// What one device takes for all tokens in one layer. The backward computes everything again.
DeviceKind kind_of(const MachineSheet& sheet, int32_t devices, const ModelCost& cost,
                   const ClusterDemand& demand) {
  const LayerCost& layer = cost.layers.front();
  const PassClock clock(sheet, cost, demand.sequence_len);
  const double tokens = step_tokens(demand);
  const double rows = tokens * static_cast<double>(layer.experts_per_token);
  const auto experts = static_cast<double>(layer.num_experts);
  const TokenPass of_tokens = clock.tokens(layer, true);
  const RowPass copies = clock.copies(layer), of_rows = clock.experts(layer, true);
  // A microbatch has a block of rows of each expert at least; what groups there are beyond these
  // grow with the rows.
  const GroupedRows all = clock.grouped(rows, experts), least = clock.grouped(experts, experts);
  const GroupedRows more{rows, std::max(0.0, all.groups - least.groups),
                         std::max(0.0, all.readings - least.readings),
                         std::max(0.0, all.copies - least.copies)};
  const TokenPass head = clock.head(), embedding = clock.embedding();
  DeviceKind kind;
  kind.devices = devices;
  kind.attention = of_tokens.token * tokens + copies.seconds(more);
  kind.attention_once = of_tokens.once + copies.copy * least.copies;
  kind.experts = of_rows.seconds(more);
  kind.experts_once = of_rows.seconds({0, least.groups, least.readings, least.copies});
  kind.head_s = (head.token + embedding.token).both_s() * tokens;
  kind.head_once_s = (head.once + embedding.once).both_s();
  return kind;
}

}  // namespace

Result<NodePair> node_pair(const ClusterSheet& cluster) {
  std::vector<std::pair<const MachineSheet*, int32_t>> found;
  for (const MachineSheet& node : cluster.nodes) {
    auto same = std::find_if(found.begin(), found.end(), [&](const auto& kind) {
      return kind.first->to_toml() == node.to_toml();
    });
    if (same == found.end()) same = found.insert(found.end(), {&node, 0});
    same->second += static_cast<int32_t>(node.device.count);
  }
  if (found.size() != 2) {
    return Status(Exit::kUsage, strf("the nodes are of %zu kinds; strategies are searched on equal "
                                     "ones and on two kinds",
                                     found.size()));
  }
  if (found[0].first->device.attention_tflops < found[1].first->device.attention_tflops) {
    std::swap(found[0], found[1]);
  }
  return NodePair{found[0].first, found[1].first, found[0].second, found[1].second};
}

HeterogeneousStep heterogeneous_step(const ModelShape& model, const ClusterSheet& cluster,
                                     const NodePair& kinds, const ClusterDemand& demand) {
  const ModelCost cost = model_cost(model).take();
  const double tokens = step_tokens(demand);
  const auto d = static_cast<double>(kValueBytes * model.hidden_size);
  HeterogeneousStep step;
  step.layers = static_cast<int32_t>(model.num_layers());
  step.faster = kind_of(*kinds.faster, kinds.faster_devices, cost, demand);
  step.slower = kind_of(*kinds.slower, kinds.slower_devices, cost, demand);
  step.exchange_bytes = tokens * static_cast<double>(model.experts_per_token) * d;
  step.boundary_bytes = tokens * d;
  step.link_bytes_per_s = cluster.network.gb_s * kGiga;
  step.latency_s = cluster.network.latency_us * kMicro;
  const LayerCost& layer = cost.layers.front();
  step.attention_gradient_bytes = static_cast<double>(kValueBytes * layer.replicated_parameters);
  step.expert_gradient_bytes =
      static_cast<double>(kValueBytes * layer.num_experts * layer.expert_parameters);
  return step;
}

CopiedStep copied_step(const ModelShape& model, const ClusterSheet& cluster, const NodePair& kinds,
                       const ClusterDemand& demand, int32_t copies) {
  CopiedStep copy{kinds, demand, {}};
  copy.kinds.faster_devices /= copies;
  copy.kinds.slower_devices /= copies;
  copy.demand.sequences /= copies;
  copy.step = heterogeneous_step(model, cluster, copy.kinds, copy.demand);
  copy.step.groups = copies;
  return copy;
}

Result<ModelCost> node_pair_cost(const ModelShape& model) {
  if (std::count(model.is_moe.begin(), model.is_moe.end(), uint8_t{0}) > 0) {
    return Status(Exit::kUsage,
                  "strategies for layers without experts are searched on equal nodes alone; "
                  "give such");
  }
  return model_cost(model);
}

Result<StateUpdates> node_pair_updates(const NodePair& kinds, const StateChoice& state,
                                       const DeviceParameters& faster,
                                       const DeviceParameters& slower) {
  ASSIGN_OR_RETURN(const StateUpdates of_faster, state_updates(*kinds.faster, state, faster));
  ASSIGN_OR_RETURN(const StateUpdates of_slower, state_updates(*kinds.slower, state, slower));
  return StateUpdates{std::max(of_faster.seconds, of_slower.seconds),
                      std::max(of_faster.state_bytes, of_slower.state_bytes)};
}

DeviceParameters NodePairMemory::experts(int32_t devices) const {
  const LayerCost& l = cost_.layers.front();
  const double count =
      static_cast<double>(cost_.layers.size()) * static_cast<double>(l.num_experts) / devices;
  return {count * static_cast<double>(l.expert_parameters), count};
}

DeviceParameters NodePairMemory::tables() const {
  return {static_cast<double>(cost_.embedding_parameters + cost_.head_parameters), 2};
}

DeviceParameters NodePairMemory::dense() const {
  DeviceParameters dense = tables();
  for (const LayerCost& l : cost_.layers) {
    dense = dense + DeviceParameters{static_cast<double>(l.replicated_parameters), 1};
  }
  return dense;
}

DeviceParameters NodePairMemory::layer() const {
  const LayerCost& l = cost_.layers.front();
  const auto experts = static_cast<double>(l.num_experts);
  return {static_cast<double>(l.replicated_parameters) +
              experts * static_cast<double>(l.expert_parameters),
          1 + experts};
}

double NodePairMemory::inputs_bytes(double rows) const {
  return rows * static_cast<double>(cost_.layers.size()) *
         static_cast<double>(kValueBytes * cost_.hidden_size);
}

double NodePairMemory::layer_bytes(double tokens) const {
  const LayerCost& l = cost_.layers.front();
  return tokens *
         static_cast<double>(l.token_bytes + 2 * l.heads + l.experts_per_token * l.row_bytes);
}

NodePairBytes NodePairMemory::expert_parallel(const StateChoice& state) const {
  const int32_t devices = kinds_.faster_devices + kinds_.slower_devices;
  const double own = tokens_ / devices;
  const DeviceParameters all = dense() + experts(devices);
  const double bytes = all.parameters * state.device_bytes() + inputs_bytes(own) + layer_bytes(own);
  return {bytes, bytes, all, all};
}

NodePairBytes NodePairMemory::disaggregated(const StateChoice& state) const {
  const double own = tokens_ / kinds_.faster_devices;
  const double rows = tokens_ * static_cast<double>(cost_.layers.front().experts_per_token);
  NodePairBytes bytes;
  bytes.faster_parameters = dense();
  bytes.slower_parameters = experts(kinds_.slower_devices);
  bytes.faster = bytes.faster_parameters.parameters * state.device_bytes() + inputs_bytes(own) +
                 layer_bytes(own);
  bytes.slower = bytes.slower_parameters.parameters * state.device_bytes() +
                 inputs_bytes(rows / kinds_.slower_devices);
  return bytes;
}

NodePairMemory::StageBytes NodePairMemory::stage_bytes(const StateChoice& state, int32_t pipelines,
                                                       int32_t microbatches) const {
  const double tokens = tokens_ / pipelines;
  StageBytes bytes;
  bytes.fixed = tables().parameters * state.device_bytes() + layer_bytes(tokens / microbatches);
  bytes.layer = layer().parameters * state.device_bytes() +
                tokens * static_cast<double>(kValueBytes * cost_.hidden_size);
  return bytes;
}

HeterogeneousStep NodePairMemory::bounded(const HeterogeneousStep& step, const StateChoice& state,
                                          int32_t microbatches) const {
  const int32_t pipelines = std::gcd(kinds_.faster_devices, kinds_.slower_devices);
  const StageBytes bytes = stage_bytes(state, pipelines, microbatches);
  const auto most = [&](const MachineSheet& sheet) {
    const double left = static_cast<double>(sheet.auto_device_bytes()) - bytes.fixed;
    return static_cast<int32_t>(std::max(0.0, left / bytes.layer));
  };
  HeterogeneousStep within = step;
  within.faster.most_layers = most(*kinds_.faster);
  within.slower.most_layers = most(*kinds_.slower);
  return within;
}

NodePairBytes NodePairMemory::pipelined(const StateChoice& state, const PipelineStep& step,
                                        int32_t microbatches) const {
  const StageBytes of = stage_bytes(state, step.pipelines, microbatches);
  const auto& layers = step.stage_layers;
  const auto faster = layers.begin() + kinds_.faster_devices / step.pipelines;
  const double here = *std::max_element(layers.begin(), faster);
  const double there = *std::max_element(faster, layers.end());
  return {of.fixed + here * of.layer, of.fixed + there * of.layer, tables() + layer() * here,
          tables() + layer() * there};
}

}  // namespace pagoda
