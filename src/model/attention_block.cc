#include "model/blocks.h"

namespace pagoda {

AttentionShape Blocks::attention_shape(int64_t layer, const void* weights) const {
  const int64_t sinks = offsets_[layer].sinks;
  return {size_.microbatch_tokens,
          c_.num_heads,
          c_.num_kv_heads,
          c_.head_dim,
          qkv_dim(),
          c_.window_of(layer),
          sinks >= 0 ? at(weights, sinks) : nullptr};
}

int64_t Blocks::qkv_dim() const { return (c_.num_heads + 2 * c_.num_kv_heads) * c_.head_dim; }

int64_t Blocks::projected_dim(int64_t layer) const {
  if (c_.is_conv_layer(layer)) return 3 * c_.hidden_size;
  return c_.latent() ? query_columns() + c_.kv_rank + c_.rope_head_dim : qkv_dim();
}

int64_t Blocks::mixed_dim(int64_t layer) const {
  if (c_.is_conv_layer(layer)) return c_.hidden_size;
  return c_.num_heads * (c_.latent() ? c_.value_head_dim : c_.head_dim);
}

// One norm for every head, or one over all heads together.
void Blocks::norm_queries_and_keys(const LayerOffsets& o, const void* weights,
                                   const AttentionSpace& a, Stream& s) const {
  if (c_.qk_norm == QkNorm::kNone) return;
  const bool full = c_.qk_norm == QkNorm::kFullWidth;
  const int64_t t = size_.microbatch_tokens, stride = qkv_dim();
  const int64_t k_at = c_.num_heads * c_.head_dim, kv_dim = c_.num_kv_heads * c_.head_dim;
  const float eps = static_cast<float>(c_.rms_norm_eps);
  ops_.rmsnorm(dt_, a.qkv, at(weights, o.q_norm), eps, t, full ? 1 : c_.num_heads,
               full ? k_at : c_.head_dim, stride, a.rotated, a.q_rstd, s);
  ops_.rmsnorm(dt_, at(a.qkv, k_at), at(weights, o.k_norm), eps, t, full ? 1 : c_.num_kv_heads,
               full ? kv_dim : c_.head_dim, stride, at(a.rotated, k_at), a.k_rstd, s);
}

void Blocks::norm_queries_and_keys_backward(const LayerOffsets& o, const void* weights,
                                            const AttentionSpace& a, float* grad,
                                            Stream& s) const {
  if (c_.qk_norm == QkNorm::kNone) return;
  const bool full = c_.qk_norm == QkNorm::kFullWidth;
  const int64_t t = size_.microbatch_tokens, stride = qkv_dim();
  const int64_t k_at = c_.num_heads * c_.head_dim, kv_dim = c_.num_kv_heads * c_.head_dim;
  ops_.rmsnorm_backward(dt_, a.qkv, at(weights, o.q_norm), a.q_rstd, a.dqkv, t,
                        full ? 1 : c_.num_heads, full ? k_at : c_.head_dim, stride, a.dqkv,
                        grad + o.q_norm, s);
  ops_.rmsnorm_backward(dt_, at(a.qkv, k_at), at(weights, o.k_norm), a.k_rstd, at(a.dqkv, k_at), t,
                        full ? 1 : c_.num_kv_heads, full ? kv_dim : c_.head_dim, stride,
                        at(a.dqkv, k_at), grad + o.k_norm, s);
}

// Queries and keys into a.rotated, values into a.qkv.
void Blocks::project_attention(int64_t layer, const int32_t* positions, const void* weights,
                               const void* x, const AttentionSpace& a, Stream& s) const {
  if (c_.latent()) return project_latents(layer, positions, weights, x, a, s);
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const LayerOffsets& o = offsets_[layer];
  const float eps = static_cast<float>(c_.rms_norm_eps);
  ops_.rmsnorm(dt_, x, at(weights, o.norm1), eps, t, 1, d, d, a.normed, a.rstd, s);
  if (c_.qkv_bias) {
    ops_.linear_biased(dt_, a.normed, at(weights, o.qkv), at(weights, o.qkv_bias), t, d,
                       qkv_dim(), dt_, a.qkv, s);
  } else {
    ops_.linear(dt_, a.normed, at(weights, o.qkv), t, d, qkv_dim(), dt_, a.qkv, s);
  }
  norm_queries_and_keys(o, weights, a, s);
  // q and k heads are neighbours, so one call rotates both.
  ops_.rope(dt_, positions, c_.rotation, t, c_.num_heads + c_.num_kv_heads, c_.head_dim,
            c_.rotary_dim, qkv_dim(), false, a.rotated, s);
}

// Everything up to the attention's output, which the backward needs again.
void Blocks::attention_inner(int64_t layer, const int32_t* positions, const void* weights,
                             const void* x, Documents documents, const AttentionSpace& a,
                             Stream& s) const {
  if (c_.is_conv_layer(layer)) return convolution_inner(layer, positions, weights, x, a, s);
  const int64_t k_at = c_.num_heads * c_.head_dim, v_at = k_at + c_.num_kv_heads * c_.head_dim;
  const AttentionShape shape = attention_shape(layer, weights);
  project_attention(layer, positions, weights, x, a, s);
  ops_.attention(dt_, shape, documents.start.data(),
                 static_cast<int64_t>(documents.start.size()) - 1, a.rotated, at(a.rotated, k_at),
                 at(a.qkv, v_at), a.out, a.lse, s);
}

void Blocks::attention(int64_t layer, int64_t b, const void* weights, const void* x,
                       Documents documents, void* middle, const Workspace& w, Stream& s) const {
  const AttentionSpace& a = w.attention_of(layer, b);
  const int32_t* positions = w.positions + b * size_.microbatch_tokens;
  attention_inner(layer, positions, weights, x, documents, a, s);
  add_attention(layer, weights, x, middle, a, s);
}

void Blocks::cached_attention(int64_t layer, int64_t b, const void* weights, const void* x,
                              void* middle, const Workspace& w, Stream& s) const {
  const int32_t* positions = w.positions + b * size_.microbatch_tokens;
  const int64_t k_at = c_.num_heads * c_.head_dim, v_at = k_at + c_.num_kv_heads * c_.head_dim;
  const AttentionSpace& a = w.attention;
  if (c_.is_conv_layer(layer)) {
    cached_convolution(layer, positions, weights, x, w, s);
  } else {
    project_attention(layer, positions, weights, x, a, s);
    ops_.cached_attention(dt_, attention_shape(layer, weights), size_.cache.positions,
                          w.cache.sequence, positions, a.rotated, at(a.rotated, k_at),
                          at(a.qkv, v_at),
                          at(w.cache.layers, cache_at_[static_cast<size_t>(layer)]), a.out, s);
  }
  add_attention(layer, weights, x, middle, a, s);
}

// middle = x + what attention found
void Blocks::add_attention(int64_t layer, const void* weights, const void* x, void* middle,
                           const AttentionSpace& a, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const LayerOffsets& o = offsets_[layer];
  const void* mixed = values_of(a, s);
  if (o.o_bias >= 0) {
    ops_.linear_biased(dt_, mixed, at(weights, o.o), at(weights, o.o_bias), t, mixed_dim(layer), d,
                       dt_, a.projected, s);
  } else {
    ops_.linear(dt_, mixed, at(weights, o.o), t, mixed_dim(layer), d, dt_, a.projected, s);
  }
  ops_.add(dt_, x, dt_, a.projected, t * d, middle, s);
}

void Blocks::attention_backward(int64_t layer, int64_t b, const void* weights, const void* x,
                                Documents documents, void* dresidual, GradientSum sum,
                                const Workspace& w, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t mixed = mixed_dim(layer), projected = projected_dim(layer);
  const LayerOffsets& o = offsets_[layer];
  const AttentionSpace& a = w.attention_of(layer, b);
  const int32_t* positions = w.positions + b * t;
  float* grad = sum.data;
  if (!w.keeps(layer)) attention_inner(layer, positions, weights, x, documents, a, s);
  const int64_t record = table_.layer(layer);
  const Matrix output{record, o.o, mixed, d};
  if (trains(output)) matrix_gradient(output, dresidual, values_of(a, s), t, grad, s);
  void* dmixed = a.cut != nullptr ? a.cut : a.dout;
  ops_.linear_backward_input(dt_, dresidual, at(weights, o.o), t, mixed, d, dt_, dmixed, s);
  if (a.cut != nullptr) {
    const int64_t v = c_.value_head_dim, dim = c_.head_dim;
    ops_.copy_columns(dt_, a.cut, t * c_.num_heads, v, v, dim - v, dim, a.dout, s);
  }
  if (o.o_bias >= 0) ops_.bias_backward(dt_, dresidual, t, d, grad + o.o_bias, s);
  if (c_.is_conv_layer(layer)) {
    convolution_gradient(layer, positions, weights, a, grad, s);
  } else {
    attention_gradient(layer, positions, weights, documents, a, grad, s);
  }
  const void* dprojected = c_.latent() ? a.dlatents : a.dqkv;
  matrix_gradient({record, o.qkv, d, projected}, dprojected, a.normed, t, grad, s);
  ops_.linear_backward_input(dt_, dprojected, at(weights, o.qkv), t, d, projected, dt_,
                             a.projected, s);
  ops_.rmsnorm_backward(dt_, x, at(weights, o.norm1), a.rstd, a.projected, t, 1, d, d, a.projected,
                        grad + o.norm1, s);
  ops_.add(dt_, dresidual, dt_, a.projected, t * d, dresidual, s);
}

void Blocks::attention_gradient(int64_t layer, const int32_t* positions, const void* weights,
                                Documents documents, const AttentionSpace& a, float* grad,
                                Stream& s) const {
  const int64_t t = size_.microbatch_tokens;
  const AttentionShape shape = attention_shape(layer, weights);
  const int64_t k_at = c_.num_heads * c_.head_dim, v_at = k_at + c_.num_kv_heads * c_.head_dim;
  const LayerOffsets& o = offsets_[layer];
  if (o.sinks >= 0) {
    ops_.attention_sinks_backward(dt_, shape, a.out, a.lse, a.dout, grad + o.sinks, s);
  }
  ops_.attention_backward(dt_, shape, documents.start.data(),
                          static_cast<int64_t>(documents.start.size()) - 1, a.rotated,
                          at(a.rotated, k_at), at(a.qkv, v_at), a.out, a.lse, a.dout, a.dqkv,
                          at(a.dqkv, k_at), at(a.dqkv, v_at), s);
  if (c_.latent()) return latents_gradient(layer, positions, weights, a, grad, s);
  ops_.rope(dt_, positions, c_.rotation, t, c_.num_heads + c_.num_kv_heads, c_.head_dim,
            c_.rotary_dim, qkv_dim(), true, a.dqkv, s);
  norm_queries_and_keys_backward(o, weights, a, grad, s);
  if (c_.qkv_bias) ops_.bias_backward(dt_, a.dqkv, t, qkv_dim(), grad + o.qkv_bias, s);
}

}  // namespace pagoda
