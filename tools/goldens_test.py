#!/usr/bin/env python3
"""Checks tests/golden against a forward pass in NumPy, float64, that shares nothing with
Transformers: logits, losses, and every gradient by finite differences.

    python tools/goldens_test.py [-v]
"""

import unittest
from pathlib import Path

import numpy as np

from reference.numpy_model import NumpyModel, from_fp8, from_mxfp4, read_safetensors

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"


def flat_microbatches(expected):
    found, i = [], 0
    while f"microbatch.{i}.input_ids" in expected:
        part = {k: expected[f"microbatch.{i}.{n}"] for k, n in (
            ("tokens", "input_ids"), ("positions", "position_ids"), ("targets", "targets"))}
        part = {k: v.ravel() for k, v in part.items()}
        part["starts"] = expected[f"microbatch.{i}.document_start"]
        part["experts"] = expected[f"microbatch.{i}.experts"]
        found.append(part)
        i += 1
    return found


class GoldenFolder:
    """The checks, run for each model folder."""

    FOLDER = None
    STEP = 1e-4  # of finite differences

    def setUp(self):
        self.expected = read_safetensors(GOLDEN / self.FOLDER / "expected.safetensors")
        self.model = NumpyModel(GOLDEN / self.FOLDER)
        self.microbatches = flat_microbatches(self.expected)

    def relative(self, got, want):
        return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)

    def test_borders(self):
        for m in self.microbatches:
            begins = np.nonzero(m["positions"] == 0)[0]
            self.assertEqual(list(begins) + [len(m["tokens"])], list(m["starts"]))
            for begin, end in zip(m["starts"][:-1], m["starts"][1:]):
                want = list(m["tokens"][begin + 1:end]) + [-1]
                self.assertEqual(want, list(m["targets"][begin:end]))

    def test_forward(self):
        # fp32 sums of a few dozen terms through a few layers: some tens of epsilon (6e-8).
        for i, m in enumerate(self.microbatches):
            logits, ce, aux, probs = self.model.microbatch(**m)
            name = f"microbatch.{i}"
            stored = self.expected[f"{name}.logits"].reshape(logits.shape)
            self.assertLess(self.relative(stored, logits), 3e-6)
            self.assertLess(self.relative(self.expected[f"{name}.cross_entropy_sum"], [ce]), 1e-6)
            self.assertLess(self.relative(self.expected[f"{name}.aux_loss"], [aux]), 1e-6)
            for layer, (p, chosen) in enumerate(zip(probs, m["experts"])):
                order = self.model.choose(layer, p)
                np.testing.assert_array_equal(np.sort(order), np.sort(chosen))

    def test_loss(self):
        count = int(self.expected["target_count"][0])
        self.assertEqual(count, sum(int((m["targets"] >= 0).sum()) for m in self.microbatches))
        self.assertLess(self.relative(self.expected["loss"],
                                      [self.model.step_loss(self.microbatches, count)]), 1e-6)

    def test_gradients_by_finite_differences(self):
        """Along the gradient itself, where the slope is its length, and in a random direction."""
        count = int(self.expected["target_count"][0])
        names = sorted(n for n in self.expected if n.startswith("grad."))
        self.assertEqual(sorted(self.model.w), [n.removeprefix("grad.") for n in names])
        random = np.random.default_rng(3)
        worst = (0.0, "")
        for name in names:
            gradient = self.expected[name].astype(np.float64)
            weight = self.model.w[name.removeprefix("grad.")]
            length = np.linalg.norm(gradient)
            for direction in (gradient, random.standard_normal(gradient.shape)):
                unit = direction / np.linalg.norm(direction)
                slope = self.slope(weight, unit, count)
                worst = max(worst, (abs(slope - np.sum(gradient * unit)) / length, name))
        print(f"{self.FOLDER}: {len(names)} gradients, worst error along a direction "
              f"{worst[0]:.1e} of its length ({worst[1]})")
        self.assertLess(worst[0], 5e-6, worst)

    def test_the_pad_tokens_gradient_is_the_heads(self):
        path = GOLDEN / self.FOLDER / "pad_token.safetensors"
        if not path.exists():
            self.skipTest("a folder without")
        name = "model.embed_tokens.weight"
        padded, row = read_safetensors(path)[f"grad.{name}"], int(read_safetensors(path)["row"][0])
        others = np.arange(len(padded)) != row
        self.assertLess(self.relative(padded[others], self.expected[f"grad.{name}"][others]), 1e-6)
        self.assertTrue(any((m["tokens"] == row).any() for m in self.microbatches))
        self.model.looked_up = self.model.w[name].copy()
        unit = np.zeros(padded.shape)
        unit[row] = np.random.default_rng(4).standard_normal(padded.shape[1])
        slope = self.slope(self.model.w[name], unit, int(self.expected["target_count"][0]))
        self.assertAlmostEqual(slope, np.sum(padded * unit), delta=1e-6)
        if not self.model.tied:
            self.assertFalse(padded[row].any())

    def slope(self, weight, unit, count):
        """Central difference: the error is STEP^2 times a third derivative."""
        original, step = weight.copy(), self.STEP
        weight += step * unit
        above = self.model.step_loss(self.microbatches, count)
        weight -= 2 * step * unit
        below = self.model.step_loss(self.microbatches, count)
        weight[...] = original
        return (above - below) / (2 * step)


class TinyTest(GoldenFolder, unittest.TestCase):
    FOLDER = "qwen3_moe_tiny"


class TiedTest(GoldenFolder, unittest.TestCase):
    FOLDER = "qwen3_moe_tied"


class Bf16Test(GoldenFolder, unittest.TestCase):
    FOLDER = "qwen3_moe_bf16"


class MixtralTest(GoldenFolder, unittest.TestCase):
    FOLDER = "mixtral"


class OlmoeTest(GoldenFolder, unittest.TestCase):
    FOLDER = "olmoe"


class Qwen2MoeTest(GoldenFolder, unittest.TestCase):
    FOLDER = "qwen2_moe"


class Glm4MoeTest(GoldenFolder, unittest.TestCase):
    FOLDER = "glm4_moe"


class Lfm2MoeTest(GoldenFolder, unittest.TestCase):
    FOLDER = "lfm2_moe"


class GptOssTest(GoldenFolder, unittest.TestCase):
    FOLDER = "gpt_oss"
    STEP = 1e-6  # a number that crosses SwiGLU's limit in between is an error


class DeepseekV2Test(GoldenFolder, unittest.TestCase):
    FOLDER = "deepseek_v2"


class DeepseekV3Test(GoldenFolder, unittest.TestCase):
    FOLDER = "deepseek_v3"


class Glm4MoeLiteTest(GoldenFolder, unittest.TestCase):
    FOLDER = "glm4_moe_lite"


class GraniteMoeTest(GoldenFolder, unittest.TestCase):
    FOLDER = "granitemoe"


class Dots1Test(GoldenFolder, unittest.TestCase):
    FOLDER = "dots1"


class MiniMaxM2Test(GoldenFolder, unittest.TestCase):
    FOLDER = "minimax_m2"


class Mxfp4Test(unittest.TestCase):
    def test_files_hold_the_same_values(self):
        plain = read_safetensors(GOLDEN / "gpt_oss" / "model.safetensors")
        packed = read_safetensors(GOLDEN / "gpt_oss_mxfp4" / "model.safetensors")
        for name, wanted in plain.items():
            if name in packed:
                np.testing.assert_array_equal(packed[name], wanted, name)
                continue
            values = from_mxfp4(packed[f"{name}_blocks"], packed[f"{name}_scales"])
            np.testing.assert_array_equal(values.transpose(0, 2, 1), wanted, name)


class Fp8Test(unittest.TestCase):
    def test_files_hold_the_same_values(self):
        plain = read_safetensors(GOLDEN / "deepseek_v3" / "model.safetensors")
        packed = read_safetensors(GOLDEN / "deepseek_v3_fp8" / "model.safetensors")
        for name, wanted in plain.items():
            scales, got = packed.get(f"{name}_scale_inv"), packed[name]
            got = got if scales is None else from_fp8(got, scales, (8, 4))
            np.testing.assert_array_equal(got, wanted, name)


class FusedTest(unittest.TestCase):
    def test_fused_files_hold_the_same_values(self):
        for folder in ("qwen3_moe_bf16", "mixtral", "olmoe", "qwen2_moe", "glm4_moe", "lfm2_moe",
                       "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "dots1", "minimax_m2"):
            mixtral_like = folder in ("mixtral", "minimax_m2")
            plain = read_safetensors(GOLDEN / folder / "model.safetensors")
            fused = read_safetensors(GOLDEN / f"{folder}_fused" / "model.safetensors")
            names = (("w1", "w3", "w2") if mixtral_like or folder == "lfm2_moe"
                     else ("gate_proj", "up_proj", "down_proj"))
            for name, stacked in fused.items():
                base, _, last = name.replace(
                    ".mlp.", ".block_sparse_moe." if mixtral_like else ".mlp."
                ).rpartition(".")
                wanted = {"gate_up_proj": names[:2], "down_proj": names[2:]}.get(last)
                if wanted is None:
                    np.testing.assert_array_equal(plain[f"{base}.{last}"], stacked, name)
                    continue
                for e, matrix in enumerate(stacked):
                    parts = [plain[f"{base}.{e}.{part}.weight"] for part in wanted]
                    np.testing.assert_array_equal(np.concatenate(parts), matrix)


    def test_granite_has_stacked_ones_of_either_names(self):
        plain = read_safetensors(GOLDEN / "granitemoe" / "model.safetensors")
        fused = read_safetensors(GOLDEN / "granitemoe_fused" / "model.safetensors")
        self.assertEqual(len(plain), len(fused))
        for name, wanted in plain.items():
            for own, other in (("input_linear.weight", "experts.gate_up_proj"),
                               ("output_linear.weight", "experts.down_proj"),
                               ("router.layer.weight", "router.weight")):
                name = name.replace(own, other)
            np.testing.assert_array_equal(fused[name], wanted, name)


class CurveTest(unittest.TestCase):
    """Steps 1 and 2 see the initial weights: the learning rate of the first is 0."""

    def test_tiny(self):
        self.check("qwen3_moe_tiny", "curve/expected.safetensors")

    def test_families(self):
        for folder in ("mixtral", "olmoe", "qwen2_moe", "glm4_moe", "lfm2_moe", "gpt_oss",
                       "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "granitemoe", "dots1",
                       "minimax_m2"):
            self.check(folder, f"{folder}/curve.safetensors")

    def check(self, folder, path):
        expected = read_safetensors(GOLDEN / path)
        self.assertEqual(0.0, expected["learning_rate"][0])
        model = NumpyModel(GOLDEN / folder)
        for step in range(2):
            total, count = 0.0, 0
            for i, rows in enumerate(expected["input_ids"][step]):
                ce, targets, aux = self.natural(model, rows)
                total, count = total + ce, count + targets
                self.assertAlmostEqual(aux, float(expected["aux_loss"][step][i]), delta=3e-6)
            wanted = float(expected["cross_entropy"][step])
            self.assertAlmostEqual(total / count, wanted, delta=1e-5)

    def natural(self, model, rows):
        """Routes by its own probabilities: layer by layer, the experts found so far imposed."""
        length = rows.shape[1]
        targets = np.concatenate([rows[:, 1:], np.full((len(rows), 1), -1)], axis=1).ravel()
        k = model.config["num_experts_per_tok"]
        layers = [n for n in range(model.config["num_hidden_layers"]) if model.is_moe(n)]
        experts = np.zeros((len(layers), rows.size, k), np.int32)
        for i in range(len(layers) + 1):
            _, ce, aux, probs = model.microbatch(
                rows.ravel(), np.tile(np.arange(length), len(rows)), targets,
                np.arange(0, rows.size + 1, length), experts)
            if i < len(layers):
                experts[i] = model.choose(i, probs[i])
        return ce, int((targets >= 0).sum()), aux


if __name__ == "__main__":
    unittest.main()
