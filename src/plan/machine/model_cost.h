// What a layer costs in parameters, kept activations and multiply-adds, as far as Piper's resource
// model needs it (section III-A, Table III). Its equations are sums of these numbers, so they hold
// alike for the layers of the paper (as many keys as queries, nothing but attention and experts)
// and for those of a ModelShape. Values are two bytes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/machine/model_shape.h"

namespace pagoda {

inline constexpr int64_t kValueBytes = 2;  // of an activation: fp16 or bf16

struct LayerCost {
  // On every device of an expert-parallel group: attention, and in a ModelShape norms, router and
  // what else every token visits.
  int64_t replicated_parameters = 0;
  int64_t expert_parameters = 0;  // of one routed expert
  int64_t num_experts = 0;        // 0: a dense layer
  int64_t experts_per_token = 0;
  // Kept for the backward, bytes: of a token on the device that attends to it, of a row (a token
  // and one of its experts) on the device of that expert.
  int64_t token_bytes = 0;
  int64_t row_bytes = 0;
  // Heads have scores: with flash attention 2 bytes of a token and head, without it 4 of a token,
  // key and head (scores and their softmax). Table III.
  int64_t heads = 0;
  int64_t score_width = 0;  // multiply-adds of a token and key: both head_dims of all heads
};

struct ModelCost {
  std::vector<LayerCost> layers;
  int64_t hidden_size = 0;           // d
  int64_t embedding_parameters = 0;  // on the first stage of a pipeline
  // On the last stage: final norm and output projection, also where that is the embedding again.
  int64_t head_parameters = 0;
  bool tied_embeddings = false;  // with one stage the head's projection is the embedding
};

// The symbols of Piper's Table II; all layers are alike.
struct PiperModel {
  int64_t layers = 0;             // L
  int64_t hidden_size = 0;        // d
  int64_t heads = 0;              // H
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // k
  int64_t expert_ffn = 0;         // d_ffn of an expert
};

// Table III: 4 d^2 parameters and 12 d bytes of a token for attention, 3 d d_ffn parameters of an
// expert, 2 (3 d_ffn + d) bytes of a row; neither embedding nor head.
// kUsage: a size that is not positive, more experts for a token than there are, more parameters
// than can be counted in bytes.
Result<ModelCost> piper_cost(const PiperModel& model);

// A token keeps the layer's input, queries, keys, values, attention's output and its projection
// (Table III's six, each in its own width; latent attention also the latents), fp32 probabilities
// of the router, and what a row keeps for the dense or shared experts it visits. Attention is over
// all tokens before; the logits of the head are not kept. The errors of check_model.
Result<ModelCost> model_cost(const ModelShape& shape);

// Of any layer. O(layers).
int64_t most_experts(const ModelCost& model);

// Multiplications and additions of a forward: 2 for each parameter that a token or row visits.
double token_flops(const LayerCost& layer);  // of a token, without scores
double row_flops(const LayerCost& layer);    // of a row
// Of a sequence's scores and weighted values, each token with the tokens before it and itself.
double score_flops(const LayerCost& layer, int64_t sequence_len);

// F_model of equation (12): forward and backward (twice the forward) of so many sequences, nothing
// computed again. About 6 for each active parameter and token (section I), and the scores.
// O(layers).
double model_flops(const ModelCost& model, int64_t sequence_len, double sequences);

}  // namespace pagoda
