// The architecture, as a Hugging Face config.json states it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/rope.h"
#include "model/family.h"
#include "plan/machine/model_shape.h"

namespace pagoda {

inline constexpr int64_t kMaxExperts = 4096;  // experts of a layer

// Models with experts are trained; dense ones are made into them (checkpoint/upcycle.h).
enum class ModelKind : uint8_t { kMoe, kDense };

struct ModelConfig {
  const FamilySpec* family = nullptr;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // d
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;           // not hidden_size / num_heads
  // Latent attention if kv_rank > 0 (AttentionSizes): then a head has the longer of its key and its
  // value as head_dim. query_rank 0: queries come straight from the residual.
  int64_t kv_rank = 0, query_rank = 0;
  int64_t plain_head_dim = 0, rope_head_dim = 0, value_head_dim = 0;
  bool rope_neighbours = true;    // LatentShape (kernels/ops.h)
  double query_scale = 1.0;
  int64_t intermediate_size = 0;  // ffn of dense layers
  int64_t moe_intermediate_size = 0;  // ffn of one expert
  HiddenParts parts = {};  // of experts in a run (model/hidden_parts.h); no file has them
  int64_t shared_intermediate_size = 0;  // ffn of the expert that every token visits; 0: none
  bool shared_gate = false;       // it is weighted by a sigmoid of the token
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;  // top-k
  double swiglu_slope = 1.0, swiglu_offset = 0.0;  // SwigluShape (kernels/ops.h), of experts
  double swiglu_limit = std::numeric_limits<double>::infinity();
  bool mxfp4 = false;             // the experts' matrices are stored so
  // Matrices may be stored in fp8, a scale for each block of so many rows and columns; 0: none is.
  int64_t fp8_rows = 0, fp8_columns = 0;
  bool norm_topk_prob = false;
  bool router_correction = false;     // a number for each expert that only the choice takes
  int64_t expert_groups = 1, expert_groups_chosen = 1;  // RouterShape (kernels/ops.h)
  double routed_scaling_factor = 1.0;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  int64_t first_dense_layers = 0;
  std::vector<uint8_t> conv_layers;  // (num_layers), or empty: ModelShape::is_conv
  int64_t conv_width = 0;
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
  double rms_norm_eps = 1e-6;
  // What look-ups in the embedding, and logits, are multiplied by.
  double embedding_scale = 1.0, logits_scale = 1.0;
  Rotation rotation;
  int64_t rotary_dim = 0;         // the first numbers of a head, which rotary embedding turns
  bool tie_word_embeddings = false;
  double router_aux_loss_coef = 0.001;
  double initializer_range = 0.02;
  int64_t max_position_embeddings = 0;
  int64_t sliding_window = 0;     // keys a query sees where layers slide; 0: no layer does
  std::vector<uint8_t> sliding_layers;  // (num_layers), or empty: all slide
  int64_t pad_token_id = -1;      // its embedding is not trained; -1: none
  // Layers that predict further tokens and are not trained: N = num_layers and on, as many as this.
  int64_t next_token_layers = 0;

  // The text that this was parsed from; export writes it back.
  std::string json;

  // Transformers decides this the same way: the layer is not in mlp_only_layers nor among the first
  // dense ones, experts exist, and the sparse step divides layer + 1.
  bool is_moe_layer(int64_t layer) const;
  int64_t num_moe_layers() const;
  bool latent() const { return kv_rank > 0; }
  bool fp8() const { return fp8_rows > 0; }
  bool quantised() const { return mxfp4 || fp8(); }
  int64_t key_dim() const { return plain_head_dim + rope_head_dim; }  // latent attention's
  bool output_bias() const { return family->output_bias && qkv_bias; }
  // The layer has a gated short convolution in attention's place.
  bool is_conv_layer(int64_t layer) const;
  // The keys that a query of the layer sees; 0: all.
  int64_t window_of(int64_t layer) const;

  // Parses and checks (every field a positive size where it must be, products within int64, limits
  // of docs/reliability.md). Refuses families and features it does not implement by name: another
  // model_type or kind, rope_scaling but YaRN and Llama 3's, clip_qkv, router noise, biases that
  // the family has not, another activation, quantised weights but gpt-oss's MXFP4 and fp8 in
  // blocks, expert groups that do not divide. Fields that Transformers accepts and ignores, such as
  // another family's keys, are accepted. `where` names the file in errors (kBadData).
  static Result<ModelConfig> parse(const std::string& json, const std::string& where,
                                   ModelKind kind = ModelKind::kMoe);
};

// The sizes of the same architecture, as planning and the workspace take them.
ModelShape model_shape(const ModelConfig& config);

}  // namespace pagoda
