// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), up to the queries, keys
// and values that attention takes. Heads are as long as the longer of key and value.
#include "model/blocks.h"

namespace pagoda {

namespace {
constexpr float kLatentEps = 1e-6f;  // of the norms on latents, whatever the model's own
}

int64_t Blocks::query_columns() const {
  return c_.query_rank > 0 ? c_.query_rank : c_.num_heads * c_.key_dim();
}

LatentShape Blocks::latent_shape() const {
  LatentShape shape;
  shape.tokens = size_.microbatch_tokens;
  shape.heads = c_.num_heads;
  shape.plain = c_.plain_head_dim;
  shape.rotated = c_.rope_head_dim;
  shape.value = c_.value_head_dim;
  shape.neighbours = c_.rope_neighbours;
  shape.query_scale = static_cast<float>(c_.query_scale);
  shape.shared_stride = query_columns() + c_.kv_rank + c_.rope_head_dim;
  shape.q_stride = c_.query_rank > 0 ? c_.num_heads * c_.key_dim() : shape.shared_stride;
  return shape;
}

void Blocks::project_latents(int64_t layer, const int32_t* positions, const void* weights,
                             const void* x, const AttentionSpace& a, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const int64_t all = projected_dim(layer), first = query_columns();
  const int64_t q = c_.query_rank, kv = c_.kv_rank, heads = c_.num_heads;
  const LayerOffsets& o = offsets_[layer];
  ops_.rmsnorm(dt_, x, at(weights, o.norm1), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               a.normed, a.rstd, s);
  ops_.linear(dt_, a.normed, at(weights, o.qkv), t, d, all, dt_, a.latents, s);
  if (q > 0) {
    ops_.copy_columns(dt_, a.latents, t, q, all, 0, q, a.q_latent, s);
    ops_.rmsnorm(dt_, a.q_latent, at(weights, o.q_norm), kLatentEps, t, 1, q, q, a.q_normed,
                 a.q_rstd, s);
    ops_.linear(dt_, a.q_normed, at(weights, o.q_heads), t, q, heads * c_.key_dim(), dt_,
                a.queries, s);
  }
  ops_.copy_columns(dt_, at(a.latents, first), t, kv, all, 0, kv, a.kv_latent, s);
  ops_.rmsnorm(dt_, a.kv_latent, at(weights, o.k_norm), kLatentEps, t, 1, kv, kv, a.kv_normed,
               a.k_rstd, s);
  ops_.linear(dt_, a.kv_normed, at(weights, o.latent_heads), t, kv,
              heads * (c_.plain_head_dim + c_.value_head_dim), dt_, a.keys_values, s);
  ops_.latent_heads(dt_, latent_shape(), positions, c_.rotation, q > 0 ? a.queries : a.latents,
                    at(a.latents, first + kv), a.keys_values, a.qkv, s);
}

// The space of what came forward has its gradient.
void Blocks::latents_gradient(int64_t layer, const int32_t* positions, const void* weights,
                              const AttentionSpace& a, float* grad, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, all = projected_dim(layer), first = query_columns();
  const int64_t q = c_.query_rank, kv = c_.kv_rank, heads = c_.num_heads;
  const LayerOffsets& o = offsets_[layer];
  ops_.latent_heads_backward(dt_, latent_shape(), positions, c_.rotation, a.dqkv,
                             q > 0 ? a.queries : a.dlatents, at(a.dlatents, first + kv),
                             a.keys_values, s);
  if (q > 0) {
    latent_gradient(
        {layer, q, heads * c_.key_dim(), o.q_norm, o.q_heads, a.q_latent, a.q_normed, a.q_rstd},
        weights, a.queries, a.q_normed, grad, s);
    ops_.copy_columns(dt_, a.q_normed, t, q, q, 0, all, a.dlatents, s);
  }
  latent_gradient({layer, kv, heads * (c_.plain_head_dim + c_.value_head_dim), o.k_norm,
                   o.latent_heads, a.kv_latent, a.kv_normed, a.k_rstd},
                  weights, a.keys_values, a.kv_normed, grad, s);
  ops_.copy_columns(dt_, a.kv_normed, t, kv, kv, 0, all, at(a.dlatents, first), s);
}

void Blocks::latent_gradient(const Latent& latent, const void* weights, const void* dheads,
                             void* to, float* grad, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, rank = latent.rank;
  matrix_gradient({table_.layer(latent.layer), latent.weight, rank, latent.heads}, dheads,
                  latent.normed, t, grad, s);
  ops_.linear_backward_input(dt_, dheads, at(weights, latent.weight), t, rank, latent.heads, dt_,
                             to, s);
  ops_.rmsnorm_backward(dt_, latent.values, at(weights, latent.norm), latent.rstd, to, t, 1, rank,
                        rank, to, grad + latent.norm, s);
}

const void* Blocks::values_of(const AttentionSpace& a, Stream& s) const {
  if (a.cut == nullptr) return a.out;
  const int64_t rows = size_.microbatch_tokens * c_.num_heads, v = c_.value_head_dim;
  ops_.copy_columns(dt_, a.out, rows, v, c_.head_dim, 0, v, a.cut, s);
  return a.cut;
}

}  // namespace pagoda
