"""Small tokenizers, one for each component and option that pagoda reads, and texts for them."""

import random

from reference.tokenizer_sources import added, bpe, byte_alphabet, byte_level, tokenizer

LETTERS = ["a", "b", "1", " ", "\u2581", "-", "\n", "\u00e9"]
BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
PATTERNS = [{"Regex": r"\s+"}, {"Regex": "a|b1"}, {"Regex": "a*"}, {"String": "a"},
            {"String": "--"}, {"Regex": r"(?i:A1|B)|\d{1,2}|[^\S\n]|^-|b$"}]


def pair_vocabulary(letters, rng):
    """Letters, all pairs, and some fours, so that a border between words shows in the ids."""
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = [(x, y) for x in letters for y in letters]
    rng.shuffle(merges)
    pairs = [x + y for x, y in merges]
    merges += sorted({tuple(rng.choices(pairs, k=2)) for _ in range(300)})
    for x, y in merges:
        vocab.setdefault(x + y, len(vocab))
    return vocab, merges


def texts(rng, count=40):
    more = LETTERS + ["  ", "<x>", "<x> ", " <x>", "A", "\u4e2d", "e\u0301", "--", "\t", "\u00a0"]
    return [""] + ["".join(rng.choices(more, k=rng.randint(1, 12))) for _ in range(count - 1)]


def character_models(rng):
    vocab, merges = pair_vocabulary(LETTERS, rng)
    legacy = [" ".join(pair) for pair in merges if not any(" " in part for part in pair)]
    pairs = [list(pair) for pair in merges]
    unk = {**vocab, "<unk>": len(vocab)}
    fallback = dict(unk)
    for byte in range(256):
        fallback[f"<0x{byte:02X}>"] = len(fallback)
    yield bpe(vocab, pairs)
    yield bpe(vocab, legacy)
    yield bpe(vocab, ["#version: 0.2", *legacy])
    yield bpe(vocab, pairs, ignore_merges=True)
    yield bpe(unk, pairs, unk_token="<unk>")
    yield bpe(unk, pairs, unk_token="<unk>", fuse_unk=True)
    yield bpe(fallback, pairs, unk_token="<unk>", byte_fallback=True)


def byte_model(rng, **changed):
    spell = byte_alphabet()
    letters = [spell[b] for b in range(256)]
    vocab, merges = pair_vocabulary([spell[b] for b in "ab1 -\n\u00e9A".encode()], rng)
    for letter in letters:
        vocab.setdefault(letter, len(vocab))
    return bpe(vocab, [list(pair) for pair in merges], **changed)


def token_variants(first_id):
    """The added token <x> in every combination of its options."""
    for bits in range(16):
        token = added(first_id, ["<x>"], bits % 2 == 0)[0]
        for i, option in enumerate(("single_word", "lstrip", "rstrip", "normalized")):
            token[option] = bool(bits >> i & 1)
        yield token


def decoders():
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    yield None
    yield {"type": "Fuse"}
    yield {"type": "ByteFallback"}
    yield strip
    yield {**strip, "start": 0, "stop": 1}
    yield {"type": "Sequence", "decoders": [{"type": "Fuse"}, {**strip, "start": 3, "stop": 0}]}
    yield {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    yield {"type": "Replace", "pattern": {"Regex": "a|-+"}, "content": "<>"}
    for scheme in ("always", "first", "never"):
        yield {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
               "split": True}


def pre_tokenizers():
    for pattern in PATTERNS:
        for behavior in BEHAVIORS:
            for invert in (False, True):
                yield {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    for individual in (False, True):
        yield {"type": "Digits", "individual_digits": individual}
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            yield {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
                   "split": split}
    yield {"type": "Sequence", "pretokenizers": [
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        {"type": "Digits", "individual_digits": True}]}


def normalizers():
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    yield {"type": "NFC"}
    yield space
    yield prepend
    yield {"type": "Replace", "pattern": {"Regex": r"\s+|a"}, "content": ""}
    yield {"type": "Replace", "pattern": {"Regex": "(?=b)"}, "content": "-"}
    yield {"type": "Sequence", "normalizers": [prepend, space, {"type": "NFC"}]}


def component_tokenizers(seed):
    rng = random.Random(seed)
    models = list(character_models(rng))
    fallback = models[-1]
    first = len(fallback["vocab"])
    for model in models:
        yield tokenizer(model=model, added_tokens=added(len(model["vocab"]), ["<x>"], True))
    for part in pre_tokenizers():
        yield tokenizer(model=fallback, pre_tokenizer=part,
                        added_tokens=added(first, ["<x>"], True))
    for part in normalizers():
        for token in list(token_variants(first))[::5]:
            yield tokenizer(model=fallback, normalizer=part, added_tokens=[token])
    for token in token_variants(first):
        yield tokenizer(model=fallback, added_tokens=[token, *added(first + 1, ["<x>a"], False)])
    for part in decoders():
        yield tokenizer(model=fallback, decoder=part, added_tokens=added(first, ["<x>"], True))
    for space in (False, True):
        for regex in (False, True):
            for ignore in (False, True):
                model = byte_model(rng, ignore_merges=ignore)
                part = byte_level(add_prefix_space=space, use_regex=regex)
                yield tokenizer(model=model, pre_tokenizer=part, decoder=part,
                                added_tokens=added(len(model["vocab"]), ["<x>"], True))
