#include "plan/machine/task_costs.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/si_units.h"
#include "plan/machine/device_profile.h"
#include "plan/machine/work_cost.h"

namespace pagoda {
namespace {

class Costs {
 public:
  Costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
        const CostSettings& work);

  MachineProfile profile() const;

 private:
  Cost of(const Work& work, double together) const { return clock_.cost(work, together, together); }
  void attention(MachineProfile& p) const;
  void rows(MachineProfile& p) const;
  double experts_in_group() const;
  void tables(MachineProfile& p) const;
  void updates(MachineProfile& p) const;
  void moves(MachineProfile& p) const;
  LayerWork layer(bool moe) const;
  LayerWork mean_layer() const;
  TaskCosts of_device(const MachineProfile& p, const DeviceSetup& device) const;

  const MachineSheet& sheet_;
  const RunShape& run_;
  const CostSettings& work_;
  const WorkClock clock_;
  const ModelCost model_;
  const WorkSizes sizes_;
  const std::string profile_key_;
};

Costs::Costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
             const CostSettings& work)
    : sheet_(sheet),
      run_(run),
      work_(work),
      clock_(sheet, static_cast<double>(work.sequence_len)),
      model_(model_cost(model).take()),
      sizes_{static_cast<double>(model.hidden_size), static_cast<double>(work.sequence_len),
             static_cast<double>(run.dtype_bytes)},
      profile_key_(profile_key(model, run.microbatch_tokens, work.sequence_len)) {}

// The layers of a kind are alike. Without one its tasks do not run.
LayerWork Costs::layer(bool moe) const {
  for (const LayerCost& layer : model_.layers) {
    if ((layer.num_experts > 0) == moe) return layer_work(layer, sizes_, 1 - work_.kept_share);
  }
  return {};
}

// Tasks of attention are of one kind, so where some layers convolve they cost the mean.
LayerWork Costs::mean_layer() const {
  LayerCost mean = model_.layers.front();
  mean.attention_parameters = mean.score_width = 0;
  for (const LayerCost& layer : model_.layers) {
    mean.attention_parameters += layer.attention_parameters;
    mean.score_width += layer.score_width;
  }
  mean.attention_parameters /= std::ssize(model_.layers);
  mean.score_width /= std::ssize(model_.layers);
  return layer_work(mean, sizes_, 1 - work_.kept_share);
}

void Costs::attention(MachineProfile& p) const {
  const auto m = static_cast<double>(work_.coarseness.microbatches);
  const LayerWork dense = layer(false), moe = layer(true);
  const LayerWork any = mean_layer();
  p.of(TaskKind::kAttention) = of(any.attention, m);
  p.of(TaskKind::kCachedAttention) = p.of(TaskKind::kAttention);
  p.of(TaskKind::kAttentionBackward) = of(any.attention_backward, m);
  p.of(TaskKind::kDenseMlp) = of(dense.dense_mlp, m);
  p.of(TaskKind::kDenseMlpBackward) = of(dense.dense_mlp_backward, m);
  p.of(TaskKind::kRoute) = of(moe.route, m);
  p.of(TaskKind::kRouteReplay) = of(moe.route_replay, m);
  p.of(TaskKind::kRouteBackward) = of(moe.route_backward, m);
  p.of(TaskKind::kResidual) = of(any.residual, m);
  p.of(TaskKind::kIndex) = of(any.index, m);
}

// Where all experts have as many rows.
double Costs::experts_in_group() const {
  const Coarseness& c = work_.coarseness;
  const int64_t chosen = run_.microbatches * run_.microbatch_tokens * run_.experts_per_token;
  const int64_t rows = chosen / std::max<int64_t>(1, run_.num_experts * c.experts);
  const int64_t row_block = run_.row_block / (c.experts * c.blocks);
  const int64_t blocks = std::max<int64_t>(1, div_ceil(rows, row_block));
  return static_cast<double>(std::max<int64_t>(1, work_.group_blocks / blocks));
}

void Costs::rows(MachineProfile& p) const {
  const Coarseness& c = work_.coarseness;
  const auto tasks = static_cast<double>(c.experts * div_ceil(c.blocks, work_.group_blocks));
  const double launches = tasks / experts_in_group();
  const double parts = work_.dispatches;
  LayerWork work = layer(true);
  if (run_.adds_in_place()) {
    work.expert.bytes += work.added.bytes;
    work.expert_backward.bytes += work.added.bytes;
  }
  p.of(TaskKind::kDispatch) = of(work.dispatch, parts);
  p.of(TaskKind::kDispatchBackward) = of(work.dispatch_backward, parts);
  p.of(TaskKind::kPlaceRows) = p.of(TaskKind::kPackRows) = p.of(TaskKind::kTakeParcel) =
      p.of(TaskKind::kDispatch);
  p.of(TaskKind::kCombine) = of(work.combine, parts);
  p.of(TaskKind::kCombineBackward) = p.of(TaskKind::kCombine);
  p.of(TaskKind::kExpert) = clock_.cost(work.expert, tasks, launches);
  p.of(TaskKind::kExpertBackward) = clock_.cost(work.expert_backward, tasks, launches);
}

void Costs::tables(MachineProfile& p) const {
  const auto m = static_cast<double>(work_.coarseness.microbatches);
  const TableWork work = table_work(static_cast<double>(model_.embedding_parameters), sizes_);
  p.of(TaskKind::kEmbed) = of(work.embed, m);
  p.of(TaskKind::kEmbedBackward) = of(work.embed_backward, m);
  p.of(TaskKind::kLoss) = of(work.loss, m);
  p.of(TaskKind::kLogits) = p.of(TaskKind::kLoss);
  p.of(TaskKind::kHead) = of(work.head, m);
}

void Costs::updates(MachineProfile& p) const {
  double elements = 0, state = 0;
  for (const RecordShape& record : run_.records) {
    elements += static_cast<double>(record.trained_elements());
    state += static_cast<double>(record.state_bytes);
  }
  const auto experts = static_cast<double>(work_.coarseness.experts);
  p.of(TaskKind::kAddSums) = of(sums_work(), 1);
  p.of(TaskKind::kGradient) = of(gradient_work(sizes_), experts);
  const double moved = update_bytes(sizes_, state / std::max(1.0, elements));
  p.of(TaskKind::kAdam) =
      work_.state_on_device ? clock_.device_updates(moved, experts) : clock_.host_updates(moved);
}

void Costs::moves(MachineProfile& p) const {
  p.upload = p.download = clock_.copy();
  const bool linked = sheet_.gpu() && sheet_.link.gb_s > 0;
  p.of(TaskKind::kReceive) =
      linked ? WorkClock::link(sheet_.link.gb_s, work_.messages * sheet_.link.latency_us)
             : clock_.copy();
  p.checksum = {0, 1 / (sheet_.host.checksum_gb_s * kGiga), 1};
  const auto drives = static_cast<double>(sheet_.disk.drives);
  p.read = {0, 1 / (sheet_.disk.read_gb_s * drives * kGiga), 0};
  p.write = {0, 1 / (sheet_.disk.write_gb_s * drives * kGiga), 0};
  p.half_duplex = sheet_.disk.half_duplex;
  p.completion_s = kMicro * sheet_.disk.latency_us;
}

// A device of some of the cores, which a slowed one leaves idle in between. What copies has one.
// What was measured there takes what it took, unless tasks here stand for several.
TaskCosts Costs::of_device(const MachineProfile& p, const DeviceSetup& device) const {
  TaskCosts costs = p.tasks;
  for (size_t kind = 0; kind < costs.size(); ++kind) {
    if (costs[kind].cores < p.cores) continue;
    costs[kind] = costs[kind].slower(p.cores / device.threads);
    costs[kind] = costs[kind].slower(device.throttle.of(static_cast<TaskKind>(kind)));
  }
  const std::optional<MeasuredCosts> measured =
      work_.coarseness == Coarseness() ? measured_costs(sheet_.profile, profile_key_, device.name)
                                       : std::nullopt;
  for (size_t kind = 0; measured && kind < costs.size(); ++kind) {
    const std::optional<Cost>& own = (*measured)[kind];
    if (!own) continue;
    costs[kind] = {own->fixed_s, own->unit_s, costs[kind].cores, costs[kind].memory, own->start_s};
  }
  return costs;
}

MachineProfile Costs::profile() const {
  MachineProfile p;
  p.cores = sheet_.host.cores;
  for (Cost& cost : p.tasks) cost.cores = sheet_.gpu() ? 0 : sheet_.host.cores;
  attention(p);
  rows(p);
  tables(p);
  updates(p);
  moves(p);
  // The thread that issues goes on as soon as a launch takes.
  p.wake_up_s = kMicro * sheet_.device.launch_us;
  p.of(TaskKind::kPrefetch) = p.of(TaskKind::kUpload) = p.of(TaskKind::kReadRows) = {};
  for (const DeviceSetup& device : work_.devices) p.device_tasks.push_back(of_device(p, device));
  return p;
}

// Units a second, of which a task has so many.
double speed(const TaskCosts& costs, TaskKind forward, TaskKind backward, int64_t units) {
  const auto amount = static_cast<double>(units);
  return amount / (costs[static_cast<size_t>(forward)].seconds(amount) +
                   costs[static_cast<size_t>(backward)].seconds(amount));
}

}  // namespace

MachineProfile task_costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
                          const CostSettings& work) {
  return Costs(sheet, model, run, work).profile();
}

double token_speed(const TaskCosts& costs, const RunShape& run) {
  return speed(costs, TaskKind::kAttention, TaskKind::kAttentionBackward, run.microbatch_tokens);
}

double row_speed(const TaskCosts& costs, const RunShape& run) {
  const int64_t rows = div_ceil(run.microbatch_tokens * run.experts_per_token, run.num_experts);
  return speed(costs, TaskKind::kExpert, TaskKind::kExpertBackward, rows);
}

}  // namespace pagoda
