#include "plan/machine/model_cost.h"

#include <algorithm>

#include "plan/refusals.h"

namespace pagoda {
namespace {

int64_t kept_of_row(int64_t d, int64_t ffn) { return ffn > 0 ? kValueBytes * (3 * ffn + d) : 0; }

// Numbers that attention keeps of a token.
int64_t attention_width(const AttentionSizes& a, int64_t d) {
  const int64_t queries = a.heads * a.head_dim, attended = a.heads * a.value_head_dim;
  const int64_t keys_and_values = a.kv_heads * (a.head_dim + a.value_head_dim);
  const int64_t latents = a.latent() ? a.query_rank + a.kv_rank + a.rope_head_dim : 0;
  return 2 * d + queries + keys_and_values + attended + latents;
}

// What a convolution keeps instead: the layer's input, b, c and x, the result and its projection.
constexpr int64_t kConvWidths = 6;

LayerCost layer_cost(const ModelShape& shape, int64_t layer) {
  const LayerParameters parameters = layer_parameters(shape, layer);
  const AttentionSizes& a = shape.attention;
  const int64_t d = shape.hidden_size;
  const bool moe = shape.is_moe[static_cast<size_t>(layer)] != 0;
  LayerCost cost;
  cost.replicated_parameters = parameters.replicated();
  cost.attention_parameters = parameters.attention;
  cost.router_parameters = parameters.router;
  cost.feed_forward_parameters = parameters.feed_forward;
  const bool convolves = shape.convolves(layer);
  cost.heads = convolves ? 0 : a.heads;
  cost.score_width = convolves ? 0 : a.heads * (a.head_dim + a.value_head_dim);
  cost.token_bytes = kValueBytes * (convolves ? kConvWidths * d : attention_width(a, d)) +
                     kept_of_row(d, moe ? shape.shared_ffn : shape.dense_ffn);
  if (!moe) return cost;
  constexpr int64_t kProbabilityBytes = 4;
  cost.token_bytes += kProbabilityBytes * shape.num_experts;
  cost.expert_parameters = parameters.expert;
  cost.expert_ffn = shape.expert_ffn;
  cost.num_experts = shape.num_experts;
  cost.experts_per_token = shape.experts_per_token;
  cost.row_bytes = kept_of_row(d, shape.expert_ffn);
  return cost;
}

// Multiplications and additions of a forward: 2 for each parameter that a token or row visits.
double token_flops(const LayerCost& layer) {
  return 2.0 * static_cast<double>(layer.replicated_parameters);
}

double row_flops(const LayerCost& layer) {
  return 2.0 * static_cast<double>(layer.expert_parameters);
}

// The scores and weighted values of a sequence: each token with itself and the tokens before it.
double score_flops(const LayerCost& layer, int64_t sequence_len) {
  const auto s = static_cast<double>(sequence_len);
  return 2.0 * static_cast<double>(layer.score_width) * (s * (s + 1) / 2);
}

}  // namespace

Result<ModelCost> model_cost(const ModelShape& shape) {
  RETURN_IF_ERROR(check_model(shape));
  ModelCost cost;
  cost.hidden_size = shape.hidden_size;
  cost.tied_embeddings = shape.tied_embeddings;
  cost.embedding_parameters = shape.vocab_size * shape.hidden_size;
  cost.head_parameters = cost.embedding_parameters + shape.hidden_size;
  for (int64_t layer = 0; layer < shape.num_layers(); ++layer) {
    cost.layers.push_back(layer_cost(shape, layer));
  }
  return cost;
}

double model_flops(const ModelCost& model, int64_t sequence_len, double sequences) {
  const auto s = static_cast<double>(sequence_len);
  double sequence = 2.0 * static_cast<double>(model.head_parameters) * s;
  for (const LayerCost& layer : model.layers) {
    const double rows = s * static_cast<double>(layer.experts_per_token);
    sequence +=
        token_flops(layer) * s + row_flops(layer) * rows + score_flops(layer, sequence_len);
  }
  return 3 * sequence * sequences;
}

double part_flops(const ModelCost& model, int64_t sequence_len, double sequences, double rows) {
  const auto s = static_cast<double>(sequence_len);
  double sequence = 2.0 * static_cast<double>(model.head_parameters) * s;
  double of_row = 0;
  for (const LayerCost& layer : model.layers) {
    sequence += token_flops(layer) * s + score_flops(layer, sequence_len);
    of_row = std::max(of_row, row_flops(layer));
  }
  return 3 * (sequence * sequences + of_row * rows);
}

}  // namespace pagoda
