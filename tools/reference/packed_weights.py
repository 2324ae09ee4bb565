"""Random weights in the quantised formats that files have them in."""

import torch
from transformers import AutoModelForCausalLM

FP8_BLOCK = (8, 4)  # rows and columns of a scale


def mxfp4_experts(config, seed):
    """Random experts of gpt-oss as its files have them: (numbers, scales) by parameter, for sizes
    that MXFP4 can have."""
    d, f = config.hidden_size, config.intermediate_size
    if config.model_type != "gpt_oss" or d % 32 or f % 32:
        return {}
    generator, packed = torch.Generator().manual_seed(seed), {}
    for layer in range(config.num_hidden_layers):
        for name, rows, columns in (("gate_up_proj", 2 * f, d), ("down_proj", d, f)):
            shape = (config.num_local_experts, rows, columns // 32)
            packed[f"model.layers.{layer}.mlp.experts.{name}"] = (
                torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8),
                torch.randint(121, 125, shape, generator=generator, dtype=torch.uint8))
    return packed


def fp8_matrices(config, seed):
    """Random matrices of DeepSeek-V3 as its files have them: (numbers, scales) by parameter,
    experts one behind the other."""
    packed = {}
    if config.model_type != "deepseek_v3" or config.q_lora_rank != 16:
        return packed
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for name, matrix in sorted(model.named_parameters()):
        if matrix.dim() < 2 or "gate.weight" in name or ".layers." not in name:
            continue
        rows, columns = matrix.shape[-2:]
        shape = (*matrix.shape[:-2], rows // FP8_BLOCK[0], columns // FP8_BLOCK[1])
        numbers = torch.randn(matrix.shape, generator=generator).to(torch.float8_e4m3fn)
        packed[name] = numbers, 0.2 * (0.5 + torch.rand(shape, generator=generator))
    return packed


def from_fp8(numbers, scales):
    """The bf16 that Transformers makes of them."""
    wide = scales.repeat_interleave(FP8_BLOCK[0], -2).repeat_interleave(FP8_BLOCK[1], -1)
    return (numbers.float() * wide).to(torch.bfloat16)
