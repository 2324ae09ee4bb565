#!/usr/bin/env python3
"""Checks the GGUF of every family that llama.cpp has, on models of random weights.

    python tools/gguf_families.py build/release/pagoda FOLDER [NAME ...]

Each model is made in FOLDER/NAME (pagoda init), gets weights large enough that attention and
experts decide the logits, which those of init do not, trains three steps in fp32, and is exported
as a folder and as GGUF, both fp32, which tools/check_gguf.py compares. Prints its last line for
each; exit 1 if one differs but gptoss_real, which must: its YaRN is what llama.cpp cannot be told.
Packages as for tools/check_gguf.py.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

BASE = dict(vocab_size=272, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=96, moe_intermediate_size=48,
            num_experts_per_tok=2, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0,
            tie_word_embeddings=False, max_position_embeddings=512, norm_topk_prob=True)
LOCAL = dict(num_local_experts=8, intermediate_size=48)
ROUTED = dict(n_routed_experts=8, n_group=1, topk_group=1, first_k_dense_replace=1,
              num_key_value_heads=4)
LATENT = ROUTED | dict(kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8,
                       v_head_dim=12, n_shared_experts=1, routed_scaling_factor=1.0)


def yarn(factor, positions, **more):
    return dict(rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0,
                original_max_position_embeddings=positions) | more


LFM2 = dict(model_type="lfm2_moe", architectures=["Lfm2MoeForCausalLM"], num_experts=8,
            num_dense_layers=1, conv_L_cache=3, conv_bias=False, norm_eps=1e-5,
            use_expert_bias=True, routed_scaling_factor=1.0, tie_word_embeddings=True,
            layer_types=["conv", "full_attention", "conv"])
V2 = LATENT | dict(model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"],
                   topk_method="greedy", norm_topk_prob=False)
LITE = V2 | dict(q_lora_rank=None, num_hidden_layers=27)
V3 = LATENT | dict(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"],
                   topk_method="noaux_tc", scoring_func="sigmoid")
GPT_OSS = LOCAL | dict(model_type="gpt_oss", architectures=["GptOssForCausalLM"], head_dim=16,
                       sliding_window=16, swiglu_limit=7.0, attention_bias=True, rms_norm_eps=1e-5,
                       layer_types=["sliding_attention", "full_attention", "sliding_attention"])
MODELS = {
    "mixtral": LOCAL | dict(model_type="mixtral", architectures=["MixtralForCausalLM"]),
    "qwen3": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=8,
                  head_dim=32),
    "olmoe": dict(model_type="olmoe", architectures=["OlmoeForCausalLM"], num_experts=8,
                  num_key_value_heads=4, intermediate_size=48, norm_topk_prob=False),
    "qwen2": dict(model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"], num_experts=8,
                  norm_topk_prob=False, shared_expert_intermediate_size=40),
    "glm4": ROUTED | dict(model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"],
                          num_key_value_heads=2, n_shared_experts=1, routed_scaling_factor=1.5,
                          use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5,
                          head_dim=16),
    "lfm2": LFM2,
    "lfm2_6": LFM2 | dict(num_hidden_layers=6, num_dense_layers=2, conv_L_cache=4,
                          layer_types=["conv", "conv", "full_attention", "conv", "full_attention",
                                       "conv"]),
    "v2": V2 | dict(routed_scaling_factor=16.0, n_shared_experts=2),
    "v2lite": LITE,
    "v2lite_yarn": LITE | dict(rope_scaling=yarn(4, 64, mscale=0.707, mscale_all_dim=0.707)),
    "v3": V3,
    "v3_yarn": V3 | dict(rope_scaling=yarn(4, 64, mscale=1.0, mscale_all_dim=1.0),
                         routed_scaling_factor=2.5),
    "v3_unnormed": V3 | dict(routed_scaling_factor=2.5, norm_topk_prob=False, n_shared_experts=2),
    "moonlight": V3 | dict(q_lora_rank=None, num_hidden_layers=27, routed_scaling_factor=2.446),
    "granite": LOCAL | dict(model_type="granitemoe", architectures=["GraniteMoeForCausalLM"],
                            embedding_multiplier=12.0, attention_multiplier=0.2,
                            residual_multiplier=0.22, logits_scaling=6.0,
                            tie_word_embeddings=True),
    "dots": ROUTED | dict(model_type="dots1", architectures=["Dots1ForCausalLM"],
                          n_shared_experts=2, routed_scaling_factor=2.5, head_dim=16),
    "minimax": LOCAL | dict(model_type="minimax_m2", architectures=["MiniMaxM2ForCausalLM"],
                            rotary_dim=8, head_dim=16, scoring_func="sigmoid",
                            use_routing_bias=True),
    "gptoss": GPT_OSS | dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "gptoss_yarn": GPT_OSS | dict(rope_parameters=yarn(4.0, 128, rope_theta=10000.0,
                                                       truncate=True)),
    "gptoss_real": GPT_OSS | dict(hidden_size=128, head_dim=64, max_position_embeddings=131072,
                                  rope_theta=150000.0,
                                  rope_parameters=yarn(32.0, 4096, rope_theta=150000.0,
                                                       truncate=False)),
}


def enlarge(path):
    """Random weights in place of a file's."""
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(path)
    for name, old in tensors.items():
        drawn = torch.randn(old.shape, generator=generator)
        if old.ndim >= 2:
            size = 1.6 / old.shape[-1] ** 0.5
            if "embed" in name:
                size = 1.0
            elif "lm_head" in name:
                size = 3.0 / old.shape[-1] ** 0.5
            elif "conv.conv" in name:
                size = 0.7
            drawn *= size
        elif "norm" in name:
            drawn = 1.0 + 0.3 * drawn
        else:
            drawn = 0.2 * drawn if "bias" in name else old.float()
        tensors[name] = drawn.to(old.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def check(pagoda, folder, config):
    """The last line of tools/check_gguf.py, and whether all agreed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(BASE | config))
    text = folder / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. "
                    "Once upon a time, in a village by the sea, 1 + 2 = 3.\n" * 300)

    def run(*command):
        done = subprocess.run([pagoda, *map(str, command)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{folder.name}: pagoda {command[0]}: {done.stdout}")

    run("init", "--config", folder / "config.json", "--seed", 3, "--out", folder / "model")
    enlarge(folder / "model" / "model.safetensors")
    corrected = config["model_type"] in ("lfm2_moe", "deepseek_v3", "glm4_moe")
    run("train", "--model.path", folder / "model", "--data.path", text, "--data.sequence_len", 128,
        "--train.steps", 3, "--train.tokens_per_step", 512, "--train.micro_batch_tokens", 512,
        "--train.dtype", "fp32", "--train.output_dir", folder / "run", "--train.save_steps", 3,
        "--optim.learning_rate", 1e-3, "--optim.correction_speed", 0.01 if corrected else 0,
        "--memory.device", "256MiB", "--memory.host", "256MiB")
    export = "export", "--checkpoint", folder / "run", "--dtype", "fp32"
    run(*export, "--out", folder / "f32")
    run(*export, "--format", "gguf", "--out", folder / "model.gguf")
    done = subprocess.run([sys.executable, Path(__file__).parent / "check_gguf.py", folder / "f32",
                           folder / "model.gguf"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    said = [line for line in done.stdout.splitlines() if line.startswith("llama.cpp")]
    return said[-1] if said else "no comparison", done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path, help="the pagoda binary")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="none: all")
    args = parser.parse_args()
    wrong = []
    for name in args.names or MODELS:
        said, agree = check(args.program.resolve(), args.folder / name, MODELS[name])
        print(f"{name + ':':13} {said}", flush=True)
        if agree == (name == "gptoss_real"):
            wrong.append(name)
    if wrong:
        sys.exit(f"not as expected: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
