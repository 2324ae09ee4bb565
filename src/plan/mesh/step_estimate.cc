#include "plan/mesh/step_estimate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/mesh/device_shares.h"
#include "plan/mesh/exchange_traffic.h"
#include "plan/mesh/hierarchical_exchange.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

Status check_rates(const DeviceRates& rates) {
  RETURN_IF_ERROR(check_rate("peak_flops_per_s", rates.peak_flops_per_s));
  RETURN_IF_ERROR(check_rate("token_flops_per_s", rates.token_flops_per_s));
  return check_rate("expert_flops_per_s", rates.expert_flops_per_s);
}

// The slowest link of a ring through these devices in their order.
const Cost& slowest_link(const ClusterProfile& cluster, const std::vector<int64_t>& ring) {
  const Cost* slowest = &cluster.in_node;
  for (size_t i = 0; i < ring.size(); ++i) {
    const Cost& link = cluster.link(ring[i], ring[(i + 1) % ring.size()]);
    if (link.unit_s > slowest->unit_s) slowest = &link;
  }
  return *slowest;
}

class Estimate {
 public:
  Estimate(const ModelCost& model, const Mesh& mesh, const PipelineBatch& batch,
           const ClusterProfile& cluster, const DeviceRates& rates, const StepChoices& choices)
      : model_(model),
        mesh_(mesh),
        batch_(batch),
        cluster_(cluster),
        rates_(rates),
        choices_(choices) {}

  Result<StageWork> stage(int64_t stage) const;

 private:
  double layer_compute_s(const LayerCost& layer) const;
  Result<double> exchanges_s(const LayerCost& layer) const;
  Result<double> shared_s(const LayerCost& layer, const ClusterProfile& group) const;
  Result<double> send_s(int64_t stage) const;
  std::vector<int64_t> copies(int64_t stage, int64_t first, int64_t last) const;
  double ring_s(int64_t parameters, const std::vector<int64_t>& ring) const;
  double gradients_s(int64_t stage) const;
  // Sequences that a device attends to.
  double sequences() const {
    const auto b = static_cast<double>(batch_.microbatch_sequences);
    return batch_.of == SequencesOf::kGroup ? b / static_cast<double>(mesh_.expert) : b;
  }
  std::pair<int64_t, int64_t> layers(int64_t stage) const {
    return stage_layers(static_cast<int64_t>(model_.layers.size()), mesh_.pipeline, stage);
  }

  const ModelCost& model_;
  const Mesh& mesh_;
  const PipelineBatch& batch_;
  const ClusterProfile& cluster_;
  const DeviceRates& rates_;
  const StepChoices& choices_;
};

// Forward. Balanced routing: a device's experts get as many rows as its tokens make.
double Estimate::layer_compute_s(const LayerCost& layer) const {
  const double tokens = sequences() * static_cast<double>(batch_.sequence_len);
  const double rows = tokens * static_cast<double>(layer.experts_per_token);
  return (token_flops(layer) * tokens + score_flops(layer, batch_.sequence_len) * sequences()) /
             rates_.token_flops_per_s +
         row_flops(layer) * rows / rates_.expert_flops_per_s;
}

// Where each device has a part of every expert. Weights that travel hide behind what every token
// visits.
Result<double> Estimate::shared_s(const LayerCost& layer, const ClusterProfile& group) const {
  const double tokens = sequences() * static_cast<double>(batch_.sequence_len);
  const int64_t weights = kValueBytes * layer.num_experts * layer.expert_parameters;
  SharedExperts experts;
  experts.layer_weight_bytes = experts.layer_gradient_bytes = weights;
  experts.token_bytes = kValueBytes * model_.hidden_size;
  experts.tokens = static_cast<int64_t>(tokens) * mesh_.expert;
  const Cost& link = group.link(0, mesh_.expert - 1);
  const double other_s =
      3 * (token_flops(layer) * tokens + score_flops(layer, batch_.sequence_len) * sequences()) /
      rates_.token_flops_per_s;
  ASSIGN_OR_RETURN(const ExchangeSeconds seconds,
                   exchange_seconds(experts, static_cast<int32_t>(mesh_.expert), 1 / link.unit_s,
                                    other_s));
  return choices_.sharing == ExpertSharing::kDataCentric ? seconds.data_centric_s
                                                 : seconds.model_centric_s;
}

// The computing time of a forward and a backward.
Result<double> Estimate::exchanges_s(const LayerCost& layer) const {
  if (layer.num_experts == 0 || mesh_.expert == 1) return 0.0;
  ASSIGN_OR_RETURN(const ClusterProfile group, expert_group(cluster_, mesh_.expert));
  if (choices_.sharing != ExpertSharing::kRows) return shared_s(layer, group);
  ASSIGN_OR_RETURN(
      const ExchangeTraffic traffic,
      exchange_traffic(model_.hidden_size, layer.experts_per_token, batch_, mesh_));
  ASSIGN_OR_RETURN(const ExchangeChoice choice, cheaper_exchange(group, traffic.pair_bytes));
  return 4 * choice.cost.total_s;
}

// To the next stage or back, over the slowest link of any device of any copy.
Result<double> Estimate::send_s(int64_t stage) const {
  if (stage < 0 || stage == mesh_.pipeline - 1) return 0.0;
  ASSIGN_OR_RETURN(const double bytes, stage_send_bytes(model_.hidden_size, batch_, mesh_));
  double slowest_s = 0;
  for (int64_t copy = 0; copy < mesh_.data; ++copy) {
    for (int64_t e = 0; e < mesh_.expert; ++e) {
      const int64_t from = (copy * mesh_.pipeline + stage) * mesh_.expert + e;
      slowest_s = std::max(slowest_s, cluster_.link(from, from + mesh_.expert).seconds(bytes));
    }
  }
  return slowest_s;
}

Result<StageWork> Estimate::stage(int64_t stage) const {
  StageWork work;
  double again_compute_s = 0, again_exchange_s = 0;
  const auto [first, last] = layers(stage);
  for (int64_t l = first; l < last; ++l) {
    const LayerCost& layer = model_.layers[static_cast<size_t>(l)];
    const double compute_s = layer_compute_s(layer);
    ASSIGN_OR_RETURN(const double exchanges, exchanges_s(layer));
    work.forward_compute_s += compute_s;
    work.forward_communication_s += exchanges / 2;
    if (choices_.recomputed.empty() || choices_.recomputed[static_cast<size_t>(l)] == 0) continue;
    again_compute_s += compute_s;
    again_exchange_s += exchanges / 2;
  }
  if (stage == mesh_.pipeline - 1) {
    const double tokens = sequences() * static_cast<double>(batch_.sequence_len);
    work.forward_compute_s +=
        2.0 * static_cast<double>(model_.head_parameters) * tokens / rates_.token_flops_per_s;
  }
  work.backward_compute_s = 2 * work.forward_compute_s + again_compute_s;
  work.backward_communication_s = work.forward_communication_s + again_exchange_s;
  ASSIGN_OR_RETURN(const double onward_s, send_s(stage));
  ASSIGN_OR_RETURN(const double back_s, send_s(stage - 1));
  work.forward_communication_s += onward_s;
  work.backward_communication_s += back_s;
  work.gradients_s = gradients_s(stage);
  return work;
}

// The devices of a stage that have the places [first, last) among their EP, of all copies.
std::vector<int64_t> Estimate::copies(int64_t stage, int64_t first, int64_t last) const {
  std::vector<int64_t> devices;
  for (int64_t copy = 0; copy < mesh_.data; ++copy) {
    for (int64_t e = first; e < last; ++e) {
      devices.push_back((copy * mesh_.pipeline + stage) * mesh_.expert + e);
    }
  }
  return devices;
}

// 2 (n - 1) messages around the ring, each of an n-th of the gradients.
double Estimate::ring_s(int64_t parameters, const std::vector<int64_t>& ring) const {
  if (ring.size() == 1 || parameters == 0) return 0;
  const auto n = static_cast<double>(ring.size());
  const double bytes = static_cast<double>(kValueBytes * parameters) / n;
  return 2 * (n - 1) * slowest_link(cluster_, ring).seconds(bytes);
}

double Estimate::gradients_s(int64_t stage) const {
  const StageParameters parameters = stage_parameters(model_, mesh_, stage);
  double experts_s = 0;
  for (int64_t e = 0; e < mesh_.expert; ++e) {
    experts_s = std::max(experts_s, ring_s(parameters.experts, copies(stage, e, e + 1)));
  }
  return experts_s + ring_s(parameters.replicated, copies(stage, 0, mesh_.expert));
}

Status check_step(const ModelCost& model, const Mesh& mesh, const PipelineBatch& batch,
                  const ClusterProfile& cluster, const DeviceRates& rates,
                  const StepChoices& choices) {
  RETURN_IF_ERROR(check_cluster(cluster));
  RETURN_IF_ERROR(check_rates(rates));
  RETURN_IF_ERROR(check_batch(batch, mesh));
  RETURN_IF_ERROR(
      check_mesh(mesh, cluster, static_cast<int64_t>(model.layers.size()), most_experts(model)));
  if (batch.of == SequencesOf::kPaper) {
    return Status(Exit::kUsage, "kPaper mixes two readings of b, so no run has such a step");
  }
  if (choices.recomputed.empty()) return Status();
  return check_count("layers that are computed again or not", choices.recomputed.size(),
                     model.layers.size());
}

// The times of the stage that works longest; it waits for the rest of the step.
StepTimes times_of(const std::vector<StageWork>& stages, const PipelineRun& run,
                   int64_t microbatches) {
  const auto m = static_cast<double>(microbatches);
  StepTimes longest;
  double step_s = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const StageWork& work = stages[s];
    const StepTimes times{
        m * (work.forward_compute_s + work.backward_compute_s),
        m * (work.forward_communication_s + work.backward_communication_s) + work.gradients_s};
    if (times.step_s() > longest.step_s()) longest = times;
    step_s = std::max(step_s, run.end_s(s) + work.gradients_s);
  }
  longest.bubble_s = std::max(0.0, step_s - longest.step_s());
  return longest;
}

}  // namespace

Result<StepEstimate> step_utilisation(double model_flops, double peak_flops_per_s, int64_t devices,
                                 const StepTimes& times) {
  RETURN_IF_ERROR(check_rate("model_flops", model_flops));
  RETURN_IF_ERROR(check_rate("peak_flops_per_s", peak_flops_per_s));
  RETURN_IF_ERROR(check_integer("the number of devices", devices, 1, kMaxCount * kMaxCount));
  RETURN_IF_ERROR(check_rate("compute_s", times.compute_s));
  RETURN_IF_ERROR(check_amount("communication_s", times.communication_s));
  RETURN_IF_ERROR(check_amount("bubble_s", times.bubble_s));
  StepEstimate estimate;
  estimate.times = times;
  estimate.model_flops = model_flops;
  estimate.hardware_efficiency =
      model_flops / (peak_flops_per_s * static_cast<double>(devices) * times.compute_s);
  estimate.compute_fraction = times.compute_s / times.step_s();
  estimate.mfu = estimate.hardware_efficiency * estimate.compute_fraction;
  return estimate;
}

Result<std::vector<StageWork>> stage_works(const ModelCost& model, const Mesh& mesh,
                                           const PipelineBatch& batch,
                                           const ClusterProfile& cluster, const DeviceRates& rates,
                                           const StepChoices& choices) {
  RETURN_IF_ERROR(check_step(model, mesh, batch, cluster, rates, choices));
  const Estimate estimate(model, mesh, batch, cluster, rates, choices);
  std::vector<StageWork> works;
  for (int64_t stage = 0; stage < mesh.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const StageWork work, estimate.stage(stage));
    works.push_back(work);
  }
  return works;
}

Result<StepEstimate> estimate_step(const ModelCost& model, const Mesh& mesh,
                                   const PipelineBatch& batch, const ClusterProfile& cluster,
                                   const DeviceRates& rates, const StepChoices& choices) {
  ASSIGN_OR_RETURN(std::vector<StageWork> works,
                   stage_works(model, mesh, batch, cluster, rates, choices));
  std::vector<StageSeconds> seconds;
  for (const StageWork& work : works) seconds.push_back(work.seconds());
  ASSIGN_OR_RETURN(PipelineRun run, run_pipeline(choices.schedule, seconds, batch.microbatches));
  const int64_t groups = batch.of == SequencesOf::kRank ? mesh.expert * mesh.data : mesh.data;
  const double sequences = static_cast<double>(batch.microbatch_sequences) *
                           static_cast<double>(batch.microbatches) * static_cast<double>(groups);
  const double flops = model_flops(model, batch.sequence_len, sequences);
  ASSIGN_OR_RETURN(StepEstimate estimate,
                   step_utilisation(flops, rates.peak_flops_per_s, mesh.devices(),
                                    times_of(works, run, batch.microbatches)));
  estimate.tokens = sequences * static_cast<double>(batch.sequence_len);
  estimate.stages = std::move(works);
  estimate.run = std::move(run);
  return estimate;
}

}  // namespace pagoda
