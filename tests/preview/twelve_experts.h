// config.json of a model of three layers with twelve experts each.
#pragma once

namespace pagoda {

inline constexpr const char* kTwelveExperts = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 320,
  "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 96, "num_experts": 12,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.02, "max_position_embeddings": 2048, "mlp_only_layers": [],
  "decoder_sparse_step": 1, "attention_bias": false})";

}  // namespace pagoda
