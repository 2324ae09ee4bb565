// The models that `pagoda bench step` measures unless it is given another: they have the
// proportions of real ones at a quarter of a billion parameters. tools/bench/step_peers.py reads
// them from here.
#pragma once

namespace pagoda {

struct StepShape {
  const char* name;
  const char* config;  // config.json
};

// clang-format off
inline constexpr StepShape kStepShapes[] = {
    {"qwen3_moe", R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 8192,
  "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
  "head_dim": 128, "intermediate_size": 2048, "moe_intermediate_size": 256, "num_experts": 64,
  "num_experts_per_tok": 4, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 1000000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.001,
  "initializer_range": 0.02, "max_position_embeddings": 32768, "mlp_only_layers": [],
  "decoder_sparse_step": 1, "attention_bias": false, "eos_token_id": 256})"},
    {"mixtral", R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 8192,
  "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 3,
  "head_dim": 64, "intermediate_size": 2688, "num_local_experts": 8, "num_experts_per_tok": 2,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.02, "initializer_range": 0.02,
  "max_position_embeddings": 32768, "sliding_window": null, "eos_token_id": 256})"},
};
// clang-format on

}  // namespace pagoda
