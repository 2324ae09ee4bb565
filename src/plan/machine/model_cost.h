// The cost of a layer in parameters, kept activations and multiply-adds, for Piper's resource model
// (section III-A, Table III). Its equations are sums of these numbers, so they hold both for the
// layers of the paper (as many keys as queries, nothing but attention and experts) and for those of
// a ModelShape. Values are two bytes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/machine/model_shape.h"

namespace pagoda {

inline constexpr int64_t kValueBytes = 2;  // bytes of an activation: fp16 or bf16

struct LayerCost {
  // Parameters on every device of an expert-parallel group: attention, and for a ModelShape norms,
  // router and all else that every token visits.
  int64_t replicated_parameters = 0;
  // Those of them that a token multiplies with: attention's, the router's, and a dense layer's MLP
  // or the shared experts'.
  int64_t attention_parameters = 0, router_parameters = 0, feed_forward_parameters = 0;
  int64_t expert_parameters = 0;  // one routed expert's
  int64_t expert_ffn = 0;         // f, width of one routed expert
  int64_t num_experts = 0;        // 0: a dense layer
  int64_t experts_per_token = 0;
  // Bytes that are kept for the backward: those of a token on the device that attends to it, and
  // those of a row (a token and one of its experts) on the device of that expert.
  int64_t token_bytes = 0;
  int64_t row_bytes = 0;
  // Heads have scores: with flash attention 2 bytes for each token and head, without it 4 for each
  // token, key and head (scores and their softmax). Table III.
  int64_t heads = 0;
  int64_t score_width = 0;  // multiply-adds for a token and key: both head_dims of all heads
};

struct ModelCost {
  std::vector<LayerCost> layers;
  int64_t hidden_size = 0;           // d
  int64_t embedding_parameters = 0;  // on the first stage of a pipeline
  // On the last stage: final norm and output projection, even if that is the embedding again.
  int64_t head_parameters = 0;
  bool tied_embeddings = false;  // with one stage the head's projection is the embedding
};

// A token keeps the layer's input, queries, keys, values, attention's output and its projection
// (Table III's six, each in its own width; latent attention also keeps the latents), fp32
// probabilities of the router, and the bytes of a row for the dense or shared experts that it
// visits. Attention is over all earlier tokens; the logits of the head are not kept. Returns the
// errors of check_model.
Result<ModelCost> model_cost(const ModelShape& shape);

// F_model of equation (12): forward and backward (twice the forward) of `sequences`, without
// recomputation. About 6 operations for each active parameter and token (section I), and the
// scores. O(layers).
double model_flops(const ModelCost& model, int64_t sequence_len, double sequences);

// The part of a device or rank: what every token of `sequences` visits, and `rows` of experts of
// all layers, each a token and one of its experts. REQUIRES: experts of one size.
double part_flops(const ModelCost& model, int64_t sequence_len, double sequences, double rows);

}  // namespace pagoda
