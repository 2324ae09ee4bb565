"""Configurations of random sizes and switches, by which a family is tried out."""

from transformers import Glm4MoeConfig, Lfm2MoeConfig

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


# A draw (random.Random) gives the configuration.
CONFIGS = {"glm4_moe": random_glm4, "lfm2_moe": random_lfm2}
