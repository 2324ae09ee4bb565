#include "plan/search/shared_step.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "plan/mesh/data_model_centric.h"

namespace pagoda {
namespace {

constexpr int32_t kNewer = 0, kOlder = 1, kTransfers = 2, kSums = 3;

// The largest share of `whole` that a device of each kind has.
Result<std::pair<int64_t, int64_t>> largest_shares(const NodePair& kinds, double faster_s,
                                                   double older_s, int64_t whole) {
  std::vector<double> device_s(static_cast<size_t>(kinds.faster_devices), faster_s);
  device_s.insert(device_s.end(), static_cast<size_t>(kinds.slower_devices), older_s);
  ASSIGN_OR_RETURN(const std::vector<int64_t> shares, shares_by_speed(device_s, whole, 1));
  const auto slower = shares.begin() + kinds.faster_devices;
  return std::pair{*std::max_element(shares.begin(), slower),
                   *std::max_element(slower, shares.end())};
}

// Seconds of the parts of one layer, for the slowest device of each kind.
struct LayerTimes {
  PassSeconds attention[2], experts[2];
  double gather_s = 0;     // weights, or rows
  double gradients_s = 0;  // data-centric: of weights, to where they rest
  double outputs_s = 0;    // model-centric: of all devices, summed
  double sum_s = 0;        // attention's gradients
};

class SharedQueue {
 public:
  SharedQueue(const LayerTimes& times, bool data_centric)
      : times_(times), data_centric_(data_centric) {}

  std::vector<StreamTask> take(int32_t layers, const std::array<double, 2>& head_s);

 private:
  using After = std::array<int32_t, 3>;

  int32_t add(int32_t stream, double seconds, After after) {
    tasks_.push_back({stream, seconds, after});
    return static_cast<int32_t>(tasks_.size()) - 1;
  }
  void attention(bool backward);
  void data_layer(bool backward);
  void model_layer(bool backward);
  void layer(bool backward) { data_centric_ ? data_layer(backward) : model_layer(backward); }

  const LayerTimes& times_;
  const bool data_centric_;
  std::vector<StreamTask> tasks_;
  After before_ = {-1, -1, -1};    // what the next piece of each kind waits for
  After earlier_ = {-1, -1, -1};   // experts of the layer before, whose weights must go first
};

void SharedQueue::attention(bool backward) {
  After done = {-1, -1, -1};
  for (int32_t kind : {kNewer, kOlder}) {
    const PassSeconds& pass = times_.attention[kind];
    // A device goes on by itself; rows that were exchanged are before_[2].
    done[static_cast<size_t>(kind)] =
        add(kind, backward ? pass.backward_s : pass.forward_s,
            {before_[static_cast<size_t>(kind)], before_[2], -1});
  }
  before_ = done;
}

// Weights of a layer come while the layer before works.
void SharedQueue::data_layer(bool backward) {
  const int32_t weights = add(kTransfers, times_.gather_s, earlier_);
  earlier_ = before_;
  for (int32_t kind : {kNewer, kOlder}) {
    const auto k = static_cast<size_t>(kind);
    const PassSeconds& pass = times_.experts[kind];
    before_[k] = add(kind, backward ? pass.backward_s : pass.forward_s,
                     {before_[k], weights, -1});
  }
  if (backward) add(kTransfers, times_.gradients_s, {before_[0], before_[1], -1});
}

// Rows are not kept: they are gathered again for the backward, and their gradients behind them.
void SharedQueue::model_layer(bool backward) {
  const int32_t rows = add(kTransfers, (backward ? 2 : 1) * times_.gather_s, before_);
  After done = {-1, -1, -1};
  for (int32_t kind : {kNewer, kOlder}) {
    const PassSeconds& pass = times_.experts[kind];
    done[static_cast<size_t>(kind)] =
        add(kind, backward ? pass.backward_s : pass.forward_s, {rows, -1, -1});
  }
  before_ = {-1, -1, add(kTransfers, times_.outputs_s, done)};
}

std::vector<StreamTask> SharedQueue::take(int32_t layers, const std::array<double, 2>& head_s) {
  for (int32_t i = 0; i < layers; ++i) {
    attention(false);
    layer(false);
  }
  const int32_t outputs = before_[2];
  for (int32_t kind : {kNewer, kOlder}) {
    const auto k = static_cast<size_t>(kind);
    before_[k] = add(kind, head_s[k], {before_[k], outputs, -1});
  }
  before_[2] = -1;
  for (int32_t i = 0; i < layers; ++i) {
    layer(true);
    attention(true);
    if (times_.sum_s > 0) add(kSums, times_.sum_s, before_);
  }
  return std::move(tasks_);
}

}  // namespace

Result<SharedStep> shared_step(const ModelShape& model, const ClusterSheet& cluster,
                               const NodePair& kinds, const ClusterDemand& demand,
                               ExpertSharing sharing) {
  if (sharing == ExpertSharing::kRows) {
    return Status(Exit::kUsage, "rows that are exchanged share no expert; take another strategy");
  }
  const HeterogeneousStep step = heterogeneous_step(model, cluster, kinds, demand);
  const bool data_centric = sharing == ExpertSharing::kDataCentric;
  const std::array<const DeviceKind*, 2> of = {&step.faster, &step.slower};
  const auto sequence_s = [&](const DeviceKind& kind) {
    return kind.attention.both_s() + (data_centric ? kind.experts.both_s() : 0);
  };
  ASSIGN_OR_RETURN(const auto sequences, largest_shares(kinds, sequence_s(step.faster),
                                                        sequence_s(step.slower), demand.sequences));
  ASSIGN_OR_RETURN(const auto hidden,
                   largest_shares(kinds, step.faster.experts.both_s(), step.slower.experts.both_s(),
                                  model.expert_ffn));
  SharedStep shared;
  shared.sharing = sharing;
  shared.faster = {sequences.first, hidden.first};
  shared.slower = {sequences.second, hidden.second};
  const double others = 1 - 1.0 / (kinds.faster_devices + kinds.slower_devices);
  const auto transfer_s = [&](double bytes) {
    return step.latency_s + bytes * others / step.link_bytes_per_s;
  };
  LayerTimes times;
  std::array<double, 2> head_s = {};
  for (size_t k = 0; k < 2; ++k) {
    const KindShare& share = k == 0 ? shared.faster : shared.slower;
    const double batch = static_cast<double>(share.sequences) /
                         static_cast<double>(demand.sequences);
    const double columns = static_cast<double>(share.hidden) /
                           static_cast<double>(model.expert_ffn);
    times.attention[k] = of[k]->attention * batch + of[k]->attention_once;
    times.experts[k] = data_centric ? of[k]->experts * batch + of[k]->experts_once
                                    : (of[k]->experts + of[k]->experts_once) * columns;
    head_s[k] = of[k]->head_s * batch + of[k]->head_once_s;
  }
  times.gather_s = transfer_s(data_centric ? step.expert_gradient_bytes : step.boundary_bytes);
  times.gradients_s = transfer_s(step.expert_gradient_bytes);
  times.outputs_s = transfer_s(2 * step.boundary_bytes);
  times.sum_s = transfer_s(2 * step.attention_gradient_bytes);
  shared.streams.streams = {
      {"faster devices", StreamUse::kComputing},
      {"slower devices", StreamUse::kComputing},
      {data_centric ? "weights and gradients" : "rows of all", StreamUse::kTransfer},
      {"sums of gradients", StreamUse::kSums}};
  shared.streams.tasks = SharedQueue(times, data_centric).take(step.layers, head_s);
  shared.streams.times = time_streams(shared.streams.tasks, 4);
  return shared;
}

NodePairBytes shared_bytes(const ModelShape& model, const ModelCost& cost,
                           const ClusterDemand& demand, const SharedStep& step,
                           const StateChoice& state) {
  const LayerCost& layer = cost.layers.front();
  const auto layers = static_cast<double>(cost.layers.size());
  const auto experts = static_cast<double>(layer.num_experts * layer.expert_parameters);
  double dense = static_cast<double>(cost.embedding_parameters + cost.head_parameters);
  dense += layers * static_cast<double>(layer.replicated_parameters);
  const double row = static_cast<double>(kValueBytes * cost.hidden_size);
  const auto k = static_cast<double>(layer.experts_per_token);
  const bool data_centric = step.sharing == ExpertSharing::kDataCentric;
  const auto of = [&](const KindShare& share, DeviceParameters& parameters) {
    const double own = static_cast<double>(share.sequences * demand.sequence_len);
    const double all = static_cast<double>(demand.sequences * demand.sequence_len);
    const double columns =
        static_cast<double>(share.hidden) / static_cast<double>(model.expert_ffn);
    parameters = {dense + layers * experts * columns,
                  2 + layers * (1 + static_cast<double>(layer.num_experts))};
    const double token_room = own * static_cast<double>(layer.token_bytes + 2 * layer.heads);
    const double rows_room =
        data_centric ? own * k * static_cast<double>(layer.row_bytes)
                     : all * k * (columns * static_cast<double>(layer.row_bytes) + 2 * row) +
                           2 * (all - own) * row;
    constexpr double kPassing = 2 + 1;  // layers: weights of two, gradients of one
    const double passing = data_centric ? kPassing * kValueBytes * experts : 0;
    return parameters.parameters * state.device_bytes() + layers * own * row + token_room +
           rows_room + passing;
  };
  NodePairBytes bytes;
  bytes.faster = of(step.faster, bytes.faster_parameters);
  bytes.slower = of(step.slower, bytes.slower_parameters);
  return bytes;
}

}  // namespace pagoda
