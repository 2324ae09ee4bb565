"""Models with experts in Transformers: document borders, loss of a step, names on the hub."""

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

NO_TARGET = -1


@dataclass
class Microbatch:
    """Tensors (rows, sequence_len), int64."""

    tokens: torch.Tensor
    targets: torch.Tensor    # NO_TARGET where there is none
    positions: torch.Tensor
    documents: torch.Tensor  # equal number: may attend to each other (inside a row)
    padding: torch.Tensor = None  # 1: padding; None: nothing is

    @staticmethod
    def from_rows(rows):
        return Microbatch(*(torch.from_numpy(x) for x in
                            (rows.tokens, rows.targets, rows.positions, rows.documents,
                             rows.padding)))

    def num_targets(self):
        return int((self.targets != NO_TARGET).sum())

    def num_tokens(self):
        """Without padding."""
        return self.tokens.numel() - (0 if self.padding is None else int(self.padding.sum()))


@dataclass
class Forward:
    logits: torch.Tensor   # (rows, sequence_len, vocab)
    router_logits: tuple   # per MoE layer (rows * sequence_len, num_experts)


def allowed_keys(documents, window=None):
    """(rows, 1, query, key) bool: the key is of the query's document and not after it, and among
    the newest `window` keys."""
    length = documents.shape[1]
    same = documents[:, None, :, None] == documents[:, None, None, :]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    return same & (seen if window is None else seen.triu(1 - window))


def attention_mask(model, documents):
    """What Transformers takes as it is: a mask, or one for each kind of layers."""
    config = model.config
    window = getattr(config, "sliding_window", None) or None
    if config.model_type in ("gpt_oss", "qwen2_moe", "dots1"):
        return {"full_attention": one_mask(model, documents, None),
                "sliding_attention": one_mask(model, documents, window)}
    return one_mask(model, documents, window)


def one_mask(model, documents, window):
    """4-D: bool for sdpa, additive for eager."""
    allowed = allowed_keys(documents, window)
    if model.config._attn_implementation == "sdpa":
        plain = window is None and not bool((documents != documents[:, :1]).any())
        return None if plain else allowed
    dtype = model.dtype
    mask = torch.zeros(allowed.shape, dtype=dtype)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)


def forward(model, batch):
    """Documents of models with convolutions are computed one by one, since convolutions of
    Transformers do not end with a document."""
    if "conv" in (getattr(model.config, "layer_types", None) or []):
        return forward_documents(model, batch)
    # Not through ForCausalLM.forward: with router logits it hands the 4-D mask to the balance loss,
    # which wants one number a token.
    out = model.model(input_ids=batch.tokens, attention_mask=attention_mask(model, batch.documents),
                      position_ids=batch.positions, use_cache=False, output_router_logits=True)
    logits = model.lm_head(out.last_hidden_state) / getattr(model.config, "logits_scaling", 1.0)
    return Forward(logits, out.router_logits)


def forward_documents(model, batch):
    logits, router_logits = [], []
    for row, documents in zip(batch.tokens, batch.documents):
        for number in documents.unique(sorted=True):
            out = model.model(input_ids=row[documents == number][None], use_cache=False,
                              output_router_logits=True)
            logits.append(model.lm_head(out.last_hidden_state)[0])
            router_logits.append(out.router_logits)
    every = torch.cat(logits).unflatten(0, batch.tokens.shape)
    return Forward(every, tuple(torch.cat(layer) for layer in zip(*router_logits)))


def cross_entropy_sum(logits, targets):
    """Sum over targets, in fp32 as Transformers' ForCausalLMLoss does it."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum",
                           ignore_index=NO_TARGET)


def num_experts_of(config):
    return getattr(config, "num_experts", None) or config.num_local_experts


def is_sigmoid_router(model):
    """DeepSeek-V3's kind: sigmoid scores, perhaps with a correction of the choice and groups."""
    return model.config.model_type in ("glm4_moe", "lfm2_moe", "deepseek_v3", "glm4_moe_lite",
                                       "dots1", "minimax_m2")


def routers_of(model):
    return [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]


def is_correction(name):
    return name.endswith(("e_score_correction_bias", "expert_bias"))


def correction_of(model, router):
    """What the router's choice adds to scores; LFM2's and MiniMax-M2's blocks have it."""
    if hasattr(router, "e_score_correction_bias"):
        return router.e_score_correction_bias
    block = next(m for m in model.modules() if getattr(m, "gate", None) is router)
    if model.config.model_type == "minimax_m2":
        return block.e_score_correction_bias
    return getattr(block, "expert_bias", 0.0)


def shares(model, router_logits):
    """What the balance loss takes of each expert. Transformers has none for sigmoid routers;
    Pagoda reports it of scores over their sum, as DeepSeek-V3 (arXiv 2412.19437, 2.1.2) has it."""
    if not is_sigmoid_router(model):
        return torch.softmax(router_logits, dim=-1).float()
    scores = router_logits.float().sigmoid()
    return scores / scores.sum(dim=-1, keepdim=True)


def balance_loss(model, router_logits, padding=None):
    """Transformers' own, over all tokens of the microbatch but padding, and all MoE layers."""
    config = model.config
    if is_sigmoid_router(model):
        if padding is not None:
            router_logits = [x[padding.flatten() == 0] for x in router_logits]
        return balance_loss_imposed(model, router_logits, top_experts(model, router_logits)[0])
    if config.model_type == "deepseek_v2" and padding is None:  # Transformers has none
        return balance_loss_imposed(model, router_logits, top_experts(model, router_logits)[0])
    mask = None if padding is None else 1 - padding
    return load_balancing_loss_func(tuple(router_logits), num_experts_of(config),
                                    config.num_experts_per_tok, mask)


def make_batch(rows, vocab, generator):
    """A microbatch of random tokens; targets shifted inside documents."""
    length = sum(rows[0])
    tokens = torch.randint(0, vocab, (len(rows), length), generator=generator)
    positions = torch.tensor([[p for n in row for p in range(n)] for row in rows])
    documents = torch.tensor([[i for i, n in enumerate(row) for _ in range(n)] for row in rows])
    targets = torch.full_like(tokens, NO_TARGET)
    inside = documents[:, 1:] == documents[:, :-1]
    targets[:, :-1] = torch.where(inside, tokens[:, 1:], NO_TARGET)
    return Microbatch(tokens, targets, positions, documents)


def z_loss(router_logits, padding=None):
    """router_z_loss_func of Transformers' Switch: over the tokens of all MoE layers."""
    if padding is not None:
        router_logits = [x[padding.flatten() == 0] for x in router_logits]
    return torch.cat([torch.logsumexp(x.float(), dim=-1) for x in router_logits]).square().mean()


def balance_loss_imposed(model, router_logits, experts):
    """The same formula with the counts of imposed experts (per layer (tokens, top_k))."""
    num_experts = num_experts_of(model.config)
    rows = sum(x.shape[0] for x in router_logits)
    counts = sum(torch.bincount(e.flatten(), minlength=num_experts) for e in experts).float()
    probs = sum(shares(model, x).sum(dim=0) for x in router_logits)
    return num_experts * torch.sum((counts / rows) * (probs / rows))


def top_by_sigmoids(model, router, logits):
    """Experts and the gap, as Glm4MoeTopkRouter chooses; of groups too."""
    merit = logits.detach().float().sigmoid() + correction_of(model, router)
    groups, gap = merit.view(len(merit), getattr(router, "num_group", 1), -1), float("inf")
    if groups.shape[1] > 1 and router.topk_group < router.num_group:
        best = groups.topk(2, dim=-1)[0].sum(dim=-1)
        value, index = best.topk(router.topk_group + 1, dim=-1)
        gap = float((value[:, -2] - value[:, -1]).min())
        kept = torch.zeros_like(best).scatter_(1, index[:, :-1], 1.0).bool()
        merit = groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    value, index = merit.topk(router.top_k + 1, dim=-1)
    return index[:, :-1], min(gap, float((value[:, -2] - value[:, -1]).min()))


def best_groups(router, probs):
    """Scores of DeepSeek-V2's best groups, others' 0, and the gap to the first refused group."""
    groups = probs.view(len(probs), router.num_group, -1)
    best = groups.max(dim=-1).values
    if router.topk_group == router.num_group:
        return probs, float("inf")
    value, index = best.topk(router.topk_group + 1, dim=-1)
    kept = torch.zeros_like(best).scatter_(1, index[:, :-1], 1.0).bool()
    gap = float((value[:, -2] - value[:, -1]).min())
    return groups.masked_fill(~kept[..., None], 0.0).flatten(1), gap


def top_experts(model, router_logits):
    """Chosen experts per layer (tokens, top_k), largest first, and the smallest gap between the
    last chosen and the first refused probability."""
    k = model.config.num_experts_per_tok
    chosen, gap = [], float("inf")
    if is_sigmoid_router(model):
        for router, logits in zip(routers_of(model), router_logits):
            index, least = top_by_sigmoids(model, router, logits)
            gap = min(gap, least)
            chosen.append(index)
        return chosen, gap
    for logits, router in zip(router_logits, routers_of(model)):
        probs = torch.softmax(logits.detach().float(), dim=-1)
        if getattr(router, "topk_method", None) == "group_limited_greedy":
            probs, least = best_groups(router, probs)
            gap = min(gap, least)
        value, index = probs.topk(k + 1, dim=-1)
        gap = min(gap, float((value[:, k - 1] - value[:, k]).min()))
        chosen.append(index[:, :k])
    return chosen, gap


@contextlib.contextmanager
def imposed_routing(model, experts):
    """While open, MoE layer i sends its tokens to experts[i] (tokens, top_k); the weights are still
    its own probabilities, computed as Transformers' router computes them."""
    routers = routers_of(model)
    assert len(routers) == len(experts)

    def by_sigmoids(router, chosen, hidden):
        rows = hidden.reshape(-1, router.hidden_dim).float()
        logits = F.linear(rows, router.weight.float())
        value = logits.sigmoid().gather(-1, chosen)
        if router.norm_topk_prob:
            value = value / (value.sum(dim=-1, keepdim=True) + 1e-20)
        return logits, value * router.routed_scaling_factor, chosen

    def by_lfm2(router, chosen, hidden):
        logits = F.linear(hidden, router.weight)
        value = logits.sigmoid().gather(-1, chosen)
        if router.norm_topk_prob:
            value = value / (value.sum(dim=-1, keepdim=True) + 1e-6)
        return logits, value * router.routed_scaling_factor, chosen

    def by_gpt_oss(router, chosen, hidden):
        logits = F.linear(hidden, router.weight, router.bias)
        return logits, torch.softmax(logits.gather(-1, chosen), dim=-1), chosen

    def by_granite(router, chosen, hidden):
        logits = F.linear(hidden, router.weight).float()
        return logits, torch.softmax(logits.gather(-1, chosen), dim=-1).type_as(hidden), chosen

    def by_minimax(router, chosen, hidden):
        logits = F.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
        value = logits.float().sigmoid().gather(-1, chosen)
        return logits, value / value.sum(dim=-1, keepdim=True), chosen

    def by_deepseek_v2(router, chosen, hidden):
        rows = hidden.reshape(-1, router.hidden_dim).float()
        logits = F.linear(rows, router.weight.float())
        value = torch.softmax(logits, dim=-1).gather(-1, chosen)
        return logits, value * router.routed_scaling_factor, chosen

    def route(router, chosen, hidden, *_):
        if model.config.model_type == "deepseek_v2":
            return by_deepseek_v2(router, chosen, hidden)
        if model.config.model_type == "gpt_oss":
            return by_gpt_oss(router, chosen, hidden)
        if model.config.model_type == "minimax_m2":
            return by_minimax(router, chosen, hidden)
        if model.config.model_type == "granitemoe":
            return by_granite(router, chosen, hidden)
        if hasattr(router, "use_expert_bias"):
            return by_lfm2(router, chosen, hidden)
        if hasattr(router, "e_score_correction_bias"):
            return by_sigmoids(router, chosen, hidden)
        logits = F.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
        value = torch.softmax(logits, dtype=torch.float, dim=-1).gather(-1, chosen)
        if getattr(router, "norm_topk_prob", True):  # Mixtral's has no choice, and stays in fp32
            value = value / value.sum(dim=-1, keepdim=True)
        mixtral = not hasattr(router, "norm_topk_prob")
        return logits, value if mixtral else value.to(logits.dtype), chosen

    def rows_in_turn(router, chosen):
        """A call takes as many rows of `chosen` as it has; calls follow one another."""
        left = chosen

        def call(hidden, *rest):
            nonlocal left
            rows = hidden.reshape(-1, hidden.shape[-1]).shape[0]
            now, left = left[:rows], left[rows:]
            return route(router, now, hidden, *rest)
        return call

    for router, chosen in zip(routers, experts):
        router.forward = rows_in_turn(router, chosen)
    try:
        yield
    finally:
        for router in routers:
            del router.forward


# What granitemoe's files call its stacked experts.
GRANITE_NAMES = {".experts.gate_up_proj": ".input_linear.weight",
                 ".experts.down_proj": ".output_linear.weight",
                 ".router.weight": ".router.layer.weight"}

@contextlib.contextmanager
def limit_gap(model):
    """Gives a list that gets, from each call of gpt-oss' experts while this is open, how far the
    nearest number is from SwiGLU's limit: beyond it nothing has a gradient."""
    gaps = []
    limited = [m for m in model.modules() if hasattr(m, "_apply_gate") and hasattr(m, "limit")]

    def watched(experts):
        inner = experts._apply_gate

        def apply_gate(gate_up):
            gate, up = gate_up[..., ::2], gate_up[..., 1::2]
            for values in (gate, up.abs()):
                if values.numel() > 0:
                    gaps.append(float((values.detach() - experts.limit).abs().min()))
            return inner(gate_up)
        return apply_gate

    for experts in limited:
        experts._apply_gate = watched(experts)
    try:
        yield gaps
    finally:
        for experts in limited:
            del experts._apply_gate


# Names on the hub of Mixtral's, MiniMax-M2's and LFM2's experts for those of the model in memory.
SHORT_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def gpt_oss_parts(last, stacked):
    """Pagoda's names of what a tensor of gpt-oss' experts is of each: (experts, hidden, 2 ffn) or
    (experts, 2 ffn) with gate and up in turn, (experts, ffn, hidden), (experts, hidden)."""
    kind = "bias" if last.endswith("_bias") else "weight"
    stacked = stacked.transpose(1, 2) if kind == "weight" else stacked
    if last.startswith("down_proj"):
        return {f"down_proj.{kind}": stacked}
    return {f"gate_proj.{kind}": stacked[:, ::2], f"up_proj.{kind}": stacked[:, 1::2]}


def hub_tensors(named, model_type):
    """(name, tensor) pairs with the fused expert tensors cut into the hub's per-expert ones:
    gate_up_proj (experts, 2 ffn, hidden) is [gate; up]. Those of gpt-oss, which the hub has fused
    only, are cut likewise."""
    short = model_type in ("mixtral", "lfm2_moe", "minimax_m2")
    for name, tensor in named:
        if model_type in ("mixtral", "minimax_m2"):
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if model_type == "granitemoe":
            name = name.replace(".router.weight", ".router.layer.weight")
        base, _, last = name.rpartition(".")
        if model_type == "gpt_oss" and base.endswith(".experts"):
            for part, stacked in gpt_oss_parts(last, tensor).items():
                for e, one in enumerate(stacked):
                    yield f"{base}.{e}.{part}", one.contiguous()
            continue
        if last == "gate_up_proj":
            parts = dict(zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1)))
        elif last == "down_proj":
            parts = {"down_proj": tensor}
        else:
            yield name, tensor
            continue
        for e in range(tensor.shape[0]):
            for part, stacked in parts.items():
                spelling = SHORT_NAMES[part] if short else part
                yield f"{base}.{e}.{spelling}.weight", stacked[e]
