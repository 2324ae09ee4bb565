// Models small enough for tests: config.json of a Qwen3-MoE of 2 layers (the first dense) and 3
// experts, and what makes other families of one.
#pragma once

#include "model/json_type.h"

namespace pagoda {

Json tiny_config();

// Every family as changes of kTinyConfig (tests/testing/tiny_run.h), each with most of what sets it
// apart.
inline constexpr const char* kTied = R"({"tie_word_embeddings": true})";
inline constexpr const char* kMixtral = R"({"architectures": ["MixtralForCausalLM"],
  "model_type": "mixtral", "num_experts": 6, "intermediate_size": 24, "sliding_window": 9})";
inline constexpr const char* kOlmoe = R"({"architectures": ["OlmoeForCausalLM"],
  "model_type": "olmoe", "num_experts": 6, "intermediate_size": 24, "head_dim": 8})";
inline constexpr const char* kShared = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "model_type": "qwen2_moe", "shared_expert_intermediate_size": 20, "decoder_sparse_step": 2,
  "mlp_only_layers": []})";  // layer 1 has experts
inline constexpr const char* kGlm = R"({"architectures": ["Glm4MoeForCausalLM"],
  "model_type": "glm4_moe", "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
  "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "use_qk_norm": true,
  "attention_bias": true})";
inline constexpr const char* kLfm2 = R"({"architectures": ["Lfm2MoeForCausalLM"],
  "model_type": "lfm2_moe", "num_dense_layers": 1, "num_hidden_layers": 3,
  "layer_types": ["conv", "full_attention", "conv"]})";
inline constexpr const char* kGptOss = R"({"architectures": ["GptOssForCausalLM"],
  "model_type": "gpt_oss", "intermediate_size": 24, "sliding_window": 5, "swiglu_limit": 1.0,
  "attention_bias": true})";
inline constexpr const char* kLatentV2 = R"({"architectures": ["DeepseekV2ForCausalLM"],
  "model_type": "deepseek_v2", "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
  "topk_method": "group_limited_greedy", "n_shared_experts": 2, "first_k_dense_replace": 1,
  "num_key_value_heads": 4, "kv_lora_rank": 20, "q_lora_rank": null, "qk_nope_head_dim": 8,
  "qk_rope_head_dim": 4, "v_head_dim": 6})";
inline constexpr const char* kLatent = R"({"architectures": ["DeepseekV3ForCausalLM"],
  "model_type": "deepseek_v3", "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
  "first_k_dense_replace": 1, "num_key_value_heads": 4, "kv_lora_rank": 20, "q_lora_rank": 14,
  "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6})";
inline constexpr const char* kLatentLite = R"({"architectures": ["Glm4MoeLiteForCausalLM"],
  "model_type": "glm4_moe_lite", "n_routed_experts": 6,
  "mlp_layer_types": ["sparse", "dense", "sparse"], "num_key_value_heads": 4, "kv_lora_rank": 20,
  "q_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 12,
  "rope_interleave": false})";
inline constexpr const char* kGranite = R"({"architectures": ["GraniteMoeForCausalLM"],
  "model_type": "granitemoe", "num_local_experts": 6, "intermediate_size": 24,
  "embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22,
  "logits_scaling": 6.0, "tie_word_embeddings": true})";
inline constexpr const char* kDots = R"({"architectures": ["Dots1ForCausalLM"],
  "model_type": "dots1", "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
  "routed_scaling_factor": 2.5, "sliding_window": 9, "max_window_layers": 2})";
inline constexpr const char* kMiniMax = R"({"architectures": ["MiniMaxM2ForCausalLM"],
  "model_type": "minimax_m2", "intermediate_size": 24, "rotary_dim": 4})";

// In the order of the family table (model/family.cc).
inline constexpr const char* kTinyFamilies[] = {kMixtral, kOlmoe,    kShared, "{}",        kGlm,
                                                kLfm2,    kLatentV2, kLatent, kLatentLite, kGptOss,
                                                kGranite, kDots,     kMiniMax};

}  // namespace pagoda
