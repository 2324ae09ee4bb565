#!/usr/bin/env python3
"""Writes tests/golden/gguf: what llama.cpp's own Python package makes of the golden models.

    pip install gguf==0.19.0 safetensors==0.8.0 torch==2.9.1
    python tools/make_gguf_goldens.py            # the goldens
    python tools/make_gguf_goldens.py --check FILE.gguf --model FOLDER [--type q8_0]

format.gguf is a small file of GGUFWriter. MODEL.json has, for each type, the entries and tensors
that a file of the golden model must have: name, shape as ggml counts it, type and the SHA-256 of
the bytes, rounded by gguf.quants. Names and layouts are those of convert_hf_to_gguf.py. --check
reads an exported file with GGUFReader and compares it with a folder by the same rules.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from gguf import (MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, GGUFWriter,
                  get_tensor_name_map, quants)
from safetensors.torch import load_file

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden" / "gguf"
TYPES = {"fp32": GGMLQuantizationType.F32, "bf16": GGMLQuantizationType.BF16,
         "q8_0": GGMLQuantizationType.Q8_0}
ARCHITECTURES = {"mixtral": "llama", "olmoe": "olmoe", "qwen2_moe": "qwen2moe",
                 "qwen3_moe": "qwen3moe", "granitemoe": "granitemoe", "minimax_m2": "minimax-m2",
                 "lfm2_moe": "lfm2moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2"}
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
         "block_sparse_moe.gate": "ffn_gate_inp",
         "block_sparse_moe.router.layer": "ffn_gate_inp",
         "block_sparse_moe.output_linear": "ffn_down_exps", "block_sparse_moe": "exp_probs_b",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
         "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.k_b_proj": "attn_k_b",
         "self_attn.v_b_proj": "attn_v_b", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
         "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
         "self_attn.out_proj": "attn_output", "conv.in_proj": "shortconv.in_proj",
         "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj",
         "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
         "feed_forward.gate": "ffn_gate_inp", "feed_forward": "exp_probs_b"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "model.embedding_norm": "token_embd_norm"}
# What golden models have that llama.cpp does not compute.
PATCHES = {"lfm2_moe": {"routed_scaling_factor": 1.0}, "deepseek_v3": {"n_group": 1,
                                                                       "topk_group": 1}}
EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
          "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def permuted(rows, heads):
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    return (rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
            .swapaxes(1, 2).reshape(rows.shape))


def renamed(config, tensors):
    """The folder's tensors by llama.cpp's names, experts stacked."""
    experts, found = {}, {}
    arch = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    known = get_tensor_name_map(arch[ARCHITECTURES[config["model_type"]]],
                                config["num_hidden_layers"])
    for name, tensor in tensors.items():
        tensor = tensor.float().numpy()
        base, _, ending = name.rpartition(".")
        if base in OUTSIDE:
            found[f"{OUTSIDE[base]}.{ending}"] = tensor
            continue
        _, _, layer, rest = base.split(".", 3)
        if ".experts." in rest:
            _, _, expert = rest.partition(".experts.")
            number, part = expert.split(".")
            experts.setdefault(f"blk.{layer}.{EXPERT[part]}.{ending}", {})[int(number)] = tensor
            continue
        if rest.endswith("input_linear"):
            gate, up = np.split(tensor, 2, axis=1)
            found |= {f"blk.{layer}.ffn_gate_exps.weight": gate,
                      f"blk.{layer}.ffn_up_exps.weight": up}
            continue
        if ending in ("e_score_correction_bias", "expert_bias"):
            ending, rest = "bias", "feed_forward"
        if rest == "self_attn.kv_b_proj":  # DeepseekV2Model.modify_tensors
            key = config["qk_nope_head_dim"]
            heads = tensor.reshape(config["num_attention_heads"], -1, tensor.shape[1])
            found |= {f"blk.{layer}.attn_k_b.weight": heads[:, :key].swapaxes(1, 2),
                      f"blk.{layer}.attn_v_b.weight": heads[:, key:]}
            continue
        if (config["model_type"] in ("mixtral", "granitemoe")
                and rest.endswith(("q_proj", "k_proj"))):
            heads = config["num_attention_heads" if rest.endswith("q_proj")
                           else "num_key_value_heads"]
            tensor = permuted(tensor, heads)
        name = f"blk.{layer}.{LAYER[rest]}"
        if "exp_probs_b" not in name:  # it shares its base with the router
            assert known.get_name(base) in (None, name), (base, name, known.get_name(base))
        found[f"{name}.{ending}"] = tensor.squeeze()
    for name, parts in experts.items():
        found[name] = np.stack([parts[e] for e in range(len(parts))])
    return found


def type_of(name, tensor, wanted):
    if tensor.ndim == 1 or "ffn_gate_inp" in name or "shortconv.conv" in name:
        return GGMLQuantizationType.F32
    if wanted == GGMLQuantizationType.Q8_0 and tensor.shape[-1] % 32 != 0:
        return GGMLQuantizationType.F16
    return wanted


def expected_tensors(config, tensors, wanted):
    out = {}
    for name, tensor in renamed(config, tensors).items():
        kind = type_of(name, tensor, wanted)
        data = quants.quantize(np.ascontiguousarray(tensor), kind)
        out[name] = dict(shape=list(reversed(tensor.shape)), type=int(kind),
                         sha256=hashlib.sha256(data.tobytes()).hexdigest())
    return out


def expected_entries(config, wanted):
    """What convert_hf_to_gguf.py would say of the architecture, as far as the test asks."""
    arch = ARCHITECTURES[config["model_type"]]
    rope = config.get("rope_parameters") or {}
    heads = config["num_attention_heads"]
    experts = next(config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts")
                   if key in config)
    entries = {
        "general.architecture": arch,
        "general.file_type": {"F32": 0, "BF16": 32, "Q8_0": 7}[wanted.name],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": (config.get("head_dim")
                                         or config["hidden_size"] // heads),
        f"{arch}.attention.layer_norm_rms_epsilon": config.get("rms_norm_eps",
                                                               config.get("norm_eps")),
        f"{arch}.rope.freq_base": rope.get("rope_theta", config.get("rope_theta")),
        f"{arch}.expert_count": experts,
        f"{arch}.expert_used_count": config["num_experts_per_tok"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
    }
    if config["model_type"] == "granitemoe":
        entries |= {f"{arch}.logit_scale": config["logits_scaling"],
                    f"{arch}.residual_scale": config["residual_multiplier"],
                    f"{arch}.embedding_scale": config["embedding_multiplier"],
                    f"{arch}.attention.scale": config["attention_multiplier"]}
    if config["model_type"] == "minimax_m2":
        entries |= {f"{arch}.expert_gating_func": 2,
                    f"{arch}.expert_feed_forward_length": config["intermediate_size"],
                    f"{arch}.rope.dimension_count":
                        int(config["head_dim"] * rope["partial_rotary_factor"])}
    if "kv_lora_rank" in config:
        entries |= {f"{arch}.attention.head_count_kv": 1,
                    f"{arch}.attention.key_length": (config["kv_lora_rank"]
                                                     + config["qk_rope_head_dim"]),
                    f"{arch}.attention.value_length": config["kv_lora_rank"],
                    f"{arch}.attention.key_length_mla": (config["qk_nope_head_dim"]
                                                         + config["qk_rope_head_dim"]),
                    f"{arch}.attention.value_length_mla": config["v_head_dim"],
                    f"{arch}.attention.kv_lora_rank": config["kv_lora_rank"],
                    f"{arch}.rope.dimension_count": config["qk_rope_head_dim"],
                    f"{arch}.leading_dense_block_count": config["first_k_dense_replace"],
                    f"{arch}.expert_shared_count": config["n_shared_experts"],
                    f"{arch}.expert_weights_scale": config["routed_scaling_factor"],
                    f"{arch}.expert_weights_norm": config["norm_topk_prob"]}
        if config["q_lora_rank"] is not None:
            entries[f"{arch}.attention.q_lora_rank"] = config["q_lora_rank"]
    if config["model_type"] == "lfm2_moe":
        entries |= {f"{arch}.attention.head_count_kv":
                        [config["num_key_value_heads"] if kind == "full_attention" else 0
                         for kind in config["layer_types"]],
                    f"{arch}.shortconv.l_cache": config["conv_L_cache"],
                    f"{arch}.leading_dense_block_count": config["num_dense_layers"],
                    f"{arch}.expert_gating_func": 2}
    if "moe_intermediate_size" in config:
        entries[f"{arch}.expert_feed_forward_length"] = config["moe_intermediate_size"]
    if "shared_expert_intermediate_size" in config:
        entries[f"{arch}.expert_shared_feed_forward_length"] = (
            config["shared_expert_intermediate_size"])
    return entries


def folder_of(path):
    config = json.loads((path / "config.json").read_text())
    tensors = {}
    for file in sorted(path.glob("model*.safetensors")):
        tensors |= load_file(file)
    return config, tensors


def make_format():
    """All that a file can have, in the order of gguf_file_test.cc."""
    writer = GGUFWriter(OUT / "format.gguf", "test")
    writer.add_string("a.text", "räksmörgås")
    writer.add_uint32("a.number", 4000000000)
    writer.add_float32("a.real", 1.5)
    writer.add_bool("a.flag", True)
    writer.add_array("a.texts", ["", "x", "yz"])
    writer.add_array("a.numbers", [-1, 2, 3])
    writer.add_array("a.reals", [0.5, -2.25])
    values = np.array([((i * 7919) % 257 - 128) / 64 for i in range(96)], dtype=np.float32)
    values[32:64] = 0  # a block without a scale
    for name, kind in (("one", GGMLQuantizationType.F32), ("two", GGMLQuantizationType.BF16),
                       ("three", GGMLQuantizationType.Q8_0), ("four", GGMLQuantizationType.F16)):
        shape = (3,) if name == "one" else (3, 32)
        data = values[:3] if name == "one" else values.reshape(shape)
        encoded = quants.quantize(data, kind)
        writer.add_tensor(name, encoded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(path, folder, wanted):
    config, tensors = folder_of(folder)
    reader = GGUFReader(path)
    want, seen = expected_tensors(config, tensors, wanted), set()
    for tensor in reader.tensors:
        expected = want[tensor.name]
        got = dict(shape=[int(n) for n in tensor.shape], type=int(tensor.tensor_type),
                   sha256=hashlib.sha256(tensor.data.tobytes()).hexdigest())
        assert got == expected, (tensor.name, got, expected)
        seen.add(tensor.name)
    assert seen == set(want), seen ^ set(want)
    for key, value in expected_entries(config, wanted).items():
        got = reader.fields[key].contents()
        same = got == value or (isinstance(value, float) and abs(got - value) <= 1e-6 * abs(value))
        assert same, (key, got, value)
    print(f"{path}: {len(seen)} tensors and the entries are those of {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", type=Path, help="an exported file")
    parser.add_argument("--model", type=Path, help="with --check: the folder it came from")
    parser.add_argument("--type", choices=sorted(TYPES), default="bf16")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        return check(arguments.check, arguments.model, TYPES[arguments.type])
    OUT.mkdir(exist_ok=True)
    make_format()
    for name in ("mixtral", "qwen2_moe", "qwen3_moe_bf16", "granitemoe", "minimax_m2", "lfm2_moe",
                 "deepseek_v3"):
        config, tensors = folder_of(OUT.parent / name)
        config |= PATCHES.get(name, {})
        golden = {"patch": PATCHES.get(name, {})} if name in PATCHES else {}
        golden |= {of: dict(entries=expected_entries(config, kind),
                           tensors=expected_tensors(config, tensors, kind))
                   for of, kind in TYPES.items()}
        (OUT / f"{name}.json").write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
