// config.json of a model of one layer, with experts.
#pragma once

namespace pagoda {

// A layer, which no stages share, of 16 experts of 3 x 1,024 x 512 elements.
inline constexpr const char* kOneLayer = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 8000,
  "hidden_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 16,
  "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 4096,
  "moe_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 4,
  "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.01, "initializer_range": 0.02,
  "max_position_embeddings": 65536, "mlp_only_layers": [], "decoder_sparse_step": 1,
  "attention_bias": false})";

}  // namespace pagoda
