#include "model/blocks.h"

#include <algorithm>

namespace pagoda {

Blocks::Blocks(const ModelConfig& config, const TensorTable& table, const FrozenTensors& frozen,
               const WorkspaceSize& size, Ops& ops)
    : c_(config), table_(table), frozen_(frozen), size_(size), dt_(size.dtype), ops_(ops) {
  const ModelShape model = model_shape(config);
  int64_t cached = 0;
  for (int64_t l = 0; l < c_.num_layers; ++l) {
    cache_at_.push_back(cached);
    cached += size.cache.layer_elements(model, l);
    const int64_t r = table.layer(l);
    LayerOffsets o;
    o.norm1 = table.offset(r, TensorRole::kInputNorm);
    const bool convolves = c_.is_conv_layer(l);
    o.qkv = table.offset(r, convolves ? TensorRole::kConvInput : TensorRole::kQuery);
    o.taps = table.offset(r, TensorRole::kConvTaps);
    o.qkv_bias = table.offset(r, TensorRole::kQueryBias);
    o.q_norm = table.offset(r, TensorRole::kQueryNorm);
    o.k_norm = table.offset(r, TensorRole::kKeyNorm);
    o.sinks = table.offset(r, TensorRole::kSinks);
    o.q_heads = table.offset(r, TensorRole::kQueryHeads);
    o.latent_heads = table.offset(r, TensorRole::kLatentHeads);
    o.o = table.offset(r, TensorRole::kOutput);
    o.o_bias = table.offset(r, TensorRole::kOutputBias);
    o.norm2 = table.offset(r, TensorRole::kPostAttentionNorm);
    o.router = table.offset(r, TensorRole::kRouter);
    o.router_bias = table.offset(r, TensorRole::kRouterBias);
    o.correction = table.offset(r, TensorRole::kCorrection);
    o.shared_gate = table.offset(r, TensorRole::kSharedGate);
    o.gate_up = table.offset(r, TensorRole::kGate);
    o.down = table.offset(r, TensorRole::kDown);
    offsets_.push_back(o);
    record_elements_.push_back(table.records[r].num_elements);
    const int64_t shared = o.shared_gate >= 0 ? o.shared_gate : o.gate_up;
    const bool has_shared = o.router >= 0 && shared >= 0;
    shared_elements_.push_back(has_shared ? record_elements_.back() - shared : 0);
  }
}

void Blocks::embed(int64_t b, const void* embedding, void* x, const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens;
  ops_.embedding(dt_, w.tokens + b * t, embedding, t, c_.hidden_size, x, s);
  scale(dt_, c_.embedding_scale, t * c_.hidden_size, x, s);
}

void Blocks::scale(DType dt, double factor, int64_t n, void* x, Stream& s) const {
  if (factor != 1.0) ops_.scale(dt, static_cast<float>(factor), n, x, s);
}

bool Blocks::trains(const Matrix& m) const {
  return !frozen_.covers(table_, m.record, m.offset, m.offset + m.in * m.out);
}

void Blocks::matrix_gradient(const Matrix& m, const void* dout, const void* x, int64_t n,
                             float* grad, Stream& s) const {
  if (!trains(m)) return;
  ops_.linear_backward_weight(dt_, dout, x, n, m.in, m.out, true, grad + m.offset, s);
}

void Blocks::embed_backward(int64_t b, void* dresidual, GradientSum sum, const Workspace& w,
                            Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  float* table = sum.data + d;
  if (sum.first) ops_.fill_zero(table, c_.vocab_size * d * 4, s);
  if (!trains({table_.embedding(), 0, d, c_.vocab_size})) return;
  scale(dt_, c_.embedding_scale, t * d, dresidual, s);
  ops_.embedding_backward(dt_, w.tokens + b * t, dresidual, t, d, c_.pad_token_id, table, s);
}

void Blocks::mlp_inner(const LayerOffsets& o, const void* weights, const void* rows, int64_t f,
                       const MlpSpace& m, Stream& s) const {
  const int64_t t = size_.microbatch_tokens;
  ops_.linear(dt_, rows, at(weights, o.gate_up), t, c_.hidden_size, 2 * f, dt_, m.gate_up, s);
  ops_.swiglu(dt_, {}, m.gate_up, t, f, m.act, s);
}

// Between attentions their space is free.
void Blocks::dense_mlp(int64_t layer, int64_t b, const void* weights, const void* middle,
                       void* next, const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, f = c_.intermediate_size;
  const LayerOffsets& o = offsets_[layer];
  void* normed = w.attention.normed;
  ops_.rmsnorm(dt_, middle, at(weights, o.norm2), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               normed, w.attention.rstd, s);
  mlp_inner(o, weights, normed, f, w.mlp_of(layer, b), s);
  ops_.linear(dt_, w.mlp.act, at(weights, o.down), t, f, d, dt_, normed, s);
  ops_.add(dt_, middle, dt_, normed, t * d, next, s);
}

void Blocks::dense_mlp_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                                void* dresidual, GradientSum sum, const Workspace& w,
                                Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, f = c_.intermediate_size;
  const LayerOffsets& o = offsets_[layer];
  const int64_t record = table_.layer(layer);
  float* grad = sum.data;
  if (sum.first) ops_.fill_zero(grad, record_elements_[layer] * 4, s);
  void* normed = w.attention.normed;
  ops_.rmsnorm(dt_, middle, at(weights, o.norm2), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               normed, w.attention.rstd, s);
  void* gate_up = w.mlp_of(layer, b).gate_up;
  if (!w.keeps(layer)) {
    ops_.linear(dt_, normed, at(weights, o.gate_up), t, d, 2 * f, dt_, gate_up, s);
  }
  ops_.linear_backward_input(dt_, dresidual, at(weights, o.down), t, f, d, dt_, w.mlp.dact, s);
  ops_.swiglu_backward(dt_, {}, gate_up, w.mlp.dact, nullptr, t, f, gate_up, w.mlp.act, nullptr, s);
  matrix_gradient({record, o.down, f, d}, dresidual, w.mlp.act, t, grad, s);
  matrix_gradient({record, o.gate_up, d, 2 * f}, gate_up, normed, t, grad, s);
  ops_.linear_backward_input(dt_, gate_up, at(weights, o.gate_up), t, d, 2 * f, dt_, w.dnormed, s);
  ops_.rmsnorm_backward(dt_, middle, at(weights, o.norm2), w.attention.rstd, w.dnormed, t, 1, d, d,
                        w.dnormed, grad + o.norm2, s);
  ops_.add(dt_, dresidual, dt_, w.dnormed, t * d, dresidual, s);
}

void Blocks::head(int64_t b, const void* weights, const void* tied_embedding, const void* x,
                  double total_weight, void* dresidual, GradientSum sum, const Workspace& w,
                  Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size, v = c_.vocab_size;
  const void* table = tied_embedding ? tied_embedding : at(weights, d);
  const bool backward = total_weight > 0;
  const Matrix of_table =
      tied_embedding ? Matrix{table_.embedding(), 0, d, v} : Matrix{table_.head(), d, d, v};
  const float grad_scale = backward ? static_cast<float>(c_.logits_scale / total_weight) : 0.0f;
  if (sum.first && backward) ops_.fill_zero(sum.data, (d + v * d) * 4, s);
  ops_.fill_zero(w.loss_sums + b, sizeof(double), s);
  ops_.rmsnorm(dt_, x, weights, static_cast<float>(c_.rms_norm_eps), t, 1, d, d, w.head.normed,
               w.head.rstd, s);
  for (int64_t first = 0; first < t; first += kRowBlock) {
    const int64_t n = std::min(kRowBlock, t - first);
    const void* rows = at(w.head.normed, first * d);
    ops_.linear(dt_, rows, table, n, d, v, DType::kF32, w.head.logits, s);
    scale(DType::kF32, c_.logits_scale, n * v, w.head.logits, s);
    ops_.cross_entropy(dt_, w.head.logits, w.targets + b * t + first,
                       w.loss_weights + b * t + first, n, v, grad_scale,
                       backward ? w.head.dlogits : nullptr, w.loss_sums + b, s);
    if (!backward) continue;
    ops_.linear_backward_input(dt_, w.head.dlogits, table, n, d, v, dt_,
                               at(w.head.dnormed, first * d), s);
    if (!trains(of_table)) continue;
    ops_.linear_backward_weight(dt_, w.head.dlogits, rows, n, d, v, true, sum.data + d, s);
  }
  if (!backward) return;
  ops_.rmsnorm_backward(dt_, x, weights, w.head.rstd, w.head.dnormed, t, 1, d, d, dresidual,
                        sum.data, s);
}

void Blocks::logits(int64_t n, const void* weights, const void* tied_embedding, const void* x,
                    const Workspace& w, Stream& s) const {
  const int64_t d = c_.hidden_size;
  const void* table = tied_embedding ? tied_embedding : at(weights, d);
  void* rows = w.attention.projected;
  ops_.gather_rows(dt_, x, w.cache.wanted, n, d, rows, s);
  ops_.rmsnorm(dt_, rows, weights, static_cast<float>(c_.rms_norm_eps), n, 1, d, d, w.head.normed,
               w.head.rstd, s);
  ops_.linear(dt_, w.head.normed, table, n, d, c_.vocab_size, DType::kF32, w.head.logits, s);
  scale(DType::kF32, c_.logits_scale, n * c_.vocab_size, w.head.logits, s);
}

}  // namespace pagoda
