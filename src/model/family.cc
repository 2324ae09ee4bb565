#include "model/family.h"

namespace pagoda {
namespace {

constexpr FamilySpec kFamilies[] = {
    {.model_type = "mixtral",
     .always_renormalises = true,
     .router_jitter_noise = true,
     .num_kv_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .expert_ffn = "intermediate_size",
     .router = "block_sparse_moe.gate.weight",
     .experts = "block_sparse_moe.experts",
     .gate = "w1.weight",
     .up = "w3.weight",
     .down = "w2.weight"},
    {.model_type = "olmoe",
     .qk_norm = QkNorm::kFullWidth,
     .attention_bias = true,
     .clip_qkv = true,
     .max_position_embeddings = 4096,
     .pad_token_id = 1,
     .rms_norm_eps = 1e-5,
     .router_aux_loss_coef = 0.01,
     .expert_ffn = "intermediate_size"},
    {.model_type = "qwen2_moe",
     .qkv_bias = "qkv_bias",
     .shared_expert = SharedExpert::kGated,
     .dense_layers = DenseLayers::kListed,
     .local_experts = false,
     .window = WindowRule::kPerLayer,
     .num_kv_heads = 16,
     .sliding_window = 4096,
     .max_position_embeddings = 32768},
    {.model_type = "qwen3_moe",
     .qk_norm = QkNorm::kPerHead,
     .dense_layers = DenseLayers::kListed,
     .window = WindowRule::kSwitched,
     .attention_bias = true,
     .num_kv_heads = 4,
     .sliding_window = 4096,
     .max_position_embeddings = 32768},
    {.model_type = "glm4_moe",
     .qk_norm = QkNorm::kPerHead,
     .qk_norm_switched = true,
     .qkv_bias = "attention_bias",
     .qkv_bias_default = false,
     .shared_expert = SharedExpert::kPlain,
     .dense_layers = DenseLayers::kFirst,
     .first_dense_default = 1,
     .num_experts = "n_routed_experts",
     .norm_topk_prob = true,
     .sigmoid_router = true,
     .expert_groups = true,
     .balance_loss = false,
     .partial_rotary_factor = 0.5,
     .next_token_layers = true,
     .window = WindowRule::kNever,
     .num_kv_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .router_aux_loss_coef = 0.0,
     .shared = "mlp.shared_experts."},
    {.model_type = "lfm2_moe",
     .qk_norm = QkNorm::kPerHead,
     .dense_layers = DenseLayers::kFirst,
     .first_dense = "num_dense_layers",
     .first_dense_default = 2,
     .convolutions = true,
     .local_experts = false,
     .norm_topk_prob = true,
     .sigmoid_router = true,
     .correction_switch = "use_expert_bias",
     .least_sum = 1e-6f,
     .balance_loss = false,
     .window = WindowRule::kNever,
     .num_kv_heads = 8,
     .max_position_embeddings = 128000,
     .pad_token_id = 0,
     .tie_word_embeddings = true,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .router_aux_loss_coef = 0.0,
     .norm_eps = "norm_eps",
     .tied = "tie_embedding",
     .norm1 = "operator_norm.weight",
     .norm2 = "ffn_norm.weight",
     .q_norm = "self_attn.q_layernorm.weight",
     .k_norm = "self_attn.k_layernorm.weight",
     .output = "self_attn.out_proj.weight",
     .mlp = "feed_forward.",
     .router = "feed_forward.gate.weight",
     .correction = "feed_forward.expert_bias",
     .experts = "feed_forward.experts",
     .gate = "w1.weight",
     .up = "w3.weight",
     .down = "w2.weight",
     .final_norm = "model.embedding_norm.weight"},
    {.model_type = "llama",
     .dense = true,
     .window = WindowRule::kNever,
     .attention_bias = true,
     .mlp_bias = true,
     .max_position_embeddings = 2048},
    {.model_type = "mistral",
     .dense = true,
     .num_kv_heads = 8,
     .sliding_window = 4096,
     .max_position_embeddings = 131072},
};

}  // namespace

const FamilySpec* find_family(const std::string& model_type) {
  for (const FamilySpec& family : kFamilies) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

std::string family_names(bool dense) {
  std::string names;
  for (const FamilySpec& family : kFamilies) {
    if (family.dense != dense) continue;
    names += (names.empty() ? "" : ", ") + std::string(family.model_type);
  }
  return names;
}

}  // namespace pagoda
