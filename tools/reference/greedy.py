"""What a model continues random prompts with: greedy.safetensors of a golden folder."""

import torch
from safetensors.torch import save_file

# How much more the best token is liked than the second, of the largest logit.
MIN_GREEDY_GAP = 1e-3
GREEDY_PROMPTS, GREEDY_TOKENS = 4, 12


def make_greedy(folder, model):
    """What Transformers likes best behind four prompts, where no other token comes near."""
    model.eval()
    generator = torch.Generator().manual_seed(12)
    prompts, found = [], []
    while len(found) < GREEDY_PROMPTS:
        prompt = torch.randint(0, model.config.vocab_size, (6,), generator=generator)
        tokens = greedy_tokens(model, prompt)
        if tokens is not None:
            prompts.append(prompt)
            found.append(tokens)
    tensors = {"prompts": torch.stack(prompts), "tokens": torch.stack(found)}
    save_file({name: tensor.to(torch.int32) for name, tensor in tensors.items()},
              folder / "greedy.safetensors")


@torch.no_grad()
def greedy_tokens(model, prompt):
    """Each by the whole forward; None where two of them are within MIN_GREEDY_GAP."""
    tokens = prompt
    for _ in range(GREEDY_TOKENS):
        out = model.model(input_ids=tokens[None], use_cache=False)
        logits = model.lm_head(out.last_hidden_state[0, -1])
        best, second = logits.topk(2).values
        if best - second < MIN_GREEDY_GAP * logits.abs().max():
            return None
        tokens = torch.cat([tokens, logits.argmax()[None]])
    return tokens[len(prompt):]
