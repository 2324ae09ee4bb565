// A small model of twelve layers, all with experts.
#pragma once

#include "preview/model_sizes.h"

namespace pagoda {

// A token meets these parameters in a layer: in attention 512 x 64 x (8 + 2 + 2 + 8) = 0.66
// million, in two experts 2 x 3 x 512 x 512 = 1.57 million; the head has half a million.
inline ModelSizes twelve_layers() {
  return parse_model_sizes(R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 1000,
  "hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8,
  "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
  "moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2,
  "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.01, "initializer_range": 0.02,
  "max_position_embeddings": 4096, "mlp_only_layers": [], "decoder_sparse_step": 1,
  "attention_bias": false})",
                           "test")
      .take();
}

}  // namespace pagoda
