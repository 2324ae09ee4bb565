#include "train/planned_model.h"

namespace pagoda {
namespace {

AttentionShape attention_shape(const ModelConfig& config) {
  AttentionShape attention;
  attention.heads = config.num_heads;
  attention.kv_heads = config.num_kv_heads;
  attention.head_dim = attention.value_head_dim = config.head_dim;
  attention.qkv_bias = config.qkv_bias;
  if (config.family->qk_norm != QkNorm::kNone) {
    const bool full = config.family->qk_norm == QkNorm::kFullWidth;
    attention.query_norm = config.head_dim * (full ? config.num_heads : 1);
    attention.key_norm = config.head_dim * (full ? config.num_kv_heads : 1);
  }
  return attention;
}

}  // namespace

ModelShape model_shape(const ModelConfig& config) {
  ModelShape shape;
  shape.vocab_size = config.vocab_size;
  shape.hidden_size = config.hidden_size;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.is_moe.push_back(config.is_moe_layer(layer));
  }
  shape.attention = attention_shape(config);
  shape.dense_ffn = config.intermediate_size;
  shape.tied_embeddings = config.tie_word_embeddings;
  if (config.num_moe_layers() == 0) return shape;
  shape.num_experts = config.num_experts;
  shape.experts_per_token = config.experts_per_token;
  shape.expert_ffn = config.moe_intermediate_size;
  shape.shared_ffn = config.shared_intermediate_size;
  shape.shared_gate = config.shared_intermediate_size > 0;
  return shape;
}

}  // namespace pagoda
