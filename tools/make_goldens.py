#!/usr/bin/env python3
"""Writes tests/golden: tiny models with what PyTorch and Transformers compute of them.

    python tools/make_goldens.py [--out tests/golden]
    python tools/make_goldens.py --only glm4_moe --sizes N   # then parity_test '*Fp32*' reads it

The second is for trying a family out: it writes a model of random sizes and switches, N their
seed, over the family's folder, with an fp32 step alone. `git checkout tests/golden` brings the
folder back.

Deterministic on one machine. tests/golden/README.md says what is in the files.
"""

import argparse
import fnmatch
import json
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config, get_constant_schedule_with_warmup
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from reference import moe as ref
from reference import random_sizes
from reference.golden_configs import BF16, FAMILIES, LLAMA, TIED, TINY
from reference.greedy import make_greedy
from reference.packed_weights import FP8_BLOCK, fp8_matrices, from_fp8, mxfp4_experts

# A chosen expert must beat the first refused one by this much, or rounding could choose otherwise.
MIN_ROUTING_GAP = 1e-5
# The same of numbers that SwiGLU limits: some roundings of sums of some tens of terms.
MIN_LIMIT_GAP = 5e-6

# Document lengths: one list a row, one list of rows a microbatch.
SHORT_ROWS = [[[13, 27], [1, 24, 15]], [[40], [7, 31, 2]]]
MIDDLE_ROWS = [[[64], [30, 1, 33]], [[9, 55], [31, 33]]]
LONG_ROWS = [[[128], [50, 1, 77]], [[9, 119], [64, 64]]]

CURVE_STEPS, CURVE_WARMUP = 50, 5
CURVE_FINAL = ["model.norm.weight", "model.layers.0.self_attn.q_norm.weight",
               "model.layers.2.mlp.gate.weight", "model.layers.0.mlp.experts.3.down_proj.weight",
               "model.layers.1.mlp.up_proj.weight"]


def make_model(config, seed):
    """Random weights; norms and biases too, so that swapped ones show."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.1 * noise)
            else:
                parameter.copy_(config.initializer_range * noise)
        for name, (numbers, scales) in fp8_matrices(config, seed).items():
            matrix = model.get_parameter(name)
            matrix.copy_(from_fp8(numbers, scales).view(matrix.shape))
        for name, packed in mxfp4_experts(config, seed).items():
            model.get_parameter(name).copy_(convert_moe_packed_tensors(*packed))
        for _, correction in corrections(model):
            correction.copy_(0.1 * torch.randn(correction.shape, generator=generator))
    return model


def corrections(model):
    return [(n, b) for n, b in model.named_buffers() if ref.is_correction(n)]


def to_bf16(model):
    """All parameters; corrections stay in fp32, but for those of MiniMax-M2, which Transformers
    would round."""
    rounds = model.config.model_type == "minimax_m2"
    before = {} if rounds else dict(corrections(model))
    model.to(torch.bfloat16)
    for name, correction in before.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, correction)
    return model


def document_starts(batch):
    """Border of each document in the flattened microbatch, and the end."""
    starts = torch.nonzero(batch.positions.flatten() == 0).flatten()
    return torch.cat([starts, torch.tensor([batch.tokens.numel()])])


def run_step(model, batches, experts=None, z=0.0):
    """Forward and backward of one step; leaves the gradients in the model.

    loss = sum of cross-entropy / targets of the step
           + coef * sum over microbatches of (share of tokens * balance loss)
           + z * sum over microbatches of (share of tokens * z-loss)
    """
    model.zero_grad(set_to_none=True)
    targets = sum(b.num_targets() for b in batches)
    tokens = sum(b.tokens.numel() for b in batches)
    results, total = [], 0.0
    for i, batch in enumerate(batches):
        if experts is None:
            out = ref.forward(model, batch)
            chosen, gap = ref.top_experts(model, out.router_logits)
            aux = ref.balance_loss(model, out.router_logits)
        else:
            chosen, gap = experts[i], None
            with ref.imposed_routing(model, chosen):
                out = ref.forward(model, batch)
            aux = ref.balance_loss_imposed(model, out.router_logits, chosen)
        ce = ref.cross_entropy_sum(out.logits, batch.targets)
        share = batch.tokens.numel() / tokens
        loss = ce / targets + getattr(model.config, "router_aux_loss_coef", 0.0) * share * aux
        z_loss = ref.z_loss(out.router_logits)
        loss = loss + z * share * z_loss
        loss.backward()
        total += float(loss.detach().double())
        results.append(dict(out=out, chosen=chosen, gap=gap, ce=ce.detach(), aux=aux.detach(),
                            z_loss=z_loss.detach()))
    return total, targets, results


def gradients(model):
    named = [(n, p.grad if p.grad is not None else torch.zeros_like(p))
             for n, p in model.named_parameters()]
    return {name: tensor.clone()
            for name, tensor in ref.hub_tensors(named, model.config.model_type)}


def as_i32(tensor):
    return tensor.to(torch.int32).contiguous()


def expected_tensors(model, batches, step):
    total, targets, results = step
    tensors = {"loss": torch.tensor([total]), "target_count": as_i32(torch.tensor([targets]))}
    num_experts = ref.num_experts_of(model.config)
    for i, (batch, result) in enumerate(zip(batches, results)):
        chosen = torch.stack(result["chosen"])
        tensors |= {f"microbatch.{i}.{name}": tensor for name, tensor in dict(
            input_ids=as_i32(batch.tokens), targets=as_i32(batch.targets),
            position_ids=as_i32(batch.positions), document_start=as_i32(document_starts(batch)),
            logits=result["out"].logits.detach().contiguous(),
            router_logits=torch.stack(result["out"].router_logits).detach(),
            experts=as_i32(chosen), cross_entropy_sum=result["ce"].reshape(1),
            aux_loss=result["aux"].reshape(1)).items()}
    counts = [torch.stack([torch.bincount(layer.flatten(), minlength=num_experts)
                           for layer in r["chosen"]]) for r in results]
    tensors["tokens_per_expert"] = as_i32(sum(counts))
    tensors |= {f"grad.{name}": tensor for name, tensor in gradients(model).items()}
    gap = min((r["gap"] for r in results if r["gap"] is not None), default=None)
    assert gap is None or gap > MIN_ROUTING_GAP, f"routing gap {gap}: choose another seed"
    return tensors, gap


def check_folder(folder, model):
    """What is on disk carries the hub's per-expert names, all of them and no others."""
    names = set()
    for file in folder.glob("*.safetensors"):
        if file.name != "expected.safetensors":
            with safe_open(file, "pt") as f:
                names |= set(f.keys())
    if model.config.model_type == "gpt_oss":  # the hub has its experts fused
        assert names == {name for name, _ in model.named_parameters()}
        return
    if model.config.model_type == "granitemoe":  # stacked, by names of its own
        own = {name for name, _ in model.named_parameters()}
        for ours, theirs in ref.GRANITE_NAMES.items():
            own = {name.replace(ours, theirs) for name in own}
        assert names == own, names ^ own
        return
    wanted = {name for name, _ in ref.hub_tensors(model.named_parameters(),
                                                  model.config.model_type)}
    wanted |= {name for name, _ in ref.hub_tensors(corrections(model), model.config.model_type)}
    assert names == wanted, names ^ wanted


def respell_config(folder):
    """The spelling of Transformers 4, which most folders of the hub have."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    config["num_experts"] = config.pop("num_local_experts")
    config["transformers_version"] = "4.51.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(folder, dtype, **more):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True, **more)
    wrong = ("missing_keys", "unexpected_keys", "mismatched_keys")
    assert not any(info[key] for key in wrong), info
    with torch.no_grad():
        for parameter in model.parameters():  # own, aligned memory: a mapped file chooses kernels
            parameter.data = parameter.data.clone()
    return model


def make_fp32(folder, config, seed, shard_size="1GB", old_spelling=False):
    model = make_model(config, seed)
    model.save_pretrained(folder, max_shard_size=shard_size)
    if old_spelling:
        respell_config(folder)
    check_folder(folder, model)
    model = load(folder, torch.float32)
    generator = torch.Generator().manual_seed(seed + 1)
    batches = [ref.make_batch(rows, config.vocab_size, generator) for rows in SHORT_ROWS]
    with ref.limit_gap(model) as limits:
        step = run_step(model, batches)
    assert min(limits, default=1.0) > MIN_LIMIT_GAP, f"limit gap {min(limits)}: choose another seed"
    tensors, gap = expected_tensors(model, batches, step)
    save_file(tensors, folder / "expected.safetensors")
    print(f"{folder.name}: loss {float(tensors['loss']):.6f}, routing gap {gap:.2e}, "
          f"tokens per expert {tensors['tokens_per_expert'].tolist()}")
    return model


def distance(got, want):
    got, want = got.detach().double(), want.double()
    return torch.tensor([float((got - want).norm() / want.norm())], dtype=torch.float32)


def make_bf16(folder, config, seed, rows=LONG_ROWS, **more):
    """The fp32 step of bf16 weights, and how far Transformers' bf16 (loaded so) is from it."""
    to_bf16(make_model(config, seed)).save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed + 1)
    batches = [ref.make_batch(r, config.vocab_size, generator) for r in rows]
    exact = load(folder, torch.float32)
    check_folder(folder, exact)
    natural = run_step(exact, batches)
    experts = [r["chosen"] for r in natural[2]]
    tensors, gap = expected_tensors(exact, batches, natural)
    assert tensors["tokens_per_expert"].min() >= 1, "an expert without gradient has no distance"

    rounded = load(folder, torch.bfloat16, **more)
    total, _, results = run_step(rounded, batches, experts)
    tensors["bf16_distance.loss"] = distance(torch.tensor(total), tensors["loss"])
    for i, result in enumerate(results):
        tensors[f"bf16_distance.microbatch.{i}.logits"] = distance(
            result["out"].logits, tensors[f"microbatch.{i}.logits"])
    for name, gradient in gradients(rounded).items():
        tensors[f"bf16_distance.grad.{name}"] = distance(gradient, tensors[f"grad.{name}"])
    save_file(tensors, folder / "expected.safetensors")
    distances = [float(v) for k, v in tensors.items() if k.startswith("bf16_distance.grad")]
    print(f"{folder.name}: loss {float(tensors['loss']):.6f}, routing gap {gap:.2e}, "
          f"tokens per expert {tensors['tokens_per_expert'].tolist()}, bf16 distance of gradients "
          f"median {np.median(distances):.2e} largest {max(distances):.2e}")
    return exact


def curve_tokens(vocab, length, generator):
    """(steps, 2 microbatches, 2 rows, length): four times in five a fixed token follows a token."""
    follows = torch.randperm(vocab, generator=generator)
    tokens = torch.randint(0, vocab, (CURVE_STEPS, 2, 2, length), generator=generator)
    keep = torch.rand(tokens.shape, generator=generator) < 0.8
    for t in range(1, tokens.shape[-1]):
        tokens[..., t] = torch.where(keep[..., t], follows[tokens[..., t - 1]], tokens[..., t])
    return tokens


def make_optimizer(model):
    decays = {n: p.dim() >= 2 and not n.endswith("_bias") for n, p in model.named_parameters()}
    matrices = [p for n, p in model.named_parameters() if decays[n]]
    vectors = [p for n, p in model.named_parameters() if not decays[n]]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    return optimizer, get_constant_schedule_with_warmup(optimizer, CURVE_WARMUP)


def train_curve(model, tokens, frozen=()):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch.fnmatchcase(name, pattern) for pattern in frozen))
    optimizer, schedule = make_optimizer(model)
    record = dict(cross_entropy=[], aux_loss=[], grad_norm=[], learning_rate=[])
    for step in range(CURVE_STEPS):
        batches = []
        for microbatch in tokens[step]:
            rows, length = microbatch.shape
            batch = ref.make_batch([[length]] * rows, model.config.vocab_size, torch.Generator())
            batch.tokens = microbatch
            batch.targets[:, :-1] = microbatch[:, 1:]
            batches.append(batch)
        _, targets, results = run_step(model, batches)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        record["cross_entropy"].append(sum(float(r["ce"].double()) for r in results) / targets)
        record["aux_loss"].append([float(r["aux"]) for r in results])
        record["grad_norm"].append(float(norm))
        record["learning_rate"].append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return record


def make_curve(path, model, length, final_names, frozen=()):
    """Fifty steps of AdamW on a model, rows of `length` tokens; frozen names do not train."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens = curve_tokens(model.config.vocab_size, length, torch.Generator().manual_seed(77))
    record = train_curve(model, tokens, frozen)
    tensors = {"input_ids": as_i32(tokens)}
    tensors |= {name: torch.tensor(values, dtype=torch.float32) for name, values in record.items()}
    final = dict(ref.hub_tensors(model.named_parameters(), model.config.model_type))
    tensors |= {f"final.{name}": final[name].detach().contiguous() for name in final_names}
    save_file(tensors, path)
    losses = record["cross_entropy"]
    print(f"{path.parent.name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"grad norm {min(record['grad_norm']):.3f} to {max(record['grad_norm']):.3f}")


def make_frozen_curves(out):
    for name, frozen in (("router", ["*.mlp.gate.weight"]),
                         ("parts", ["*.embed_tokens.*", "*.k_proj.*", "*.down_proj*",
                                    "model.layers.0.mlp.experts.*"])):
        model = load(out / "qwen3_moe_tiny", torch.float32)
        make_curve(out / "curve" / f"frozen_{name}.safetensors", model, 40, CURVE_FINAL, frozen)


def make_fused(folder):
    """The model of `folder` with its experts stacked, as Transformers 5 has them in memory."""
    fused = folder.with_name(folder.name + "_fused")
    load(folder, torch.bfloat16).save_pretrained(fused, save_original_format=False)
    with safe_open(fused / "model.safetensors", "pt") as f:
        assert any(name.endswith(".experts.gate_up_proj") for name in f.keys())


def make_mxfp4(folder, seed):
    """The model of `folder` with its experts as MXFP4, and that Transformers reads it the same."""
    packed, plain = folder.with_name(folder.name + "_mxfp4"), load(folder, torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    for name, (numbers, scales) in mxfp4_experts(plain.config, seed).items():
        del tensors[name]
        tensors |= {f"{name}_blocks": numbers, f"{name}_scales": scales}
    packed.mkdir()
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (packed / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    read = AutoModelForCausalLM.from_pretrained(
        packed, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True))
    for (name, want), (other, got) in zip(plain.named_parameters(), read.named_parameters()):
        assert name == other and torch.equal(want, got), name


def make_fp8(folder, seed):
    """The model of `folder` with matrices in fp8, of which Transformers makes the model's."""
    packed, plain = folder.with_name(folder.name + "_fp8"), load(folder, torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    for of, values in enumerate(zip(*fp8_matrices(plain.config, seed).values())):
        named = zip(fp8_matrices(plain.config, seed), values)
        for name, value in ref.hub_tensors(named, "deepseek_v3"):
            tensors[name + ("_scale_inv" if of else "")] = value.contiguous()
    packed.mkdir()
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                     "activation_scheme": "dynamic",
                                     "weight_block_size": list(FP8_BLOCK)}
    (packed / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name, want in ref.hub_tensors(plain.named_parameters(), "deepseek_v3"):
        if f"{name}_scale_inv" in tensors:  # from_pretrained would want a package more
            got = Fp8Dequantize(None)._dequantize_one(tensors[name], tensors[f"{name}_scale_inv"],
                                                      torch.bfloat16)
            assert torch.equal(want, got.view(want.shape)), name


def make_family(folder, config, seed, final_names):
    """One step in fp32 and bf16, the same model in the other layout of experts, and a curve."""
    model = make_bf16(folder, config, seed, MIDDLE_ROWS)
    make_mxfp4(folder, seed) if config.model_type == "gpt_oss" else make_fused(folder)
    if config.model_type == "deepseek_v3":
        make_fp8(folder, seed)
    make_greedy(folder, load(folder, torch.float32))
    make_curve(folder / "curve.safetensors", model, 20, final_names)


def expected_batches(folder):
    """The microbatches of the folder's step."""
    expected, batches = load_file(folder / "expected.safetensors"), []
    for i in range(2):
        tokens, targets, positions = (expected[f"microbatch.{i}.{name}"].long() for name in
                                      ("input_ids", "targets", "position_ids"))
        batches.append(ref.Microbatch(tokens, targets, positions, (positions == 0).cumsum(dim=1)))
    return batches


def make_pad_token(folder, change):
    """The step of `folder` again where config.json has a pad token: the embedding's gradient."""
    expected, batches = load_file(folder / "expected.safetensors"), expected_batches(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["pad_token_id"]
    with tempfile.TemporaryDirectory() as copy:
        for file in folder.glob("model*"):
            shutil.copy(file, copy)
        (Path(copy) / "config.json").write_text(json.dumps(config | change))
        model = load(copy, torch.float32)
    run_step(model, batches)
    name, row = "model.embed_tokens.weight", model.model.embed_tokens.padding_idx
    gradient, before = model.model.embed_tokens.weight.grad, expected[f"grad.{name}"]
    assert any((b.tokens == row).any() for b in batches), "no look-up of the pad token"
    apart = (gradient - before).abs().amax(dim=1) > 1e-6
    assert apart.nonzero().flatten().tolist() == [row], "another row than the pad token's changed"
    save_file({"row": as_i32(torch.tensor([row])), f"grad.{name}": gradient},
              folder / "pad_token.safetensors")


def make_router_losses(folder, balance, z):
    """The step of `folder` again by other coefficients: gradients of routers and of a matrix."""
    model = load(folder, torch.float32)
    model.config.router_aux_loss_coef = balance
    total, _, results = run_step(model, expected_batches(folder), z=z)
    tensors = {"loss": torch.tensor([total]), "balance": torch.tensor([balance]),
               "z": torch.tensor([z]),
               "z_loss": sum(r["z_loss"] for r in results).reshape(1) / len(results)}
    found = gradients(model)
    for name in found:
        if name.endswith(("mlp.gate.weight", "layers.0.self_attn.q_proj.weight")):
            tensors[f"grad.{name}"] = found[name]
    save_file(tensors, folder / "router_losses.safetensors")


def make_dense(folder, config, seed):
    """A dense model to upcycle: its logits of one text."""
    make_model(config, seed).to(torch.bfloat16).save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed + 1)
    batch = ref.make_batch([[40]], config.vocab_size, generator)
    out = load(folder, torch.float32)(input_ids=batch.tokens, use_cache=False)
    save_file({"input_ids": as_i32(batch.tokens), "logits": out.logits.detach().contiguous()},
              folder / "expected.safetensors")


def make_random_sizes(folder, sizes_seed):
    config = random_sizes.CONFIGS[folder.name](random.Random(sizes_seed))
    for seed in range(100 * sizes_seed, 100 * sizes_seed + 100):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            make_fp32(folder, config, seed)
        except AssertionError as error:
            if " gap " not in str(error):
                raise
            continue
        if load_file(folder / "expected.safetensors")["tokens_per_expert"].min() > 0:
            return
    raise SystemExit(f"{folder.name}: no seed without near-ties and idle experts for {sizes_seed}")


def make_families(out, only=None, seed=None):
    for name, (config, own_seed, final_names) in FAMILIES.items():
        if only in (None, name):
            for folder in (out / name, out / f"{name}_fused", out / f"{name}_mxfp4",
                           out / f"{name}_fp8"):
                shutil.rmtree(folder, ignore_errors=True)
            make_family(out / name, config, seed or own_seed, final_names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path,
                        default=Path(__file__).resolve().parent.parent / "tests" / "golden")
    parser.add_argument("--only", help="a family's folder; the others stay as they are")
    parser.add_argument("--seed", type=int, help="with --only: another seed than its own")
    parser.add_argument("--sizes", type=int, help="with --only: a seed of random sizes")
    arguments = parser.parse_args()
    out = arguments.out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.sizes is not None:
        return make_random_sizes(out / arguments.only, arguments.sizes)
    if arguments.only:
        return make_families(out, arguments.only, arguments.seed)
    for folder in out.glob("*/"):  # chat and tokenizers are others' work
        if (folder / "config.json").is_file() or folder.name == "curve":
            shutil.rmtree(folder)
    tiny = make_fp32(out / "qwen3_moe_tiny", TINY, seed=1)
    make_fp32(out / "qwen3_moe_tied", TIED, seed=5, shard_size="64KB", old_spelling=True)
    for name in ("qwen3_moe_tiny", "qwen3_moe_tied"):
        make_greedy(out / name, load(out / name, torch.float32))
    make_bf16(out / "qwen3_moe_bf16", BF16, seed=9)
    make_fused(out / "qwen3_moe_bf16")
    make_curve(out / "curve" / "expected.safetensors", tiny, 40, CURVE_FINAL)
    make_frozen_curves(out)
    make_families(out)
    make_dense(out / "llama", LLAMA, 27)
    make_pad_token(out / "qwen3_moe_tied", {"pad_token_id": 7})
    make_pad_token(out / "mixtral", {"pad_token_id": 5})
    make_pad_token(out / "olmoe", {})  # the family's own
    make_pad_token(out / "qwen2_moe", {"pad_token_id": -3})
    make_pad_token(out / "lfm2_moe", {})
    make_router_losses(out / "qwen3_moe_tiny", balance=0.3, z=0.05)


if __name__ == "__main__":
    main()
