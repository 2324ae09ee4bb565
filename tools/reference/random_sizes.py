"""Configurations of random sizes and switches, by which a family is tried out."""

from transformers import (DeepseekV2Config, DeepseekV3Config, Dots1Config, Glm4MoeConfig,
                          Glm4MoeLiteConfig, GptOssConfig, GraniteMoeConfig, Lfm2MoeConfig,
                          MiniMaxM2Config, MixtralConfig, OlmoeConfig, Qwen2MoeConfig,
                          Qwen3MoeConfig)

COMMON = dict(max_position_embeddings=256, bos_token_id=None, eos_token_id=1)


def random_glm4(draw):
    kv_heads, groups, size = draw.randint(1, 3), draw.randint(1, 4), draw.randint(2, 5)
    chosen, layers = draw.randint(1, groups), draw.randint(1, 4)
    size = max(size, 3) if groups == 1 else size  # some expert is refused
    dim = 2 * draw.randint(2, 9)
    turned = [d for d in range(2, dim + 1, 2) if int(dim * (d / dim)) == d]  # exact as a quotient
    return Glm4MoeConfig(
        vocab_size=draw.randint(40, 150), hidden_size=8 * draw.randint(2, 7),
        num_hidden_layers=layers, num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * draw.randint(1, 3), head_dim=dim,
        intermediate_size=draw.randint(8, 60), moe_intermediate_size=4 * draw.randint(1, 10),
        n_routed_experts=groups * size, n_group=groups, topk_group=chosen,
        num_experts_per_tok=draw.randint(2, min(4, chosen * size)),  # 1: nothing to train
        n_shared_experts=draw.randint(1, 3), first_k_dense_replace=draw.randint(0, layers - 1),
        routed_scaling_factor=draw.choice([1.0, 0.7, 2.5]),
        norm_topk_prob=draw.random() < 0.7, attention_bias=draw.random() < 0.5,
        use_qk_norm=draw.random() < 0.5, tie_word_embeddings=draw.random() < 0.5,
        rms_norm_eps=draw.choice([1e-5, 1e-6]), initializer_range=0.2, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6]),
                         "partial_rotary_factor": draw.choice(turned) / dim}, **COMMON)


def random_lfm2(draw):
    heads, kv_heads, layers = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 5)
    experts, dim = draw.randint(3, 9), 4 * draw.randint(1, 4)
    kinds = [draw.choice(["conv", "full_attention"]) for _ in range(layers)]
    return Lfm2MoeConfig(
        vocab_size=draw.randint(40, 150), hidden_size=heads * kv_heads * dim,
        num_hidden_layers=layers, num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * heads, intermediate_size=draw.randint(8, 60),
        moe_intermediate_size=4 * draw.randint(1, 10), num_experts=experts,
        num_experts_per_tok=draw.randint(2, min(4, experts - 1)),
        num_dense_layers=draw.randint(0, layers - 1), layer_types=kinds,
        conv_L_cache=draw.randint(2, 5), routed_scaling_factor=draw.choice([1.0, 0.7, 2.5]),
        norm_topk_prob=draw.random() < 0.7, use_expert_bias=draw.random() < 0.7,
        tie_word_embeddings=draw.random() < 0.5, norm_eps=draw.choice([1e-5, 1e-6]),
        initializer_range=0.2, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6])}, **COMMON)


def random_yarn(draw):
    rope = {"rope_type": "yarn", "rope_theta": draw.choice([1e4, 1.5e5]),
            "factor": draw.choice([4.0, 8.0]), "original_max_position_embeddings": 32,
            "beta_fast": draw.choice([4.0, 32.0]), "beta_slow": draw.choice([0.2, 1.0]),
            "truncate": draw.random() < 0.5}
    if draw.random() < 0.3:
        rope["attention_factor"] = 1.2
    return rope


def random_llama3(draw):
    return {"rope_type": "llama3", "rope_theta": draw.choice([1e4, 5e5]),
            "factor": draw.choice([8.0, 32.0]), "low_freq_factor": draw.choice([0.5, 1.0]),
            "high_freq_factor": draw.choice([2.0, 4.0]), "original_max_position_embeddings": 32}


def random_rope(draw):
    plain = {"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6])}
    return draw.choice([plain, random_yarn(draw), random_llama3(draw)])


def random_softmax(draw):
    """What the oldest families have in common: every layer but the last may be dense."""
    kv_heads, layers, experts = draw.randint(1, 3), draw.randint(1, 4), draw.randint(3, 9)
    heads = kv_heads * draw.randint(1, 3)
    return dict(
        vocab_size=draw.randint(40, 150), hidden_size=heads * 4 * draw.randint(1, 4),
        num_hidden_layers=layers, num_key_value_heads=kv_heads, num_attention_heads=heads,
        intermediate_size=4 * draw.randint(2, 15), num_experts=experts,
        num_experts_per_tok=draw.randint(2, min(4, experts - 1)),
        norm_topk_prob=draw.random() < 0.5, router_aux_loss_coef=draw.choice([0.0, 0.02]),
        tie_word_embeddings=draw.random() < 0.5, rms_norm_eps=draw.choice([1e-5, 1e-6]),
        initializer_range=0.2, pad_token_id=None, rope_parameters=random_rope(draw), **COMMON)


def random_qwen(draw):
    sizes = random_softmax(draw)
    dense = [layer for layer in range(sizes["num_hidden_layers"] - 1) if draw.random() < 0.3]
    return sizes | dict(mlp_only_layers=dense, moe_intermediate_size=4 * draw.randint(1, 10))


def random_qwen2(draw):
    return Qwen2MoeConfig(shared_expert_intermediate_size=4 * draw.randint(1, 10),
                          **random_qwen(draw))


def random_qwen3(draw):
    return Qwen3MoeConfig(head_dim=2 * draw.randint(2, 9), **random_qwen(draw))


def random_olmoe(draw):
    return OlmoeConfig(**random_softmax(draw))


def random_gpt_oss(draw):
    kv_heads, layers, experts = draw.randint(1, 3), draw.randint(1, 4), draw.randint(3, 9)
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    plain = {"rope_type": "default", "rope_theta": 1e4}
    return GptOssConfig(
        vocab_size=draw.randint(40, 150), hidden_size=8 * draw.randint(2, 7),
        num_hidden_layers=layers, num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * draw.randint(1, 3), head_dim=2 * draw.randint(2, 9),
        intermediate_size=4 * draw.randint(1, 10), num_local_experts=experts,
        num_experts_per_tok=draw.randint(2, min(4, experts - 1)),
        sliding_window=draw.randint(2, 30), layer_types=draw.choice([kinds, None]),
        attention_bias=draw.random() < 0.7, tie_word_embeddings=draw.random() < 0.5,
        swiglu_limit=draw.choice([1.5, 7.0]), swiglu_alpha=draw.choice([1.702, 1.0]),
        output_router_logits=True, router_aux_loss_coef=draw.choice([0.0, 0.02]),
        rms_norm_eps=draw.choice([1e-5, 1e-6]), initializer_range=0.2, pad_token_id=None,
        rope_parameters=plain if draw.random() < 0.3 else random_yarn(draw), **COMMON)


def random_mixtral(draw):
    """Windows in every layer, and YaRN or Llama 3's rope scaling."""
    kv_heads, experts = draw.randint(1, 3), draw.randint(3, 6)
    return MixtralConfig(
        vocab_size=draw.randint(40, 150), hidden_size=8 * draw.randint(2, 7),
        num_hidden_layers=draw.randint(1, 3), num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * draw.randint(1, 3), head_dim=2 * draw.randint(2, 9),
        intermediate_size=4 * draw.randint(1, 10), num_local_experts=experts,
        num_experts_per_tok=draw.randint(2, experts - 1), sliding_window=draw.randint(2, 30),
        router_aux_loss_coef=0.02, initializer_range=0.2, pad_token_id=None,
        rope_parameters=draw.choice([random_yarn, random_llama3])(draw), **COMMON)


def random_latent(draw):
    """What the families with latent attention have in common."""
    heads, groups, size, layers = (draw.randint(1, 4), draw.randint(1, 4), draw.randint(2, 5),
                                   draw.randint(1, 4))
    chosen = draw.randint(1, groups)
    size = max(size, 3) if groups == 1 else size
    plain, rotated, value = draw.randint(1, 9), 2 * draw.randint(1, 5), draw.randint(1, 20)
    plain += (plain + rotated) % 2
    value += value % 2
    return dict(
        vocab_size=draw.randint(40, 150), hidden_size=8 * heads * draw.randint(1, 3),
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=draw.randint(8, 60), moe_intermediate_size=4 * draw.randint(1, 10),
        n_routed_experts=groups * size, num_experts_per_tok=draw.randint(2, min(4, chosen * size)),
        n_group=groups, topk_group=chosen, n_shared_experts=draw.randint(1, 3),
        first_k_dense_replace=draw.randint(0, layers - 1),
        routed_scaling_factor=draw.choice([1.0, 0.7, 2.5]), kv_lora_rank=draw.randint(3, 30),
        q_lora_rank=draw.choice([None, draw.randint(17, 30)]), qk_nope_head_dim=plain,
        qk_rope_head_dim=rotated, v_head_dim=value, tie_word_embeddings=draw.random() < 0.5,
        rms_norm_eps=draw.choice([1e-5, 1e-6]), initializer_range=0.2, pad_token_id=None,
        rope_parameters=random_mscale(draw), **COMMON)


def random_mscale(draw):
    if draw.random() < 0.4:
        return {"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6])}
    sizes = [{}, {"mscale": 0.707, "mscale_all_dim": 0.8}, {"mscale": 1.0, "mscale_all_dim": 1.0}]
    return random_yarn(draw) | draw.choice(sizes)


def random_deepseek_v2(draw):
    """Even sizes, since Transformers sees rotated pairs as complex numbers."""
    sizes = random_latent(draw)
    for key in ("kv_lora_rank", "qk_nope_head_dim"):
        sizes[key] += sizes[key] % 2
    method = draw.choice(["greedy", "group_limited_greedy"])
    return DeepseekV2Config(topk_method=method, **sizes)


def random_deepseek_v3(draw):
    return DeepseekV3Config(rope_interleave=draw.random() < 0.5, norm_topk_prob=draw.random() < 0.7,
                            num_nextn_predict_layers=0, **random_latent(draw))


def random_glm4_moe_lite(draw):
    sizes = random_latent(draw)
    layers = sizes["num_hidden_layers"]
    kinds = [draw.choice(["dense", "sparse"]) for _ in range(layers - 1)] + ["sparse"]
    del sizes["first_k_dense_replace"]
    return Glm4MoeLiteConfig(rope_interleave=draw.random() < 0.5, mlp_layer_types=kinds, **sizes)


def random_granite(draw):
    kv_heads, experts = draw.randint(1, 3), draw.randint(3, 9)
    heads = kv_heads * draw.randint(1, 3)
    return GraniteMoeConfig(
        vocab_size=draw.randint(40, 150), hidden_size=heads * 4 * draw.randint(1, 4),
        num_hidden_layers=draw.randint(1, 4), num_key_value_heads=kv_heads,
        num_attention_heads=heads, intermediate_size=4 * draw.randint(1, 10),
        num_local_experts=experts, num_experts_per_tok=draw.randint(2, min(4, experts - 1)),
        embedding_multiplier=draw.choice([1.0, 12.0, 0.3]),
        attention_multiplier=draw.choice([1.0, 0.0625, 0.2]),
        residual_multiplier=draw.choice([1.0, 0.22, 1.7]),
        logits_scaling=draw.choice([1.0, 6.0, 0.5]), tie_word_embeddings=draw.random() < 0.5,
        router_aux_loss_coef=draw.choice([0.0, 0.02]), rms_norm_eps=draw.choice([1e-5, 1e-6]),
        initializer_range=0.2, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6])}, **COMMON)


def random_dots1(draw):
    """GLM-4.5's sizes, but for what attention has."""
    sizes = random_glm4(draw)
    layers = sizes.num_hidden_layers
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    same = {key: getattr(sizes, key) for key in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads",
        "num_attention_heads", "head_dim", "intermediate_size", "moe_intermediate_size",
        "n_routed_experts", "n_group", "topk_group", "num_experts_per_tok", "n_shared_experts",
        "first_k_dense_replace", "routed_scaling_factor", "norm_topk_prob", "tie_word_embeddings",
        "rms_norm_eps", "initializer_range", "pad_token_id")}
    return Dots1Config(
        sliding_window=draw.choice([None, draw.randint(2, 30)]),
        max_window_layers=draw.randint(0, layers),
        layer_types=None if same["n_group"] > 1 else kinds,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6])}, **same,
        **COMMON)


def random_minimax_m2(draw):
    kv_heads, experts, dim = draw.randint(1, 3), draw.randint(3, 9), 2 * draw.randint(2, 9)
    turned = [d for d in range(2, dim + 1, 2) if int(dim * (d / dim)) == d]
    return MiniMaxM2Config(
        vocab_size=draw.randint(40, 150), hidden_size=8 * draw.randint(2, 7),
        num_hidden_layers=draw.randint(1, 4), num_key_value_heads=kv_heads,
        num_attention_heads=kv_heads * draw.randint(1, 3), head_dim=dim,
        intermediate_size=4 * draw.randint(1, 10), num_local_experts=experts,
        num_experts_per_tok=draw.randint(2, min(4, experts - 1)),
        rms_norm_eps=draw.choice([1e-5, 1e-6]), tie_word_embeddings=draw.random() < 0.5,
        initializer_range=0.2, pad_token_id=None, router_aux_loss_coef=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([1e4, 5e6]),
                         "partial_rotary_factor": draw.choice(turned) / dim}, **COMMON)


# A draw (random.Random) gives the configuration.
CONFIGS = {"glm4_moe": random_glm4, "lfm2_moe": random_lfm2, "gpt_oss": random_gpt_oss,
           "mixtral": random_mixtral, "deepseek_v2": random_deepseek_v2,
           "deepseek_v3": random_deepseek_v3, "glm4_moe_lite": random_glm4_moe_lite,
           "granitemoe": random_granite, "dots1": random_dots1, "minimax_m2": random_minimax_m2,
           "olmoe": random_olmoe, "qwen2_moe": random_qwen2, "qwen3_moe_bf16": random_qwen3}
