// The models of Piper's own figures, by the symbols of its Table II: all layers are alike, with
// attention and experts and nothing else. Their costs are Table III's, written down by hand.
#pragma once

#include <cstdint>

#include "plan/machine/model_cost.h"

namespace pagoda {

struct PiperModel {
  int64_t layers = 0;             // L
  int64_t hidden_size = 0;        // d
  int64_t heads = 0;              // H
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // k
  int64_t expert_ffn = 0;         // d_ffn of an expert
};

// Attention has 4 d^2 parameters and keeps 12 d bytes for a token; an expert has 3 d d_ffn
// parameters and keeps 2 (3 d_ffn + d) bytes for a row. There is neither embedding nor head.
inline ModelCost piper_cost(const PiperModel& model) {
  const int64_t d = model.hidden_size, f = model.expert_ffn;
  LayerCost layer;
  layer.replicated_parameters = layer.attention_parameters = 4 * d * d;
  layer.expert_parameters = 3 * d * f;
  layer.expert_ffn = f;
  layer.num_experts = model.num_experts;
  layer.experts_per_token = model.experts_per_token;
  layer.token_bytes = 12 * d;
  layer.row_bytes = 2 * (3 * f + d);
  layer.heads = model.heads;
  layer.score_width = 2 * d;  // heads * head_dim is d
  ModelCost cost;
  cost.hidden_size = d;
  cost.layers.assign(static_cast<size_t>(model.layers), layer);
  return cost;
}

}  // namespace pagoda
