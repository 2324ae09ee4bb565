#include "model/blocks.h"

#include <algorithm>

namespace pagoda {

void Blocks::route(int64_t layer, int64_t b, const void* weights, const void* middle,
                   int32_t* choices, bool replay, const InLayer& in, const StepSpace& w,
                   Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const int64_t choices_bytes = t * k * static_cast<int64_t>(sizeof(int32_t));
  const LayerOffsets& o = offsets_[layer];
  int32_t* experts = w.experts + b * t * k;
  ops_.rmsnorm(dt_, middle, at(weights, o.norm2), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               in.normed, in.rstd, s);
  ops_.linear(dt_, in.normed, at(weights, o.router), t, d, e, DType::kF32, in.probs, s);
  if (replay) s.copy(experts, choices, choices_bytes);
  const uint8_t* padding = replay ? nullptr : w.padding + b * t;
  ops_.route(in.probs, padding, t, e, k, c_.norm_topk_prob, replay, in.probs, experts,
             w.weights + b * t * k, w.counts + b * e, w.prob_sums + b * e, s);
  if (!replay) s.copy(choices, experts, choices_bytes);
}

void Blocks::begin_sum(int64_t layer, int64_t b, const void* weights, const InLayer& in,
                       const StepSpace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, f = c_.shared_intermediate_size;
  if (f == 0) return ops_.fill_zero(in.sum, t * d * 4, s);
  const LayerOffsets& o = offsets_[layer];
  ops_.linear(dt_, in.normed, at(weights, o.shared_gate), t, d, 1, DType::kF32, w.mlp.gate, s);
  ops_.sigmoid(w.mlp.gate, t, w.mlp.gate, s);
  mlp_inner(o, weights, in.normed, f, w.mlp_of(layer, b), s);
  ops_.linear(dt_, w.mlp.act, at(weights, o.down), t, f, d, DType::kF32, in.sum, s);
  ops_.scale_rows(w.mlp.gate, t, d, in.sum, s);
}

// The shared expert's gate is to it what a routing weight is to an expert, so swiglu_backward gives
// its gradient too.
void Blocks::begin_sum_backward(int64_t layer, int64_t b, const void* weights, const InLayer& in,
                                const StepSpace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, f = c_.shared_intermediate_size;
  float *grad = w.layer_grad, *sum = in.sum;
  ops_.fill_zero(w.dweights + b * t * c_.experts_per_token, t * c_.experts_per_token * 4, s);
  if (b == 0) ops_.fill_zero(grad, record_elements_[layer] * 4, s);
  if (f == 0) return ops_.fill_zero(sum, t * d * 4, s);
  const LayerOffsets& o = offsets_[layer];
  const void *normed = in.normed, *dout = in.dresidual;
  ops_.linear(dt_, normed, at(weights, o.shared_gate), t, d, 1, DType::kF32, w.mlp.gate, s);
  ops_.sigmoid(w.mlp.gate, t, w.mlp.gate, s);
  void* gate_up = w.mlp_of(layer, b).gate_up;
  if (!w.keeps(layer)) {
    ops_.linear(dt_, normed, at(weights, o.gate_up), t, d, 2 * f, dt_, gate_up, s);
  }
  ops_.linear_backward_input(dt_, dout, at(weights, o.down), t, f, d, dt_, w.mlp.dact, s);
  ops_.swiglu_backward(dt_, gate_up, w.mlp.dact, w.mlp.gate, t, f, gate_up, w.mlp.act, w.mlp.dgate,
                       s);
  ops_.linear_backward_weight(dt_, dout, w.mlp.act, t, f, d, true, grad + o.down, s);
  ops_.linear_backward_weight(dt_, gate_up, normed, t, d, 2 * f, true, grad + o.gate_up, s);
  ops_.sigmoid_backward(dt_, w.mlp.gate, w.mlp.dgate, t, w.mlp.dlogits, s);
  ops_.linear_backward_weight(dt_, w.mlp.dlogits, normed, t, d, 1, true, grad + o.shared_gate, s);
  ops_.linear_backward_input(dt_, gate_up, at(weights, o.gate_up), t, d, 2 * f, DType::kF32, sum,
                             s);
  ops_.linear_backward_input(dt_, w.mlp.dlogits, at(weights, o.shared_gate), t, d, 1, dt_,
                             w.dnormed, s);
  ops_.add(DType::kF32, sum, dt_, w.dnormed, t * d, sum, s);
}

void Blocks::route_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                            const InLayer& in, const StepSpace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const LayerOffsets& o = offsets_[layer];
  float* grad = w.layer_grad;
  ops_.route_backward(dt_, in.probs, w.experts + b * t * k, w.weights + b * t * k,
                      w.dweights + b * t * k, w.aux_grad + b * e, t, e, k, c_.norm_topk_prob,
                      w.dlogits, s);
  ops_.linear_backward_weight(dt_, w.dlogits, in.normed, t, d, e, true, grad + o.router, s);
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

namespace {
// Parts of an inbound and an outbound page (plan/pages.h).
int64_t inbound_gradient(int64_t d) { return kRowBlock * d; }      // elements
int64_t inbound_scale(int64_t d) { return 2 * kRowBlock * d; }     // elements
int64_t outbound_scale(int64_t d) { return kRowBlock * d; }        // floats
}  // namespace

// The rows that `index` names from rows.first on, and zeros behind them.
void Blocks::gather_padded(DType dt, const void* from, const int32_t* index, BlockRows rows,
                           int64_t dim, void* block, Stream& s) const {
  const int64_t row_bytes = dim * dtype_bytes(dt);
  std::byte* out = static_cast<std::byte*>(block) + rows.at * row_bytes;
  if (rows.count > 0) ops_.gather_rows(dt, from, index + rows.first, rows.count, dim, out, s);
  if (rows.padding == 0) return;
  ops_.fill_zero(out + rows.count * row_bytes, rows.padding * row_bytes, s);
}

void Blocks::dispatch(BlockRows rows, int64_t b, const InLayer& in, void* inbound, bool backward,
                      const StepSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size;
  gather_padded(dt_, in.normed, w.rows, rows, d, inbound, s);
  if (!backward) return;
  const int64_t first_choice = std::max<int64_t>(b, 0) * size_.microbatch_tokens *
                               c_.experts_per_token;
  const float* weights = w.weights + first_choice;
  gather_padded(dt_, in.dresidual, w.rows, rows, d, at(inbound, inbound_gradient(d)), s);
  gather_padded(DType::kF32, weights, w.choices, rows, 1, at(inbound, inbound_scale(d)), s);
}

void* Blocks::gate_up_of(int64_t layer, BlockRows rows, const ExpertSpace& w) const {
  if (layer < size_.first_kept(c_)) return w.gate_up;
  CHECK(rows.padding == 0, "rows beyond the layer's have no place where it keeps them");
  return at(w.kept_gate_up[static_cast<size_t>(layer)],
            rows.first * 2 * c_.moe_intermediate_size);
}

void Blocks::expert(int64_t layer, const void* weights, const void* inbound, BlockRows rows,
                    void* outbound, const ExpertSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size, f = c_.moe_intermediate_size, n = rows.computed();
  void* gate_up = gate_up_of(layer, rows, w);
  ops_.linear(dt_, inbound, weights, n, d, 2 * f, dt_, gate_up, s);
  ops_.swiglu(dt_, gate_up, n, f, w.act, s);
  ops_.linear(dt_, w.act, at(weights, 2 * f * d), n, f, d, DType::kF32, outbound, s);
}

void Blocks::expert_backward(int64_t layer, const void* weights, const void* inbound,
                             BlockRows rows, bool first_block, void* outbound, const ExpertSpace& w,
                             Stream& s) const {
  const int64_t d = c_.hidden_size, f = c_.moe_intermediate_size, n = rows.computed();
  const void* down = at(weights, 2 * f * d);
  const void* dout = at(inbound, inbound_gradient(d));
  const auto* scale = static_cast<const float*>(at(inbound, inbound_scale(d)));
  float* dx = static_cast<float*>(outbound);
  float* dscale = dx + outbound_scale(d);
  void* gate_up = gate_up_of(layer, rows, w);
  if (gate_up == w.gate_up) ops_.linear(dt_, inbound, weights, n, d, 2 * f, dt_, gate_up, s);
  ops_.linear_backward_input(dt_, dout, down, n, f, d, dt_, w.dact, s);
  ops_.swiglu_backward(dt_, gate_up, w.dact, scale, n, f, gate_up, w.act, dscale, s);
  ops_.linear_backward_weight(dt_, dout, w.act, n, f, d, !first_block, w.grad + 2 * f * d, s);
  ops_.linear_backward_weight(dt_, gate_up, inbound, n, d, 2 * f, !first_block, w.grad, s);
  ops_.linear_backward_input(dt_, gate_up, weights, n, d, 2 * f, DType::kF32, dx, s);
}

void Blocks::combine(BlockRows rows, int64_t b, const void* outbound, bool backward, float* sum,
                     const StepSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size, n = rows.count;
  if (n == 0) return;
  const int64_t first_choice = b * size_.microbatch_tokens * c_.experts_per_token;
  const int32_t *tokens = w.rows + rows.first, *choices = w.choices + rows.first;
  const auto* block = static_cast<const float*>(outbound);
  const float* out = block + rows.at * d;
  if (!backward) {
    ops_.gather_rows(DType::kF32, w.weights + first_choice, choices, n, 1, w.scale, s);
    ops_.scatter_add_rows(DType::kF32, out, tokens, w.scale, n, d, sum, s);
    return;
  }
  ops_.scatter_add_rows(DType::kF32, out, tokens, nullptr, n, d, sum, s);
  ops_.scatter_add_rows(DType::kF32, block + outbound_scale(d) + rows.at, choices, nullptr, n, 1,
                        w.dweights + first_choice, s);
}

}  // namespace pagoda
