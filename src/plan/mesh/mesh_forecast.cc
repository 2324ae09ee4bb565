#include "plan/mesh/mesh_forecast.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/si_units.h"
#include "plan/machine/pass_cost.h"
#include "plan/mesh/data_model_centric.h"
#include "plan/mesh/exchange_traffic.h"
#include "plan/mesh/hierarchical_exchange.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

// The slowest link of a ring through these devices in their order.
const Cost& slowest_link(const ClusterProfile& cluster, const std::vector<int64_t>& ring) {
  const Cost* slowest = &cluster.in_node;
  for (size_t i = 0; i < ring.size(); ++i) {
    const Cost& link = cluster.link(ring[i], ring[(i + 1) % ring.size()]);
    if (link.unit_s > slowest->unit_s) slowest = &link;
  }
  return *slowest;
}

// The parts of a layer on a device, in seconds of a microbatch.
struct LayerPass {
  PassSeconds compute, exchanges;
};

class Estimate {
 public:
  Estimate(const ModelCost& model, const Mesh& mesh, const PipelineBatch& batch,
           const ClusterProfile& cluster, const MachineSheet& node, const MeshChoices& choices)
      : model_(model),
        mesh_(mesh),
        batch_(batch),
        cluster_(cluster),
        clock_(node, model, batch.sequence_len),
        choices_(choices) {}

  Result<StageWork> stage(int64_t stage) const;

 private:
  Result<LayerPass> layer_pass(int64_t layer) const;
  PassSeconds experts_s(const LayerCost& layer, bool again) const;
  Result<PassSeconds> exchanges_s(const LayerCost& layer, double overlapped_s, bool again) const;
  Result<PassSeconds> shared_s(const LayerCost& layer, const ClusterProfile& group,
                               double overlapped_s, bool again) const;
  Result<double> send_s(int64_t stage) const;
  std::vector<int64_t> copies(int64_t stage, int64_t first, int64_t last) const;
  double ring_s(int64_t parameters, const std::vector<int64_t>& ring) const;
  double gradients_s(int64_t stage) const;
  // Tokens that a device attends to.
  double tokens() const {
    const double all =
        static_cast<double>(batch_.microbatch_sequences) * static_cast<double>(batch_.sequence_len);
    return batch_.of == SequencesOf::kGroup ? all / static_cast<double>(mesh_.expert) : all;
  }
  std::pair<int64_t, int64_t> layers(int64_t stage) const {
    return stage_layers(static_cast<int64_t>(model_.layers.size()), mesh_.pipeline, stage);
  }

  const ModelCost& model_;
  const Mesh& mesh_;
  const PipelineBatch& batch_;
  const ClusterProfile& cluster_;
  const PassClock clock_;
  const MeshChoices& choices_;
};

// Routing is balanced, so that a device's experts get as many rows as its tokens make: of its part
// of the experts, of all experts, or, of a part of each expert, the rows of all devices.
PassSeconds Estimate::experts_s(const LayerCost& layer, bool again) const {
  const auto devices = static_cast<double>(mesh_.expert);
  const auto experts = static_cast<double>(layer.num_experts);
  const double own = tokens() * static_cast<double>(layer.experts_per_token);
  double rows = own, here = experts, columns = 1;
  if (choices_.sharing == ExpertSharing::kRows) here /= devices;
  if (choices_.sharing == ExpertSharing::kModelCentric) {
    rows *= devices;
    columns /= devices;
  }
  const GroupedRows grouped = clock_.grouped(rows, here);
  return clock_.copies(layer).seconds(grouped) +
         clock_.experts(layer, again, columns).seconds(grouped);
}

// Where each device has a part of every expert. Weights that travel hide behind what every token
// visits, and come to the backward whether or not it computes again; rows come once more.
Result<PassSeconds> Estimate::shared_s(const LayerCost& layer, const ClusterProfile& group,
                                       double overlapped_s, bool again) const {
  const int64_t weights = kValueBytes * layer.num_experts * layer.expert_parameters;
  SharedExperts experts;
  experts.layer_weight_bytes = experts.layer_gradient_bytes = weights;
  experts.token_bytes = kValueBytes * model_.hidden_size;
  experts.tokens = static_cast<int64_t>(tokens()) * mesh_.expert;
  const Cost& link = group.link(0, mesh_.expert - 1);
  ASSIGN_OR_RETURN(
      const ExchangeSeconds seconds,
      exchange_seconds(experts, static_cast<int32_t>(mesh_.expert), 1 / link.unit_s, overlapped_s));
  if (choices_.sharing == ExpertSharing::kDataCentric) {
    return PassSeconds{seconds.data_centric_s / 2, seconds.data_centric_s / 2};
  }
  constexpr double kGathers = 6;  // the time of all transfers, in those of one gathering of rows
  const double pass_s = seconds.model_centric_s / 2;
  return PassSeconds{pass_s, pass_s + (again ? seconds.model_centric_s / kGathers : 0)};
}

Result<PassSeconds> Estimate::exchanges_s(const LayerCost& layer, double overlapped_s,
                                          bool again) const {
  if (layer.num_experts == 0 || mesh_.expert == 1) return PassSeconds{};
  ASSIGN_OR_RETURN(const ClusterProfile group, expert_group(cluster_, mesh_.expert));
  if (choices_.sharing != ExpertSharing::kRows) {
    return shared_s(layer, group, overlapped_s, again);
  }
  ASSIGN_OR_RETURN(const ExchangeTraffic traffic,
                   exchange_traffic(model_.hidden_size, layer.experts_per_token, batch_, mesh_));
  ASSIGN_OR_RETURN(const ExchangeChoice choice, cheaper_exchange(group, traffic.pair_bytes));
  return PassSeconds{2, again ? 3.0 : 2.0} * choice.cost.total_s;
}

Result<LayerPass> Estimate::layer_pass(int64_t l) const {
  const LayerCost& layer = model_.layers[static_cast<size_t>(l)];
  const bool again =
      !choices_.recomputed.empty() && choices_.recomputed[static_cast<size_t>(l)] != 0;
  LayerPass pass;
  pass.compute = clock_.tokens(layer, again).seconds(tokens());
  ASSIGN_OR_RETURN(pass.exchanges, exchanges_s(layer, pass.compute.both_s(), again));
  if (layer.num_experts > 0) pass.compute = pass.compute + experts_s(layer, again);
  return pass;
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
  PassSeconds compute, communication;
  const auto [first, last] = layers(stage);
  for (int64_t l = first; l < last; ++l) {
    ASSIGN_OR_RETURN(const LayerPass pass, layer_pass(l));
    compute = compute + pass.compute;
    communication = communication + pass.exchanges;
  }
  if (stage == 0) compute = compute + clock_.embedding().seconds(tokens());
  if (stage == mesh_.pipeline - 1) compute = compute + clock_.head().seconds(tokens());
  ASSIGN_OR_RETURN(const double onward_s, send_s(stage));
  ASSIGN_OR_RETURN(const double back_s, send_s(stage - 1));
  StageWork work;
  work.forward_compute_s = compute.forward_s;
  work.backward_compute_s = compute.backward_s;
  work.forward_communication_s = communication.forward_s + onward_s;
  work.backward_communication_s = communication.backward_s + back_s;
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
                  const ClusterProfile& cluster, const MeshChoices& choices) {
  RETURN_IF_ERROR(check_cluster(cluster));
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
MeshTimes times_of(const std::vector<StageWork>& stages, const PipelineRun& run,
                   int64_t microbatches) {
  const auto m = static_cast<double>(microbatches);
  MeshTimes longest;
  double step_s = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const StageWork& work = stages[s];
    const MeshTimes times{
        m * (work.forward_compute_s + work.backward_compute_s),
        m * (work.forward_communication_s + work.backward_communication_s) + work.gradients_s};
    if (times.step_s() > longest.step_s()) longest = times;
    step_s = std::max(step_s, run.end_s(s) + work.gradients_s);
  }
  longest.bubble_s = std::max(0.0, step_s - longest.step_s());
  return longest;
}

}  // namespace

Result<MeshForecast> mesh_utilisation(double model_flops, double peak_flops_per_s, int64_t devices,
                                      const MeshTimes& times) {
  RETURN_IF_ERROR(check_rate("model_flops", model_flops));
  RETURN_IF_ERROR(check_rate("peak_flops_per_s", peak_flops_per_s));
  RETURN_IF_ERROR(check_integer("the number of devices", devices, 1, kMaxCount * kMaxCount));
  RETURN_IF_ERROR(check_rate("compute_s", times.compute_s));
  RETURN_IF_ERROR(check_amount("communication_s", times.communication_s));
  RETURN_IF_ERROR(check_amount("bubble_s", times.bubble_s));
  MeshForecast estimate;
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
                                           const ClusterProfile& cluster, const MachineSheet& node,
                                           const MeshChoices& choices) {
  RETURN_IF_ERROR(check_step(model, mesh, batch, cluster, choices));
  const Estimate estimate(model, mesh, batch, cluster, node, choices);
  std::vector<StageWork> works;
  for (int64_t stage = 0; stage < mesh.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const StageWork work, estimate.stage(stage));
    works.push_back(work);
  }
  return works;
}

Result<MeshForecast> forecast_mesh(const ModelCost& model, const Mesh& mesh,
                                   const PipelineBatch& batch, const ClusterProfile& cluster,
                                   const MachineSheet& node, const MeshChoices& choices) {
  ASSIGN_OR_RETURN(std::vector<StageWork> works,
                   stage_works(model, mesh, batch, cluster, node, choices));
  std::vector<StageSeconds> seconds;
  for (const StageWork& work : works) seconds.push_back(work.seconds());
  ASSIGN_OR_RETURN(PipelineRun run, run_pipeline(choices.schedule, seconds, batch.microbatches));
  const int64_t groups = batch.of == SequencesOf::kRank ? mesh.expert * mesh.data : mesh.data;
  const double sequences = static_cast<double>(batch.microbatch_sequences) *
                           static_cast<double>(batch.microbatches) * static_cast<double>(groups);
  const double flops = model_flops(model, batch.sequence_len, sequences);
  ASSIGN_OR_RETURN(MeshForecast estimate,
                   mesh_utilisation(flops, kTera * node.device.peak_tflops, mesh.devices(),
                                    times_of(works, run, batch.microbatches)));
  estimate.tokens = sequences * static_cast<double>(batch.sequence_len);
  estimate.stages = std::move(works);
  estimate.run = std::move(run);
  return estimate;
}

}  // namespace pagoda
