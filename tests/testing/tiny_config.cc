#include "tests/testing/tiny_config.h"

#include "model/json.h"

namespace pagoda {

Json tiny_config() {
  return Json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
    "vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24,
    "moe_intermediate_size": 12, "num_experts": 3, "num_experts_per_tok": 2,
    "norm_topk_prob": true, "mlp_only_layers": [0], "decoder_sparse_step": 1,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false,
    "router_aux_loss_coef": 0.01, "initializer_range": 0.02, "max_position_embeddings": 128,
    "attention_bias": false, "torch_dtype": "bfloat16", "eos_token_id": 256
  })");
}

}  // namespace pagoda
