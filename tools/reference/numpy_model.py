"""A forward pass in NumPy, float64, that shares nothing with Transformers."""

import json
import struct

import numpy as np

DTYPES = {"F32": np.float32, "I32": np.int32, "BF16": np.uint16, "U8": np.uint8,
          "F8_E4M3": np.uint8}


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[8 + length + begin:8 + length + end], DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def from_mxfp4(numbers, scales):
    """(..., blocks, 16) bytes of two numbers, the lower half first, and (..., blocks)."""
    halves = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(*numbers.shape[:-1], 32)
    magnitudes = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])[halves & 7]
    signed = np.where(halves & 8, -magnitudes, magnitudes)
    values = signed * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    return values.reshape(*numbers.shape[:-2], -1)


def from_fp8(bits, scales, block):
    """E4M3 times the scale of its block, rounded to bf16."""
    exponent, fraction = (bits >> 3 & 15).astype(np.int64), (bits & 7).astype(np.float64)
    normal, tiny = np.ldexp(8 + fraction, exponent - 10), np.ldexp(fraction, -9)
    magnitude = np.where(exponent > 0, normal, tiny)
    values = np.where(bits >= 128, -magnitude, magnitude).astype(np.float32)
    rows, columns = np.arange(bits.shape[0]) // block[0], np.arange(bits.shape[1]) // block[1]
    product = (values * scales[rows][:, columns]).view(np.uint32)
    rounded = (product + 0x7FFF + (product >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def cut_experts(w):
    """Experts of gpt-oss, which files have stacked, transposed, and with gate and up in turn, as
    tensors of their own."""
    for name in [name for name in w if ".mlp.experts." in name]:
        base, _, last = name.rpartition(".")
        stacked, kind = w.pop(name), "bias" if last.endswith("_bias") else "weight"
        for e, one in enumerate(stacked):
            one = one.T.copy() if kind == "weight" else one
            parts = ({"down_proj": one} if last.startswith("down_proj")
                     else {"gate_proj": one[::2].copy(), "up_proj": one[1::2].copy()})
            w |= {f"{base}.{e}.{part}.{kind}": value for part, value in parts.items()}
    return w


def cut_stacked(w):
    """The same for granitemoe, whose gate stands above up."""
    for name in [name for name in w if name.endswith(("input_linear.weight",
                                                      "output_linear.weight"))]:
        base = name.rsplit(".", 2)[0]
        for e, one in enumerate(w.pop(name)):
            parts = ({"down_proj": one} if "output" in name
                     else dict(zip(("gate_proj", "up_proj"), np.split(one, 2))))
            w |= {f"{base}.experts.{e}.{part}.weight": v.copy() for part, v in parts.items()}
    return w


class NumpyModel:
    """The step's loss in float64, with the routing given."""

    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        self.config = config
        self.num_experts = next(config[key] for key in ("num_experts", "num_local_experts",
                                                         "n_routed_experts") if key in config)
        self.glm = config["model_type"] in ("glm4_moe", "dots1")
        self.minimax = config["model_type"] == "minimax_m2"
        self.lfm2 = config["model_type"] == "lfm2_moe"
        self.oss = config["model_type"] == "gpt_oss"
        self.latent = "kv_lora_rank" in config
        # The router and the shared expert of DeepSeek.
        self.glm = self.glm or self.latent
        self.sigmoids = ((self.glm or self.lfm2 or self.minimax)
                         and config["model_type"] != "deepseek_v2")
        self.mixtral = config["model_type"] == "mixtral"
        self.granite = config["model_type"] == "granitemoe"
        self.block = {"mixtral": "block_sparse_moe", "granitemoe": "block_sparse_moe",
                      "minimax_m2": "block_sparse_moe",
                      "lfm2_moe": "feed_forward"}.get(config["model_type"], "mlp")
        self.mlp_names = (("w1", "w3", "w2") if self.mixtral or self.lfm2 or self.minimax
                          else ("gate_proj", "up_proj", "down_proj"))
        self.renormalises = self.mixtral or self.oss or self.granite or self.minimax or (
            config["norm_topk_prob"] and config["model_type"] != "deepseek_v2")
        self.theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self.epsilon = config["norm_eps" if self.lfm2 else "rms_norm_eps"]
        self.tied = config.get("tie_word_embeddings", self.lfm2)
        self.w = {}
        for file in folder.glob("model*.safetensors"):
            self.w |= {k: v.astype(np.float64) for k, v in read_safetensors(file).items()}
        self.w = cut_experts(self.w) if self.oss else cut_stacked(self.w)
        self.kept = {k: self.w.pop(k) for k in list(self.w)
                     if k.endswith(("_correction_bias", ".expert_bias"))}
        self.looked_up = self.w["model.embed_tokens.weight"]  # where tied, the head is w's still

    def norm(self, x, name):
        variance = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(variance + self.epsilon) * self.w[name]

    def rotate(self, x, positions):  # x (tokens, heads, head_dim)
        rope = self.config.get("rope_parameters") or {}
        half = int(x.shape[-1] * rope.get("partial_rotary_factor", 1.0)) // 2
        # Transformers computes frequencies and angles in fp32; so must whoever loads its models.
        exponent = np.arange(0, 2 * half, 2, dtype=np.float32) / np.float32(2 * half)
        frequency = (1.0 / np.float32(self.theta) ** exponent).astype(np.float32)
        size = 1.0
        if rope.get("rope_type") == "yarn":
            frequency, size = self.yarn(frequency, rope), self.growth(rope, 1.0)
            if "mscale" in rope:
                size = self.growth(rope, rope["mscale"]) / self.growth(rope, rope["mscale_all_dim"])
        angle = (positions.astype(np.float32)[:, None] * frequency).astype(np.float64)
        cos, sin = size * np.cos(angle)[:, None], size * np.sin(angle)[:, None]
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def growth(self, rope, by):
        return 1.0 + 0.1 * by * np.log(rope["factor"])

    def yarn(self, frequency, rope):
        """Peng et al. 2023: pairs that turn often over the first positions keep their frequency,
        others have it divided by the factor, between them it is mixed."""
        pairs = np.arange(len(frequency))
        begin, end = (len(frequency) * np.log(rope["original_max_position_embeddings"]
                                              / (2 * np.pi * turns)) / np.log(self.theta)
                      for turns in (rope["beta_fast"], rope["beta_slow"]))
        divided = np.clip((pairs - max(begin, 0.0)) / (end - max(begin, 0.0)), 0.0, 1.0)
        mixed = frequency.astype(np.float64) * (divided / rope["factor"] + 1.0 - divided)
        return mixed.astype(np.float32)

    def attention(self, x, prefix, positions, starts, window):
        heads, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        dim = self.config.get("head_dim") or self.config["hidden_size"] // heads
        q, k, v = (x @ self.w[f"{prefix}.{n}_proj.weight"].T
                   + self.w.get(f"{prefix}.{n}_proj.bias", 0.0) for n in "qkv")
        if self.config["model_type"] in ("olmoe", "minimax_m2"):  # over the full width
            q, k = self.norm(q, f"{prefix}.q_norm.weight"), self.norm(k, f"{prefix}.k_norm.weight")
        q, k, v = (y.reshape(len(x), -1, dim) for y in (q, k, v))
        if self.lfm2:
            q, k = (self.norm(y, f"{prefix}.{n}_layernorm.weight") for y, n in ((q, "q"), (k, "k")))
        if (self.config["model_type"] in ("qwen3_moe", "dots1")
                or self.config.get("use_qk_norm")):
            q, k = self.norm(q, f"{prefix}.q_norm.weight"), self.norm(k, f"{prefix}.k_norm.weight")
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        out = np.zeros_like(q)
        for begin, end in zip(starts[:-1], starts[1:]):
            back = np.subtract.outer(np.arange(end - begin), np.arange(end - begin))
            hidden = np.where((back >= 0) & (back < window), 0.0, -np.inf)
            for h in range(heads):
                g = h // (heads // kv)
                scale = self.config.get("attention_multiplier", 1.0 / np.sqrt(dim))
                scores = scale * (q[begin:end, h] @ k[begin:end, g].T) + hidden
                if self.oss:  # a key of its own, without a value
                    sink = np.full((len(scores), 1), self.w[f"{prefix}.sinks"][h])
                    scores = np.concatenate([scores, sink], axis=1)
                out[begin:end, h] = softmax(scores)[:, :end - begin] @ v[begin:end, g]
        last = "out_proj" if self.lfm2 else "o_proj"
        return (out.reshape(len(x), -1) @ self.w[f"{prefix}.{last}.weight"].T
                + self.w.get(f"{prefix}.{last}.bias", 0.0))

    def latent_norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * self.w[name]

    def turn_pairs(self, x, positions):
        """Rotated pairs are neighbours, or else halves; queries and keys may be permuted alike."""
        if self.config.get("rope_interleave", True):
            x = np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
        return self.rotate(x, positions)

    def latent_attention(self, x, prefix, positions, starts):
        """DeepSeek-V2, arXiv 2405.04434, section 2.1."""
        config, w, heads = self.config, self.w, self.config["num_attention_heads"]
        rank, plain = config["kv_lora_rank"], config["qk_nope_head_dim"]
        if f"{prefix}.q_proj.weight" in w:
            q = x @ w[f"{prefix}.q_proj.weight"].T
        else:
            latent = x @ w[f"{prefix}.q_a_proj.weight"].T
            q = (self.latent_norm(latent, f"{prefix}.q_a_layernorm.weight")
                 @ w[f"{prefix}.q_b_proj.weight"].T)
        latent = x @ w[f"{prefix}.kv_a_proj_with_mqa.weight"].T
        kv = (self.latent_norm(latent[:, :rank], f"{prefix}.kv_a_layernorm.weight")
              @ w[f"{prefix}.kv_b_proj.weight"].T).reshape(len(x), heads, -1)
        q, shared = q.reshape(len(x), heads, -1), self.turn_pairs(latent[:, None, rank:], positions)
        turned, scale = self.turn_pairs(q[..., plain:], positions), q.shape[-1] ** -0.5
        rope = config["rope_parameters"]
        if rope["rope_type"] == "yarn":
            scale *= self.growth(rope, rope["mscale_all_dim"]) ** 2
        out = np.zeros((len(x), heads, config["v_head_dim"]))
        for begin, end in zip(starts[:-1], starts[1:]):
            hidden = np.triu(np.full((end - begin, end - begin), -np.inf), 1)
            for h in range(heads):
                key = np.concatenate([kv[begin:end, h, :plain], shared[begin:end, 0]], axis=1)
                query = np.concatenate([q[begin:end, h, :plain], turned[begin:end, h]], axis=1)
                out[begin:end, h] = (softmax(scale * query @ key.T + hidden)
                                     @ kv[begin:end, h, plain:])
        return out.reshape(len(x), -1) @ w[f"{prefix}.o_proj.weight"].T

    def convolution(self, x, prefix, starts):
        b, c, x = np.split(x @ self.w[f"{prefix}.in_proj.weight"].T, 3, axis=1)
        taps = self.w[f"{prefix}.conv.weight"][:, 0]  # (dim, width), the last for the row itself
        gated, out = b * x, np.zeros_like(x)
        for begin, end in zip(starts[:-1], starts[1:]):
            for back in range(min(taps.shape[1], end - begin)):
                out[begin + back:end] += taps[:, -1 - back] * gated[begin:end - back]
        return c * out @ self.w[f"{prefix}.out_proj.weight"].T

    def mix(self, x, prefix, layer, positions, starts):
        kind = self.config.get("layer_types", ["full_attention"] * (layer + 1))[layer]
        if kind == "conv":
            return self.convolution(x, f"{prefix}.conv", starts)
        if self.latent:
            return self.latent_attention(x, f"{prefix}.self_attn", positions, starts)
        window = self.config["sliding_window"] if kind == "sliding_attention" else np.inf
        return self.attention(x, f"{prefix}.self_attn", positions, starts, window)

    def mlp(self, x, prefix):
        gate, up, down = (self.w[f"{prefix}.{name}.weight"].T for name in self.mlp_names)
        gate = x @ gate
        return (gate / (1.0 + np.exp(-gate)) * (x @ up)) @ down

    def limited_mlp(self, x, prefix):
        (gate_w, gate_b), (up_w, up_b), (down_w, down_b) = (
            (self.w[f"{prefix}.{name}.weight"].T, self.w[f"{prefix}.{name}.bias"])
            for name in self.mlp_names)
        limit = self.config["swiglu_limit"]
        gate = np.minimum(x @ gate_w + gate_b, limit)
        up = np.clip(x @ up_w + up_b, -limit, limit)
        act = gate / (1.0 + np.exp(-self.config["swiglu_alpha"] * gate)) * (up + 1.0)
        return act @ down_w + down_b

    def moe(self, x, prefix, experts):
        router = prefix + (".router" if self.oss else ".router.layer" if self.granite else ".gate")
        logits = x @ self.w[f"{router}.weight"].T + self.w.get(f"{router}.bias", 0.0)
        probs = 1.0 / (1.0 + np.exp(-logits)) if self.sigmoids else softmax(logits)
        weight = np.take_along_axis(probs, experts, axis=1)
        if self.renormalises:
            weight = weight / weight.sum(axis=1, keepdims=True)
        weight = weight * self.config.get("routed_scaling_factor", 1.0)
        out = np.zeros_like(x)
        for e in range(self.num_experts):
            token, place = np.nonzero(experts == e)
            if len(token):
                expert = self.limited_mlp if self.oss else self.mlp
                out[token] += weight[token, place][:, None] * expert(
                    x[token], f"{prefix}.experts.{e}")
        if f"{prefix}.shared_expert_gate.weight" in self.w:
            gate = x @ self.w[f"{prefix}.shared_expert_gate.weight"].T
            out += self.mlp(x, f"{prefix}.shared_expert") / (1.0 + np.exp(-gate))
        if self.glm:
            out += self.mlp(x, f"{prefix}.shared_experts")
        return out, probs

    def choose(self, layer, probs):
        """The experts of each token, best first, of the layer-th layer that has any."""
        merit = probs
        index = [n for n in range(self.config["num_hidden_layers"]) if self.is_moe(n)][layer]
        if self.lfm2:
            merit = probs + self.kept.get(f"model.layers.{index}.feed_forward.expert_bias", 0.0)
        if self.minimax:
            merit = probs + self.kept[
                f"model.layers.{index}.block_sparse_moe.e_score_correction_bias"]
        if self.glm:
            merit = probs + self.kept.get(
                f"model.layers.{index}.mlp.gate.e_score_correction_bias", 0.0)
            groups = merit.reshape(len(merit), self.config["n_group"], -1)
            count = 2 if self.sigmoids else 1
            best = np.sort(groups, axis=2)[:, :, -count:].sum(axis=2)
            order = np.argsort(-best, axis=1, kind="stable")[:, self.config["topk_group"]:]
            for token, excluded in enumerate(order):
                groups[token, excluded] = -np.inf
            merit = groups.reshape(merit.shape)
        return np.argsort(-merit, axis=1, kind="stable")[:, :self.config["num_experts_per_tok"]]

    def is_moe(self, layer):
        if "mlp_layer_types" in self.config:
            return self.config["mlp_layer_types"][layer] == "sparse"
        return (layer not in self.config.get("mlp_only_layers", [])
                and layer >= self.config.get("first_k_dense_replace", 0)
                and layer >= self.config.get("num_dense_layers", 0)
                and (layer + 1) % self.config.get("decoder_sparse_step", 1) == 0)

    def microbatch(self, tokens, positions, targets, starts, experts):
        """Logits, sum of cross-entropy, balance loss, probabilities per MoE layer."""
        x = self.looked_up[tokens] * self.config.get("embedding_multiplier", 1.0)
        added = self.config.get("residual_multiplier", 1.0)
        all_probs = []
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            norms = (("operator_norm", "ffn_norm") if self.lfm2
                     else ("input_layernorm", "post_attention_layernorm"))
            x = x + added * self.mix(self.norm(x, f"{prefix}.{norms[0]}.weight"), prefix, layer,
                                     positions, starts)
            y = self.norm(x, f"{prefix}.{norms[1]}.weight")
            if self.is_moe(layer):
                y, probs = self.moe(y, f"{prefix}.{self.block}", experts[len(all_probs)])
                all_probs.append(probs)
            else:
                y = self.mlp(y, f"{prefix}.{self.block}")
            x = x + added * y
        head = self.w["model.embed_tokens.weight" if self.tied else "lm_head.weight"]
        last = "model.embedding_norm.weight" if self.lfm2 else "model.norm.weight"
        logits = self.norm(x, last) @ head.T / self.config.get("logits_scaling", 1.0)
        kept = targets >= 0
        top = logits.max(axis=1)
        log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        ce = (log_sum[kept] - logits[kept, targets[kept]]).sum()
        return logits, ce, self.balance(all_probs, experts), all_probs

    def balance(self, all_probs, experts):
        """experts * sum over experts of (choices per token) * (mean probability), means over the
        tokens of all MoE layers together."""
        rows = sum(len(p) for p in all_probs)
        if self.sigmoids:
            all_probs = [p / p.sum(axis=1, keepdims=True) for p in all_probs]
        counts = np.bincount(np.concatenate([e.ravel() for e in experts]),
                             minlength=self.num_experts)
        probability = sum(p.sum(axis=0) for p in all_probs) / rows
        return self.num_experts * np.sum(counts / rows * probability)

    def step_loss(self, microbatches, target_count):
        loss, tokens = 0.0, sum(len(m["tokens"]) for m in microbatches)
        for m in microbatches:
            _, ce, aux, _ = self.microbatch(**m)
            share = len(m["tokens"]) / tokens
            loss += ce / target_count + self.config.get("router_aux_loss_coef", 0.0) * share * aux
        return loss
