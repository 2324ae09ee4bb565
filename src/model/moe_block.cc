#include "model/blocks.h"

#include <algorithm>

namespace pagoda {

RouterShape Blocks::router_shape() const {
  RouterShape shape;
  shape.num_experts = c_.num_experts;
  shape.k = c_.experts_per_token;
  shape.renormalise = c_.norm_topk_prob;
  shape.sigmoid = c_.family->sigmoid_router;
  shape.scale = static_cast<float>(c_.routed_scaling_factor);
  shape.least_sum = c_.family->least_sum;
  shape.groups = c_.expert_groups;
  shape.groups_chosen = c_.expert_groups_chosen;
  shape.group_by_best = c_.family->groups_by_best;
  return shape;
}

void Blocks::route(int64_t layer, int64_t b, const void* weights, const void* middle,
                   int32_t* choices, bool replay, const LayerBuffers& in, const Workspace& w,
                   Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const int64_t choices_bytes = t * k * static_cast<int64_t>(sizeof(int32_t));
  const LayerOffsets& o = offsets_[layer];
  int32_t* experts = w.experts + b * t * k;
  ops_.rmsnorm(dt_, middle, at(weights, o.norm2), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               in.normed, in.rstd, s);
  if (o.router_bias >= 0) {
    ops_.linear_biased(dt_, in.normed, at(weights, o.router), at(weights, o.router_bias), t, d, e,
                       DType::kF32, in.probs, s);
  } else {
    ops_.linear(dt_, in.normed, at(weights, o.router), t, d, e, DType::kF32, in.probs, s);
  }
  if (w.log_sums != nullptr) {
    ops_.log_sums(in.probs, w.padding + b * t, t, e, w.log_sums + b * t, w.log_squares + b, s);
  }
  if (replay) s.copy(experts, choices, choices_bytes);
  const uint8_t* padding = replay ? nullptr : w.padding + b * t;
  const void* correction = o.correction >= 0 ? at(weights, o.correction) : nullptr;
  ops_.route(router_shape(), in.probs, dt_, correction, padding, t, replay, in.probs, experts,
             w.weights + b * t * k, w.counts + b * e, w.prob_sums + b * e, s);
  if (!replay) s.copy(choices, experts, choices_bytes);
}

void Blocks::shared_gates(const LayerOffsets& o, const void* weights, const void* rows,
                          const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  ops_.linear(dt_, rows, at(weights, o.shared_gate), t, d, 1, DType::kF32, w.mlp.gate, s);
  ops_.sigmoid(w.mlp.gate, t, w.mlp.gate, s);
}

void Blocks::begin_sum(int64_t layer, int64_t b, const void* weights, const LayerBuffers& in,
                       const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, f = c_.shared_intermediate_size;
  if (f == 0) return ops_.fill_zero(in.sum, t * d * 4, s);
  const LayerOffsets& o = offsets_[layer];
  if (c_.shared_gate) shared_gates(o, weights, in.normed, w, s);
  mlp_inner(o, weights, in.normed, f, w.mlp_of(layer, b), s);
  ops_.linear(dt_, w.mlp.act, at(weights, o.down), t, f, d, DType::kF32, in.sum, s);
  if (c_.shared_gate) ops_.scale_rows(w.mlp.gate, t, d, in.sum, s);
}

// The shared expert's gate is to it what a routing weight is to an expert, so swiglu_backward gives
// its gradient too.
void Blocks::begin_sum_backward(int64_t layer, int64_t b, const void* weights,
                                const LayerBuffers& in, GradientSum grad_sum, const Workspace& w,
                                Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, f = c_.shared_intermediate_size;
  float *grad = grad_sum.data, *sum = in.sum;
  ops_.fill_zero(w.dweights + b * t * c_.experts_per_token, t * c_.experts_per_token * 4, s);
  if (f == 0) return ops_.fill_zero(sum, t * d * 4, s);
  const int64_t shared = shared_elements_[layer];
  if (grad_sum.first) ops_.fill_zero(grad + record_elements_[layer] - shared, shared * 4, s);
  const LayerOffsets& o = offsets_[layer];
  const void *normed = in.normed, *dout = in.dresidual;
  if (c_.shared_gate) shared_gates(o, weights, normed, w, s);
  void* gate_up = w.mlp_of(layer, b).gate_up;
  if (!w.keeps(layer)) {
    ops_.linear(dt_, normed, at(weights, o.gate_up), t, d, 2 * f, dt_, gate_up, s);
  }
  ops_.linear_backward_input(dt_, dout, at(weights, o.down), t, f, d, dt_, w.mlp.dact, s);
  ops_.swiglu_backward(dt_, {}, gate_up, w.mlp.dact, c_.shared_gate ? w.mlp.gate : nullptr, t, f,
                       gate_up, w.mlp.act, w.mlp.dgate, s);
  const int64_t record = table_.layer(layer);
  matrix_gradient({record, o.down, f, d}, dout, w.mlp.act, t, grad, s);
  matrix_gradient({record, o.gate_up, d, 2 * f}, gate_up, normed, t, grad, s);
  ops_.linear_backward_input(dt_, gate_up, at(weights, o.gate_up), t, d, 2 * f, DType::kF32, sum,
                             s);
  if (c_.shared_gate) shared_gates_backward(layer, weights, normed, grad, sum, w, s);
}

// From the gradient of the gates in w.mlp.dgate; adds that of the rows to `sum`.
void Blocks::shared_gates_backward(int64_t layer, const void* weights, const void* rows,
                                   float* grad, float* sum, const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const LayerOffsets& o = offsets_[layer];
  ops_.sigmoid_backward(dt_, w.mlp.gate, w.mlp.dgate, t, w.mlp.dlogits, s);
  matrix_gradient({table_.layer(layer), o.shared_gate, d, 1}, w.mlp.dlogits, rows, t, grad, s);
  ops_.linear_backward_input(dt_, w.mlp.dlogits, at(weights, o.shared_gate), t, d, 1, dt_,
                             w.dnormed, s);
  ops_.add(DType::kF32, sum, dt_, w.dnormed, t * d, sum, s);
}

void Blocks::route_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                            const LayerBuffers& in, GradientSum sum, float z_slope,
                            const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const LayerOffsets& o = offsets_[layer];
  const float* log_sums = w.log_sums != nullptr ? w.log_sums + b * t : nullptr;
  float* grad = sum.data;
  if (sum.first) {
    ops_.fill_zero(grad, (record_elements_[layer] - shared_elements_[layer]) * 4, s);
  }
  ops_.route_backward(dt_, router_shape(), in.probs, w.experts + b * t * k, w.weights + b * t * k,
                      w.dweights + b * t * k, w.aux_grad + b * e, log_sums, z_slope, t, w.dlogits,
                      s);
  matrix_gradient({table_.layer(layer), o.router, d, e}, w.dlogits, in.normed, t, grad, s);
  if (o.router_bias >= 0) ops_.bias_backward(dt_, w.dlogits, t, e, grad + o.router_bias, s);
  ops_.linear_backward_input(dt_, w.dlogits, at(weights, o.router), t, d, e, dt_, w.dnormed, s);
  ops_.add(dt_, w.dnormed, DType::kF32, in.sum, t * d, w.dnormed, s);
  ops_.rmsnorm_backward(dt_, middle, at(weights, o.norm2), in.rstd, w.dnormed, t, 1, d, d,
                        w.dnormed, grad + o.norm2, s);
  ops_.add(dt_, in.dresidual, dt_, w.dnormed, t * d, in.dresidual, s);
}

void Blocks::residual(const void* middle, const float* sum, void* next, Stream& s) const {
  const int64_t n = size_.microbatch_tokens * c_.hidden_size;
  ops_.add(dt_, middle, DType::kF32, sum, n, next, s);
}

// The parts of an inbound and an outbound page (plan/step/pages.h) of `rows` rows.
namespace {
int64_t outbound_scale(int64_t rows, int64_t d) { return rows * d; }     // elements

int64_t computed_rows(std::span<const GroupExpert> group) {
  int64_t rows = 0;
  for (const GroupExpert& e : group) rows += e.rows.computed();
  return rows;
}
}  // namespace

// The rows that `index` names in the runs, and zeros behind them.
void Blocks::gather_padded(DType dt, const void* from, const int32_t* index,
                           std::span<const RowRun> runs, Padding padding, int64_t dim, void* group,
                           Stream& s) const {
  if (!runs.empty()) ops_.gather_row_runs(dt, from, index, runs, dim, group, s);
  if (padding.count == 0) return;
  const int64_t row_bytes = dim * dtype_bytes(dt);
  ops_.fill_zero(static_cast<std::byte*>(group) + padding.at * row_bytes, padding.count * row_bytes,
                 s);
}

void Blocks::dispatch(std::span<const RowRun> runs, int64_t group_rows, Padding padding, int64_t b,
                      const LayerBuffers& in, void* inbound, RowArrays arrays, const Workspace& w,
                      Stream& s) const {
  const int64_t d = c_.hidden_size;
  if (arrays != RowArrays::kGradients) {
    gather_padded(dt_, in.normed, w.rows, runs, padding, d, inbound, s);
    inbound = at(inbound, group_rows * d);
  }
  if (arrays == RowArrays::kInputs) return;
  const int64_t first_choice = std::max<int64_t>(b, 0) * size_.microbatch_tokens *
                               c_.experts_per_token;
  const float* weights = w.weights + first_choice;
  gather_padded(dt_, in.dresidual, w.rows, runs, padding, d, inbound, s);
  gather_padded(DType::kF32, weights, w.choices, runs, padding, 1, at(inbound, group_rows * d), s);
}

void Blocks::locate(std::span<const RowRun> runs, int64_t b, const LayerBuffers& in, bool backward,
                    const Workspace& w, const ExpertSpace& e, Stream& s) const {
  const int64_t d = c_.hidden_size;
  ops_.locate_rows(dt_, in.normed, w.rows, runs, d, e.input_rows, s);
  if (backward) ops_.locate_rows(dt_, in.dresidual, w.rows, runs, d, e.gradient_rows, s);
  if (in.sum != nullptr) ops_.locate_rows(DType::kF32, in.sum, w.rows, runs, d, e.sum_rows, s);
  if (!backward && in.sum == nullptr) return;
  const float* weights = w.weights + b * size_.microbatch_tokens * c_.experts_per_token;
  ops_.gather_row_runs(DType::kF32, weights, w.choices, runs, 1, e.scale, s);
}

void Blocks::take_weight_gradients(std::span<const RowRun> runs, int64_t b, const Workspace& w,
                                   const ExpertSpace& e, Stream& s) const {
  float* dweights = w.dweights + b * size_.microbatch_tokens * c_.experts_per_token;
  ops_.scatter_add_row_runs(DType::kF32, e.dscale, w.choices, nullptr, runs, 1, dweights, s);
}

void Blocks::locate_inbound(std::span<const RowRun> runs, int64_t group_rows,
                            const Inbound& inbound, bool backward, const ExpertSpace& e,
                            Stream& s) const {
  const int64_t d = c_.hidden_size;
  const ExpertInput all = expert_input(group_rows, inbound, e);
  ops_.locate_rows(dt_, all.rows.dense, nullptr, runs, d, e.input_rows, s);
  if (!backward) return;
  ops_.locate_rows(dt_, all.gradients.dense, nullptr, runs, d, e.gradient_rows, s);
  ops_.copy_row_runs(DType::kF32, all.scale, runs, 1, e.scale, s);
}

Blocks::ExpertInput Blocks::expert_input(int64_t group_rows, const Inbound& inbound,
                                         const ExpertSpace& w) const {
  if (inbound.rows == nullptr) {
    return {InputRows::at(w.input_rows), InputRows::at(w.gradient_rows), w.scale};
  }
  const int64_t elements = group_rows * c_.hidden_size;
  const bool stayed = inbound.kept != nullptr;
  const void* gradients = stayed ? inbound.rows : at(inbound.rows, elements);
  return {stayed ? inbound.kept : inbound.rows, gradients,
          static_cast<const float*>(at(gradients, elements))};
}

std::vector<int64_t> Blocks::row_bytes(RowArrays arrays) const {
  const int64_t row = c_.hidden_size * dtype_bytes(dt_);
  std::vector<int64_t> bytes = {row};
  if (arrays == RowArrays::kAll) bytes.push_back(row);
  if (arrays != RowArrays::kInputs) bytes.push_back(static_cast<int64_t>(sizeof(float)));
  return bytes;
}

void Blocks::place_rows(std::span<const RowRun> runs, int64_t parcel_rows, int64_t group_rows,
                        Padding padding, const void* parcel, void* inbound, RowArrays arrays,
                        Stream& s) const {
  const auto* from = static_cast<const std::byte*>(parcel);
  auto* to = static_cast<std::byte*>(inbound);
  for (const int64_t bytes : row_bytes(arrays)) {
    for (const RowRun& run : runs) {
      s.copy(to + run.to * bytes, from + run.from * bytes, run.count * bytes);
    }
    if (padding.count > 0) ops_.fill_zero(to + padding.at * bytes, padding.count * bytes, s);
    from += parcel_rows * bytes;
    to += group_rows * bytes;
  }
}

void Blocks::pack_rows(std::span<const RowRun> runs, int64_t group_rows, int64_t parcel_rows,
                       const void* outbound, void* parcel, bool backward, Stream& s) const {
  const auto* from = static_cast<const std::byte*>(outbound);
  auto* to = static_cast<std::byte*>(parcel);
  // Behind what experts give are gradients of the weights.
  for (const int64_t bytes : row_bytes(backward ? RowArrays::kGradients : RowArrays::kInputs)) {
    for (const RowRun& run : runs) {
      s.copy(to + run.to * bytes, from + run.from * bytes, run.count * bytes);
    }
    from += group_rows * bytes;
    to += parcel_rows * bytes;
  }
}

void* Blocks::gate_up_of(int64_t layer, std::span<const GroupExpert> group,
                         const ExpertSpace& w) const {
  if (layer < size_.first_kept(c_.num_layers)) return w.gate_up;
  for (const GroupExpert& e : group) {
    CHECK(e.rows.padding == 0, "rows beyond the layer's have no place where it keeps them");
  }
  // Places for the most columns that an expert has, whichever it is.
  return at(w.kept_gate_up[static_cast<size_t>(layer)],
            group.front().rows.first * 2 * c_.parts.most_columns(c_.moe_intermediate_size));
}

std::vector<Blocks::EqualExperts> Blocks::equal_experts(std::span<const GroupExpert> group) {
  std::vector<EqualExperts> equal;
  for (GroupExpert e : group) {
    if (equal.empty() || equal.back().f != e.columns) {
      equal.push_back({{}, e.rows.at, 0, e.columns});
    }
    equal.back().n += e.rows.computed();
    e.rows.at -= equal.back().at;
    equal.back().experts.push_back(e);
  }
  return equal;
}

SwigluShape Blocks::swiglu_shape() const {
  return {static_cast<float>(c_.swiglu_slope), static_cast<float>(c_.swiglu_limit),
          static_cast<float>(c_.swiglu_offset)};
}

std::vector<RowsOfWeight> Blocks::weights_of(std::span<const GroupExpert> group, int64_t element,
                                             int64_t bias) const {
  std::vector<RowsOfWeight> weights;
  for (const GroupExpert& e : group) {
    weights.push_back({e.rows.at, e.rows.computed(), at(e.weights, element),
                       bias >= 0 ? at(e.weights, bias) : nullptr});
  }
  return weights;
}

std::vector<RowsOfGradient> Blocks::gradients_of(std::span<const GroupExpert> group,
                                                 int64_t element) const {
  std::vector<RowsOfGradient> gradients;
  for (const GroupExpert& e : group) {
    gradients.push_back(
        {e.rows.at, e.rows.computed(), e.gradient + element, !e.first});
  }
  return gradients;
}

// Where the tensors of an expert's record of f columns lie (TensorTable), in elements; -1: it has
// no biases.
namespace {
struct ExpertOffsets {
  int64_t down = 0, gate_up_bias = -1, down_bias = -1;
};

ExpertOffsets expert_offsets(const ModelConfig& c, int64_t f) {
  const int64_t matrix = c.hidden_size * f;
  ExpertOffsets o{.down = 2 * matrix};
  if (!c.family->limited_experts) return o;
  o.gate_up_bias = 3 * matrix;
  o.down_bias = o.gate_up_bias + 2 * f;
  return o;
}
}  // namespace

OutputRows Blocks::expert_output(void* outbound, int64_t row, const float* scale,
                                 const ExpertSpace& w) const {
  const OutputRows all =
      outbound != nullptr ? OutputRows(outbound) : OutputRows::added(w.sum_rows, scale);
  return all.from(row, c_.hidden_size * dtype_bytes(dt_));
}

void Blocks::experts(int64_t layer, std::span<const GroupExpert> group, const Inbound& inbound,
                     void* outbound, const ExpertSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size, row_bytes = d * dtype_bytes(dt_);
  const ExpertInput all = expert_input(computed_rows(group), inbound, w);
  for (const EqualExperts& part : equal_experts(group)) {
    const int64_t f = part.f, n = part.n;
    const ExpertOffsets o = expert_offsets(c_, f);
    void* gate_up = gate_up_of(layer, part.experts, w);
    ops_.grouped_linear(dt_, all.rows.from(part.at, row_bytes),
                        weights_of(part.experts, 0, o.gate_up_bias), d, 2 * f, dt_, gate_up, s);
    ops_.swiglu(dt_, swiglu_shape(), gate_up, n, f, w.act, s);
    ops_.grouped_linear(dt_, w.act, weights_of(part.experts, o.down, o.down_bias), f, d, dt_,
                        expert_output(outbound, part.at, w.scale, w), s);
  }
}

void Blocks::experts_backward(int64_t layer, std::span<const GroupExpert> group,
                              const Inbound& inbound, void* outbound, const ExpertSpace& w,
                              Stream& s) const {
  const int64_t d = c_.hidden_size, n = computed_rows(group);
  const ExpertInput all = expert_input(n, inbound, w);
  float* dscale = w.dscale;
  if (outbound != nullptr) dscale = static_cast<float*>(at(outbound, outbound_scale(n, d)));
  for (const EqualExperts& part : equal_experts(group)) {
    experts_backward(layer, part, all.from(part.at, d * dtype_bytes(dt_)),
                     expert_output(outbound, part.at, nullptr, w), dscale + part.at, w, s);
  }
}

void Blocks::experts_backward(int64_t layer, const EqualExperts& group, const ExpertInput& input,
                              const OutputRows& dx, float* dscale, const ExpertSpace& w,
                              Stream& s) const {
  const int64_t d = c_.hidden_size, f = group.f, n = group.n;
  const std::vector<GroupExpert>& experts = group.experts;
  const ExpertOffsets o = expert_offsets(c_, f);
  void* gate_up = gate_up_of(layer, experts, w);
  if (gate_up == w.gate_up) {
    ops_.grouped_linear(dt_, input.rows, weights_of(experts, 0, o.gate_up_bias), d, 2 * f, dt_,
                        gate_up, s);
  }
  ops_.grouped_linear_backward_input(dt_, input.gradients, weights_of(experts, o.down), f, d, dt_,
                                     w.dact, s);
  ops_.swiglu_backward(dt_, swiglu_shape(), gate_up, w.dact, input.scale, n, f, gate_up, w.act,
                       dscale, s);
  if (o.down_bias >= 0) expert_biases_backward(group, gate_up, input, dscale, w, s);
  if (experts.front().gradient != nullptr) {
    ops_.grouped_linear_backward_weight(dt_, input.gradients, w.act, gradients_of(experts, o.down),
                                        f, d, s);
    ops_.grouped_linear_backward_weight(dt_, gate_up, input.rows, gradients_of(experts, 0), d,
                                        2 * f, s);
  }
  ops_.grouped_linear_backward_input(dt_, gate_up, weights_of(experts, 0), d, 2 * f, dt_, dx, s);
}

// A row of the output is weighted with its bias, so dout times the bias is part of the weight's
// gradient. A width of 2 (ModelConfig) makes room for (n) in w.dact.
void Blocks::expert_biases_backward(const EqualExperts& group, const void* dgate_up,
                                    const ExpertInput& input, float* dscale, const ExpertSpace& w,
                                    Stream& s) const {
  const int64_t d = c_.hidden_size, f = group.f, n = group.n;
  const ExpertOffsets o = expert_offsets(c_, f);
  if (group.experts.front().gradient != nullptr) {
    ops_.grouped_bias_backward(dt_, dgate_up, nullptr, gradients_of(group.experts, o.gate_up_bias),
                               2 * f, s);
    ops_.grouped_bias_backward(dt_, input.gradients, input.scale,
                               gradients_of(group.experts, o.down_bias), d, s);
  }
  auto* of_bias = static_cast<float*>(w.dact);
  ops_.grouped_linear(dt_, input.gradients, weights_of(group.experts, o.down_bias), d, 1,
                      DType::kF32, of_bias, s);
  ops_.add(DType::kF32, dscale, DType::kF32, of_bias, n, dscale, s);
}

void Blocks::combine(std::span<const RowRun> runs, int64_t group_rows, int64_t b,
                     const void* outbound, bool backward, float* sum, const Workspace& w,
                     Stream& s) const {
  const int64_t d = c_.hidden_size;
  if (runs.empty()) return;
  const int64_t first_choice = b * size_.microbatch_tokens * c_.experts_per_token;
  if (!backward) {
    ops_.gather_row_runs(DType::kF32, w.weights + first_choice, w.choices, runs, 1, w.scale, s);
    ops_.scatter_add_row_runs(dt_, outbound, w.rows, w.scale, runs, d, sum, s);
    return;
  }
  const void* dscale = at(outbound, outbound_scale(group_rows, d));
  ops_.scatter_add_row_runs(dt_, outbound, w.rows, nullptr, runs, d, sum, s);
  ops_.scatter_add_row_runs(DType::kF32, dscale, w.choices, nullptr, runs, 1,
                            w.dweights + first_choice, s);
}

}  // namespace pagoda
