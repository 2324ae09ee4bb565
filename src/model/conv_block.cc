#include "model/blocks.h"

namespace pagoda {

void Blocks::convolution_inner(int64_t layer, const int32_t* positions, const void* weights,
                               const void* x, const AttentionSpace& a, Stream& s) const {
  project_convolution(layer, weights, x, a, s);
  ops_.short_conv(dt_, positions, a.qkv, at(weights, offsets_[layer].taps),
                  size_.microbatch_tokens, c_.hidden_size, c_.conv_width, a.out, s);
}

void Blocks::project_convolution(int64_t layer, const void* weights, const void* x,
                                 const AttentionSpace& a, Stream& s) const {
  const int64_t t = size_.microbatch_tokens, d = c_.hidden_size;
  const LayerOffsets& o = offsets_[layer];
  ops_.rmsnorm(dt_, x, at(weights, o.norm1), static_cast<float>(c_.rms_norm_eps), t, 1, d, d,
               a.normed, a.rstd, s);
  ops_.linear(dt_, a.normed, at(weights, o.qkv), t, d, 3 * d, dt_, a.qkv, s);
}

void Blocks::cached_convolution(int64_t layer, const int32_t* positions, const void* weights,
                                const void* x, const Workspace& w, Stream& s) const {
  const AttentionSpace& a = w.attention;
  project_convolution(layer, weights, x, a, s);
  ops_.cached_short_conv(dt_, w.cache.sequence, positions, a.qkv, at(weights, offsets_[layer].taps),
                         size_.microbatch_tokens, c_.hidden_size, c_.conv_width,
                         at(w.cache.layers, cache_at_[static_cast<size_t>(layer)]), a.out, s);
}

void Blocks::convolution_gradient(int64_t layer, const int32_t* positions, const void* weights,
                                  const AttentionSpace& a, float* grad, Stream& s) const {
  const int64_t taps = offsets_[layer].taps;
  ops_.short_conv_backward(dt_, positions, a.qkv, at(weights, taps), a.dout,
                           size_.microbatch_tokens, c_.hidden_size, c_.conv_width, a.dqkv,
                           grad + taps, s);
}

}  // namespace pagoda
