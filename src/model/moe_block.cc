#include "model/blocks.h"

namespace pagoda {

void Blocks::route(int64_t layer, int64_t b, const void* weights, const void* middle,
                   int32_t* choices, const StepSpace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const LayerOffsets& o = offsets_[layer];
  void* normed = at(w.normed, b * t * d);
  ops_.rmsnorm(dt_, middle, at(weights, o.norm2), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               normed, w.rstd + b * t, s);
  float* probs = w.probs + b * t * e;
  ops_.linear(dt_, normed, at(weights, o.router), t, d, e, DType::kF32, probs, s);
  ops_.route(probs, w.padding + b * t, t, e, k, c_.norm_topk_prob, false, probs,
             w.experts + b * t * k, w.weights + b * t * k, w.counts + b * e, w.prob_sums + b * e,
             s);
  s.copy(choices, w.experts + b * t * k, t * k * static_cast<int64_t>(sizeof(int32_t)));
  ops_.fill_zero(w.sum + b * t * d, t * d * 4, s);
}

void Blocks::route_replay(int64_t layer, int64_t b, const void* weights, const void* middle,
                          const int32_t* choices, const StepSpace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const LayerOffsets& o = offsets_[layer];
  void* normed = at(w.normed, b * t * d);
  ops_.rmsnorm(dt_, middle, at(weights, o.norm2), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               normed, w.rstd + b * t, s);
  float* probs = w.probs + b * t * e;
  ops_.linear(dt_, normed, at(weights, o.router), t, d, e, DType::kF32, probs, s);
  s.copy(w.experts + b * t * k, choices, t * k * static_cast<int64_t>(sizeof(int32_t)));
  ops_.route(probs, nullptr, t, e, k, c_.norm_topk_prob, true, probs, w.experts + b * t * k,
             w.weights + b * t * k, w.counts + b * e, w.prob_sums + b * e, s);
  ops_.fill_zero(w.sum + b * t * d, t * d * 4, s);
  ops_.fill_zero(w.dweights + b * t * k, t * k * 4, s);
}

void Blocks::route_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                            const StepSpace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t e = c_.num_experts, k = c_.experts_per_token;
  const LayerOffsets& o = offsets_[layer];
  float* grad = w.layer_grad;
  if (b == 0) ops_.fill_zero(grad, record_elements_[layer] * 4, s);
  ops_.route_backward(dt_, w.probs + b * t * e, w.experts + b * t * k, w.weights + b * t * k,
                      w.dweights + b * t * k, w.aux_grad + b * e, t, e, k, c_.norm_topk_prob,
                      w.dlogits, s);
  ops_.linear_backward_weight(dt_, w.dlogits, at(w.normed, b * t * d), t, d, e, grad + o.router, s);
  ops_.linear_backward_input(dt_, w.dlogits, at(weights, o.router), t, d, e, dt_, w.dnormed, s);
  ops_.add(dt_, w.dnormed, DType::kF32, w.sum + b * t * d, t * d, w.dnormed, s);
  ops_.rmsnorm_backward(dt_, middle, at(weights, o.norm2), w.rstd + b * t, w.dnormed, t, 1, d, d,
                        w.dnormed, grad + o.norm2, s);
  void* dresidual = at(w.dresidual, b * t * d);
  ops_.add(dt_, dresidual, dt_, w.dnormed, t * d, dresidual, s);
}

void Blocks::residual(int64_t b, const void* middle, void* next, const StepSpace& w,
                      Stream& s) const {
  const int64_t n = size_.microbatch_tokens * c_.hidden_size;
  ops_.add(dt_, middle, DType::kF32, w.sum + b * n, n, next, s);
}

namespace {
// Parts of an inbound and an outbound page (plan/pages.h).
int64_t inbound_gradient(int64_t d) { return kRowBlock * d; }      // elements
int64_t inbound_scale(int64_t d) { return 2 * kRowBlock * d; }     // elements
int64_t outbound_scale(int64_t d) { return kRowBlock * d; }        // floats
}  // namespace

void Blocks::dispatch(int64_t first, int64_t n, void* inbound, bool backward, const StepSpace& w,
                      Stream& s) const {
  const int64_t d = c_.hidden_size;
  ops_.gather_rows(dt_, w.normed, w.rows + first, n, d, inbound, s);
  if (!backward) return;
  ops_.gather_rows(dt_, w.dresidual, w.rows + first, n, d, at(inbound, inbound_gradient(d)), s);
  ops_.gather_rows(DType::kF32, w.weights, w.choices + first, n, 1, at(inbound, inbound_scale(d)),
                   s);
}

void Blocks::expert(const void* weights, const void* inbound, int64_t n, void* outbound,
                    const ExpertSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size, f = c_.moe_intermediate_size;
  ops_.linear(dt_, inbound, weights, n, d, 2 * f, dt_, w.gate_up, s);
  ops_.swiglu(dt_, w.gate_up, n, f, w.act, s);
  ops_.linear(dt_, w.act, at(weights, 2 * f * d), n, f, d, DType::kF32, outbound, s);
}

void Blocks::expert_backward(const void* weights, const void* inbound, int64_t n, bool first_block,
                             void* outbound, const ExpertSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size, f = c_.moe_intermediate_size;
  const void* down = at(weights, 2 * f * d);
  const void* dout = at(inbound, inbound_gradient(d));
  const auto* scale = static_cast<const float*>(at(inbound, inbound_scale(d)));
  float* dx = static_cast<float*>(outbound);
  float* dscale = dx + outbound_scale(d);
  if (first_block) ops_.fill_zero(w.grad, 3 * d * f * 4, s);
  ops_.linear(dt_, inbound, weights, n, d, 2 * f, dt_, w.gate_up, s);
  ops_.linear_backward_input(dt_, dout, down, n, f, d, dt_, w.dact, s);
  ops_.swiglu_backward(dt_, w.gate_up, w.dact, scale, n, f, w.gate_up, w.act, dscale, s);
  ops_.linear_backward_weight(dt_, dout, w.act, n, f, d, w.grad + 2 * f * d, s);
  ops_.linear_backward_weight(dt_, w.gate_up, inbound, n, d, 2 * f, w.grad, s);
  ops_.linear_backward_input(dt_, w.gate_up, weights, n, d, 2 * f, DType::kF32, dx, s);
}

void Blocks::combine(int64_t first, int64_t n, const void* outbound, bool backward,
                     const StepSpace& w, Stream& s) const {
  const int64_t d = c_.hidden_size;
  const int32_t* rows = w.rows + first;
  const int32_t* choices = w.choices + first;
  const auto* out = static_cast<const float*>(outbound);
  if (!backward) {
    ops_.gather_rows(DType::kF32, w.weights, choices, n, 1, w.scale, s);
    ops_.scatter_add_rows(DType::kF32, out, rows, w.scale, n, d, w.sum, s);
    return;
  }
  ops_.scatter_add_rows(DType::kF32, out, rows, nullptr, n, d, w.sum, s);
  ops_.scatter_add_rows(DType::kF32, out + outbound_scale(d), choices, nullptr, n, 1, w.dweights,
                        s);
}

}  // namespace pagoda
