#include "plan/machine/task_costs.h"

#include <algorithm>

#include "base/bytes.h"

namespace pagoda {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr double kValue = 2, kSum = 4;  // bytes of an activation, and of what is summed in fp32

class Costs {
 public:
  Costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
        const StepWork& work);

  MachineProfile profile() const;

 private:
  // Operations, weights read beside them, and bytes moved, each of one unit but the weights.
  struct Piece {
    double flops = 0, score_flops = 0, bytes = 0, link_bytes = 0;
    double weight_bytes = 0;  // weights of a task, whatever its units
  };
  Cost of(const Piece& piece, double together) const { return of(piece, together, together); }
  Cost of(const Piece& piece, double together, double launches) const;
  void attention(MachineProfile& p) const;
  void rows(MachineProfile& p) const;
  double experts_in_group() const;
  void tables(MachineProfile& p) const;
  void updates(MachineProfile& p) const;
  void moves(MachineProfile& p) const;
  double mean(bool moe, const auto& of) const;
  double score_s(double flops) const;
  double ring_bytes(double elements) const;

  const MachineSheet& sheet_;
  const ModelShape& model_;
  const RunShape& run_;
  const StepWork& work_;
  const double d_, value_;
  double cores_;         // cores that a task of the device takes
  double crossing_ = 0;  // share of rows that go to another device
};

Costs::Costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
             const StepWork& work)
    : sheet_(sheet),
      model_(model),
      run_(run),
      work_(work),
      d_(static_cast<double>(model.hidden_size)),
      value_(static_cast<double>(run.dtype_bytes)),
      cores_(sheet.gpu() ? 0 : sheet.host.cores) {
  const auto peers = static_cast<double>(work.peers);
  crossing_ = (peers - 1) / peers;
}

double Costs::score_s(double flops) const {
  const auto s = static_cast<double>(work_.sequence_len);
  const double rate =
      sheet_.device.attention_tflops * kTera * s / (s + sheet_.device.attention_half_tokens);
  return flops / rate;
}

Cost Costs::of(const Piece& piece, double together, double launches) const {
  const MachineSheet::Device& d = sheet_.device;
  Cost cost;
  cost.cores = cores_;
  cost.unit_s = piece.flops / (d.gemm_tflops * kTera) + score_s(piece.score_flops) +
                piece.bytes / (d.memory_gb_s * kGiga);
  double latency_us = d.launch_us;
  if (piece.link_bytes > 0) {
    const double link_s = piece.link_bytes / (sheet_.link.gb_s * kGiga);
    cost.unit_s += link_s;
    cost.link = link_s / cost.unit_s;
    latency_us += sheet_.link.latency_us;
  }
  cost.fixed_s = together * piece.weight_bytes / (d.weight_gb_s * kGiga) +
                 launches * kMicro * latency_us;
  return cost;
}

// Over the layers with experts, or without.
double Costs::mean(bool moe, const auto& of) const {
  double sum = 0, count = 0;
  for (int64_t l = 0; l < model_.num_layers(); ++l) {
    if ((model_.is_moe[static_cast<size_t>(l)] != 0) != moe) continue;
    sum += static_cast<double>(of(layer_parameters(model_, l)));
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// The bytes that each of the peers sends in a ring that sums these gradients.
double Costs::ring_bytes(double elements) const { return 2 * crossing_ * elements * value_; }

void Costs::attention(MachineProfile& p) const {
  const auto m = static_cast<double>(work_.coarseness.microbatches);
  const auto s = static_cast<double>(work_.sequence_len);
  const AttentionSizes& a = model_.attention;
  const auto width = static_cast<double>(a.heads * (a.head_dim + a.value_head_dim));
  const double parameters = static_cast<double>(layer_parameters(model_, 0).attention);
  const double scores = 2 * width * (s + 1) / 2;
  const double bytes = kValue * (4 * d_ + 3 * width);
  const double weights = parameters * value_;
  p.of(TaskKind::kAttention) = of({2 * parameters, scores, bytes, 0, weights}, m);
  p.of(TaskKind::kCachedAttention) = p.of(TaskKind::kAttention);
  const double again = 1 - work_.kept_share;
  p.of(TaskKind::kAttentionBackward) =
      of({(4 + 2 * again) * parameters, (2.5 + again) * scores, (2 + again) * bytes, 0,
          (2 + again) * weights},
         m);
  const double dense = mean(false, [](const LayerParameters& l) { return l.feed_forward; });
  p.of(TaskKind::kDenseMlp) = of({2 * dense, 0, 8 * d_, 0, dense * value_}, m);
  const double products = 2 + again * 2 / 3;  // products with all three weights
  p.of(TaskKind::kDenseMlpBackward) =
      of({2 * products * dense, 0, 24 * d_, 0, products * dense * value_}, m);
  const double router = mean(true, [](const LayerParameters& l) { return l.router; });
  const double shared = mean(true, [](const LayerParameters& l) { return l.feed_forward; });
  p.of(TaskKind::kRoute) =
      of({2 * (router + shared), 0, 12 * d_, 0, (router + shared) * value_}, m);
  p.of(TaskKind::kRouteReplay) = of({2 * router, 0, 12 * d_, 0, router * value_}, m);
  p.of(TaskKind::kRouteBackward) =
      of({4 * router + 2 * products * shared, 0, 24 * d_, 0,
          (2 * router + products * shared) * value_},
         m);
  p.of(TaskKind::kResidual) = of({0, 0, (2 * kValue + kSum) * d_, 0, 0}, m);
  p.of(TaskKind::kIndex) = of({0, 0, 16, 0, 0}, m);
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
  const auto f = static_cast<double>(model_.expert_ffn);
  const double parameters = mean(true, [](const LayerParameters& l) { return l.expert; });
  const auto tasks = static_cast<double>(c.experts * div_ceil(c.blocks, work_.group_blocks));
  const double launches = tasks / experts_in_group();
  const double parts = work_.dispatches;
  const double wire = crossing_ * value_ * d_;
  p.of(TaskKind::kDispatch) = of({0, 0, 2 * kValue * d_, wire, 0}, parts);
  p.of(TaskKind::kDispatchBackward) = of({0, 0, 4 * kValue * d_, 2 * wire, 0}, parts);
  p.of(TaskKind::kCombine) = of({0, 0, 3 * kSum * d_, wire, 0}, parts);
  p.of(TaskKind::kCombineBackward) = p.of(TaskKind::kCombine);
  const double weights = parameters * value_;
  p.of(TaskKind::kExpert) =
      of({2 * parameters, 0, kValue * (2 * d_ + 3 * f), 0, weights}, tasks, launches);
  const double again = 1 - work_.kept_share;
  const double backward = 4 * parameters + 4 * again * d_ * f;
  const double read = (4 + 2 * again) / 3 * weights;
  p.of(TaskKind::kExpertBackward) = of(
      {backward, 0, kValue * (4 * d_ + 5 * f), 0, read + 2 * kSum * parameters}, tasks, launches);
}

void Costs::tables(MachineProfile& p) const {
  const auto m = static_cast<double>(work_.coarseness.microbatches);
  const auto vocab = static_cast<double>(model_.vocab_size);
  const double table = vocab * d_;
  const double logits = vocab * (kSum + value_);
  p.of(TaskKind::kEmbed) = of({0, 0, 2 * kValue * d_, 0, 0}, m);
  p.of(TaskKind::kEmbedBackward) = of({0, 0, 2 * kSum * d_, 0, 0}, m);
  p.of(TaskKind::kLoss) = of({2 * table, 0, logits, 0, table * value_}, m);
  p.of(TaskKind::kLogits) = p.of(TaskKind::kLoss);
  p.of(TaskKind::kHead) = of({6 * table, 0, 2 * logits, 0, 3 * table * value_}, m);
}

// A ring sums the gradients that all peers have of a dense record; those of experts are each one's.
void Costs::updates(MachineProfile& p) const {
  double elements = 0, dense = 0, state = 0;
  for (const RecordShape& record : run_.records) {
    elements += static_cast<double>(record.num_elements);
    state += static_cast<double>(record.state_bytes);
    if (record.expert < 0) dense += static_cast<double>(record.num_elements);
  }
  const double dense_share = dense / std::max(1.0, elements);
  const auto experts = static_cast<double>(work_.coarseness.experts);
  const double not_ours = crossing_ * dense_share;  // peers share the updates of dense records
  p.of(TaskKind::kGradient) =
      of({0, 0, kSum + value_, ring_bytes(dense_share), 0}, experts);
  const double moved =
      3 * value_ * (1 - not_ours) + 2 * state / std::max(1.0, elements);
  if (work_.state_on_device) {
    Cost& adam = p.of(TaskKind::kAdam);
    adam = of({0, 0, moved, 0, 0}, experts);
    const double measured = sheet_.gpu() ? sheet_.device.adam_gb_s : 0;
    if (measured > 0) adam.unit_s = moved / (measured * kGiga);
    return;
  }
  p.of(TaskKind::kAdam) = {0, moved / (sheet_.host.adam_gb_s * kGiga), sheet_.host.cores};
}

void Costs::moves(MachineProfile& p) const {
  const double cores = sheet_.gpu() ? 0 : 1;  // the thread that copies
  p.upload = p.download = {0, 1 / (sheet_.host.copy_gb_s * kGiga), cores};
  p.checksum = {0, 1 / (sheet_.host.checksum_gb_s * kGiga), 1};
  const auto drives = static_cast<double>(sheet_.disk.drives);
  p.read = {0, 1 / (sheet_.disk.read_gb_s * drives * kGiga), 0};
  p.write = {0, 1 / (sheet_.disk.write_gb_s * drives * kGiga), 0};
  p.half_duplex = sheet_.disk.half_duplex;
  p.completion_s = kMicro * sheet_.disk.latency_us;
}

MachineProfile Costs::profile() const {
  MachineProfile p;
  p.cores = sheet_.host.cores;
  for (Cost& cost : p.tasks) cost.cores = cores_;
  attention(p);
  rows(p);
  tables(p);
  updates(p);
  moves(p);
  // The thread that issues goes on as soon as a launch takes.
  p.wake_up_s = kMicro * sheet_.device.launch_us;
  p.of(TaskKind::kPrefetch) = p.of(TaskKind::kUpload) = {};
  return p;
}

}  // namespace

MachineProfile task_costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
                          const StepWork& work) {
  return Costs(sheet, model, run, work).profile();
}

}  // namespace pagoda
