"""The configurations of the models in tests/golden."""

from transformers import (DeepseekV2Config, DeepseekV3Config, Dots1Config, Glm4MoeConfig,
                          Glm4MoeLiteConfig, GptOssConfig, GraniteMoeConfig, Lfm2MoeConfig,
                          LlamaConfig, MiniMaxM2Config, MixtralConfig, OlmoeConfig, Qwen2MoeConfig,
                          Qwen3MoeConfig)

from reference.random_sizes import COMMON

TINY = Qwen3MoeConfig(
    vocab_size=300, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, intermediate_size=48, moe_intermediate_size=24,
    num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[1],
    router_aux_loss_coef=0.01, initializer_range=0.2, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **COMMON)

TIED = Qwen3MoeConfig(
    vocab_size=131, hidden_size=40, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=3, head_dim=10, intermediate_size=64, moe_intermediate_size=20,
    num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=1,
    router_aux_loss_coef=0.02, initializer_range=0.18, tie_word_embeddings=True, rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **COMMON)

BF16 = Qwen3MoeConfig(
    vocab_size=160, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, intermediate_size=64, moe_intermediate_size=32,
    num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.01,
    initializer_range=0.15, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **COMMON)

# One of each other family, small: every family has the same layers of its own kind.
FAMILY = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
              initializer_range=0.2, pad_token_id=None, **COMMON)

# Old Mixtral configs have a window as long as the model's context.
MIXTRAL = MixtralConfig(
    num_key_value_heads=2, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
    router_aux_loss_coef=0.02, sliding_window=256,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **FAMILY)

OLMOE = OlmoeConfig(
    num_key_value_heads=2, intermediate_size=24, num_experts=4, num_experts_per_tok=2,
    router_aux_loss_coef=0.01, norm_topk_prob=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **FAMILY)

QWEN2 = Qwen2MoeConfig(
    num_key_value_heads=2, intermediate_size=40, moe_intermediate_size=24, num_experts=4,
    shared_expert_intermediate_size=28, num_experts_per_tok=2, router_aux_loss_coef=0.01,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True,
    **FAMILY)

# Groups exclude experts, the correction changes choices, half of a head is rotated.
GLM4 = Glm4MoeConfig(
    num_key_value_heads=2, head_dim=12, intermediate_size=40, moe_intermediate_size=24,
    n_routed_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2, n_shared_experts=1,
    routed_scaling_factor=1.5, first_k_dense_replace=1, attention_bias=True, use_qk_norm=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    **(FAMILY | dict(num_hidden_layers=3)))

# A convolution in a dense layer and in one with experts.
LFM2 = Lfm2MoeConfig(
    num_key_value_heads=2, intermediate_size=40, moe_intermediate_size=24, num_experts=6,
    num_experts_per_tok=2, num_dense_layers=1, routed_scaling_factor=1.25, norm_eps=1e-5,
    layer_types=["conv", "full_attention", "conv"], tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    **(FAMILY | dict(num_hidden_layers=3)))

# A window in the first layer only, some of SwiGLU beyond its limit, YaRN that mixes a pair.
GPT_OSS = GptOssConfig(
    num_key_value_heads=2, head_dim=8, intermediate_size=32, num_local_experts=4,
    num_experts_per_tok=2, sliding_window=9, swiglu_limit=3.0, output_router_logits=True,
    router_aux_loss_coef=0.02,
    rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0,
                     "beta_slow": 0.2, "truncate": False, "original_max_position_embeddings": 32},
    **FAMILY)

# Values are shorter than keys, queries have no latent, YaRN scales the scores, and groups are
# chosen by their best.
DEEPSEEK_V2 = DeepseekV2Config(
    intermediate_size=40, moe_intermediate_size=24, n_routed_experts=6, num_experts_per_tok=2,
    n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.5, n_group=3, topk_group=2,
    topk_method="group_limited_greedy", kv_lora_rank=20, q_lora_rank=None, qk_nope_head_dim=8,
    qk_rope_head_dim=4, v_head_dim=6,
    rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0,
                     "beta_slow": 0.2, "mscale": 0.707, "mscale_all_dim": 0.8,
                     "original_max_position_embeddings": 32},
    **(FAMILY | dict(num_hidden_layers=3)))

DEEPSEEK_V3 = DeepseekV3Config(
    num_key_value_heads=4, intermediate_size=40, moe_intermediate_size=24, n_routed_experts=6,
    num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
    n_group=3, topk_group=2, kv_lora_rank=20, q_lora_rank=16, qk_nope_head_dim=8,
    qk_rope_head_dim=4, v_head_dim=6, num_nextn_predict_layers=0,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    **(FAMILY | dict(num_hidden_layers=3)))

# Values are longer than keys, and rotated pairs are halves. The epsilon is so large that norms of
# latents show that they have one of their own.
GLM4_LITE = Glm4MoeLiteConfig(
    num_key_value_heads=4, intermediate_size=40, moe_intermediate_size=24, n_routed_experts=6,
    num_experts_per_tok=2, n_shared_experts=1, mlp_layer_types=["sparse", "dense", "sparse"],
    routed_scaling_factor=1.5, kv_lora_rank=20, q_lora_rank=14, qk_nope_head_dim=6,
    qk_rope_head_dim=4, v_head_dim=12, rope_interleave=False, rms_norm_eps=1e-2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    **(FAMILY | dict(num_hidden_layers=3)))

# Every multiplier does something; those of Granite 3.0's 1B model, but for its head's size.
GRANITE = GraniteMoeConfig(
    num_key_value_heads=2, intermediate_size=24, num_local_experts=6, num_experts_per_tok=3,
    embedding_multiplier=12.0, attention_multiplier=0.2, residual_multiplier=0.22,
    logits_scaling=6.0, router_aux_loss_coef=0.02, tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **FAMILY)

# A window in the last layer, and heads that are longer together than the residual.
DOTS1 = Dots1Config(
    num_key_value_heads=2, head_dim=10, intermediate_size=40, moe_intermediate_size=24,
    n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1,
    routed_scaling_factor=2.5, norm_topk_prob=True, sliding_window=9, max_window_layers=2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    **(FAMILY | dict(num_hidden_layers=3)))

# Half of a head is rotated. The loss has no balance loss, as where
# "output_router_logits" is false.
MINIMAX_M2 = MiniMaxM2Config(
    num_key_value_heads=2, head_dim=12, intermediate_size=24, num_local_experts=6,
    num_experts_per_tok=2, router_aux_loss_coef=0.0,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    **FAMILY)

LLAMA = LlamaConfig(
    num_key_value_heads=2, intermediate_size=24, rms_norm_eps=1e-5, tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 50000.0}, **FAMILY)

# Config, seed, and what the curve records of the weights after it.
FAMILIES = {
    "mixtral": (MIXTRAL, 21, ["model.layers.1.block_sparse_moe.experts.2.w3.weight"]),
    "olmoe": (OLMOE, 23, ["model.layers.0.self_attn.k_norm.weight"]),
    "qwen2_moe": (QWEN2, 35, ["model.layers.0.self_attn.k_proj.bias",
                              "model.layers.1.mlp.shared_expert_gate.weight",
                              "model.layers.1.mlp.shared_expert.down_proj.weight"]),
    "glm4_moe": (GLM4, 45, ["model.layers.0.self_attn.k_proj.bias",
                            "model.layers.1.mlp.gate.weight",
                            "model.layers.2.mlp.shared_experts.down_proj.weight"]),
    "lfm2_moe": (LFM2, 51, ["model.layers.0.conv.in_proj.weight",
                            "model.layers.2.conv.conv.weight",
                            "model.layers.1.feed_forward.gate.weight"]),
    "gpt_oss": (GPT_OSS, 61, ["model.layers.0.self_attn.sinks",
                              "model.layers.1.mlp.router.bias",
                              "model.layers.0.mlp.experts.2.up_proj.bias",
                              "model.layers.1.mlp.experts.1.down_proj.bias",
                              "model.layers.1.mlp.experts.3.gate_proj.weight"]),
    "deepseek_v2": (DEEPSEEK_V2, 71, ["model.layers.0.self_attn.q_proj.weight",
                                      "model.layers.2.self_attn.kv_b_proj.weight"]),
    "deepseek_v3": (DEEPSEEK_V3, 82, ["model.layers.0.self_attn.q_a_proj.weight",
                                      "model.layers.1.self_attn.kv_a_layernorm.weight",
                                      "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"]),
    "glm4_moe_lite": (GLM4_LITE, 91, ["model.layers.0.self_attn.q_b_proj.weight",
                                      "model.layers.1.self_attn.q_a_layernorm.weight"]),
    "granitemoe": (GRANITE, 101, ["model.embed_tokens.weight",
                                  "model.layers.0.self_attn.k_proj.weight",
                                  "model.layers.1.block_sparse_moe.router.layer.weight",
                                  "model.layers.1.block_sparse_moe.experts.2.up_proj.weight"]),
    "dots1": (DOTS1, 112, ["model.layers.0.self_attn.q_norm.weight",
                           "model.layers.1.mlp.gate.weight",
                           "model.layers.2.mlp.shared_experts.down_proj.weight"]),
    "minimax_m2": (MINIMAX_M2, 121, ["model.layers.0.self_attn.k_norm.weight",
                                     "model.layers.1.block_sparse_moe.gate.weight",
                                     "model.layers.1.block_sparse_moe.experts.3.w3.weight"]),
}
