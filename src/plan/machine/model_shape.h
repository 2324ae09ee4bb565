// The sizes of an architecture that planning needs, whatever its family: grouped query attention
// and multi-head latent attention (DeepSeek-V2 section 2.1), dense layers among those with experts,
// experts that every token visits, and biases. The exact numbers of parameters follow from them.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"

namespace pagoda {

inline constexpr int64_t kCorrectionParts = 3;  // elements of an expert's correction
inline constexpr int64_t kMaxParameters = std::numeric_limits<int64_t>::max() / 64;  // parameters
                                                                                     // of a model

struct AttentionSizes {
  int64_t heads = 0;           // H, heads of queries
  int64_t kv_heads = 0;        // divides heads; latent attention has a key and value for each head
  int64_t head_dim = 0;        // numbers of a query and of a key
  int64_t value_head_dim = 0;  // numbers of a value
  // Latent attention if kv_rank > 0: keys and values of all heads come from kv_rank numbers of a
  // token, behind a norm; queries come from query_rank such numbers, or straight from the residual
  // if that is 0. rope_head_dim numbers of each key are rotated, and all heads share them.
  int64_t kv_rank = 0;
  int64_t query_rank = 0;
  int64_t rope_head_dim = 0;
  int64_t query_norm = 0, key_norm = 0;  // weights of norms on queries and keys; 0: none
  bool qkv_bias = false, output_bias = false;
  bool sinks = false;  // one learned score for each head
  // Queries and keys that are normed and rotated have a place of their own beside the projections:
  // the backward of a norm reads what was there before it.
  bool rotated_apart = false;

  bool latent() const { return kv_rank > 0; }
};

// How a run's experts are cut by hidden columns (model-centric sharing, HEXA-MoE 3.3). Part p of an
// expert has its columns [sum of those before, + columns[p]): these rows of the gate and up
// matrices, and these columns of the down matrix. Each part is a record of its own, with its own
// weights, gradient and state, and goes through a layer as an expert does: every row that chose the
// expert goes through all of its parts, and what these give is added in their order. So a layer
// with parts has num_experts * count() of what planning calls experts: part p of expert e is the
// one at e * count() + p.
struct HiddenParts {
  std::vector<int64_t> columns = {};  // above 0, of f in all; empty: experts are whole

  int64_t count() const { return columns.empty() ? 1 : static_cast<int64_t>(columns.size()); }
  // Columns of the part at a place, in experts of so many columns.
  int64_t columns_at(int64_t place, int64_t ffn) const {
    return columns.empty() ? ffn : columns[static_cast<size_t>(place % count())];
  }
  int64_t most_columns(int64_t ffn) const {
    return columns.empty() ? ffn : *std::max_element(columns.begin(), columns.end());
  }
};

struct ModelShape {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;      // d
  std::vector<uint8_t> is_moe;  // (num_layers)
  AttentionSizes attention;
  // (num_layers), or empty: all attend. A layer that convolves has a gated short convolution of
  // conv_width tokens in attention's place.
  std::vector<uint8_t> is_conv = {};
  int64_t conv_width = 0;
  int64_t dense_ffn = 0;          // width of dense layers; 0 if there are none
  int64_t num_experts = 0;        // E, routed experts of a MoE layer; 0 if there are none
  int64_t experts_per_token = 0;  // k
  int64_t expert_ffn = 0;         // f, width of one routed expert
  int64_t shared_ffn = 0;         // width of all shared experts together, which every token visits
  bool shared_gate = false;       // shared experts are weighted by a sigmoid of the token
  bool router_bias = false;       // one number for each expert
  // One number for each expert, which only choosing takes. A record keeps it as kCorrectionParts
  // elements, so that its fp32 value is exact in any type of weights (model/tensors.h).
  bool router_correction = false;
  bool expert_bias = false;       // on all three projections of an expert
  bool tied_embeddings = false;
  HiddenParts parts = {};  // REQUIRES: whole experts where these have biases

  int64_t num_layers() const { return static_cast<int64_t>(is_moe.size()); }
  bool convolves(int64_t layer) const {
    return !is_conv.empty() && is_conv[static_cast<size_t>(layer)] != 0;
  }
  int64_t conv_layers() const;
};

// What pages: an expert, the dense part of a layer, the embedding or the head (model/tensors.h).
enum class RecordKind : uint8_t { kEmbedding, kLayer, kExpert, kHead };

struct ModelRecord {
  RecordKind kind = RecordKind::kExpert;
  int64_t layer = -1;   // kLayer, kExpert
  int64_t expert = -1;  // kExpert; its place, where experts have parts
  int64_t num_elements = 0;
};

// The parameters of one layer.
struct LayerParameters {
  int64_t attention = 0;     // with its biases and the norms inside it; or the convolution
  int64_t norms = 0;         // the two norms of the residual
  int64_t router = 0;        // elements of its record, so a correction counts three times
  int64_t feed_forward = 0;  // a dense layer's, or shared experts: every token visits them
  int64_t expert = 0;        // one routed expert; 0 in a dense layer

  // Parameters that do not depend on the number of experts.
  int64_t replicated() const { return attention + norms + router + feed_forward; }
};

struct ParameterCount {
  int64_t total = 0;
  // Parameters that work on one token: all but E - k experts of each MoE layer. The embedding
  // counts whole, as on model cards.
  int64_t active = 0;
};

// kUsage: a size that is not positive where it must be or beyond kMaxCount, heads that do not
// divide, experts or dense layers without a width, sizes of experts that no layer has, biases with
// latent attention, convolutions without a width or of another number of layers, more parameters
// than can be counted in bytes.
Status check_model(const ModelShape& shape);

// REQUIRES: check_model(shape), 0 <= layer < num_layers.
LayerParameters layer_parameters(const ModelShape& shape, int64_t layer);
// The records in their order, which every table of them keeps: the embedding, then for each layer
// its dense part and behind it its experts, and the head. REQUIRES: check_model(shape).
std::vector<ModelRecord> model_records(const ModelShape& shape);
// REQUIRES: check_model(shape). O(layers).
ParameterCount count_parameters(const ModelShape& shape);

}  // namespace pagoda
