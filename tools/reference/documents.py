"""The documents of data files: tokens, and which of them are trained.

Texts end with the end of text. Without a tokenizer tokens are bytes; with one, of Transformers,
rows of messages or of questions and answers are rendered by its own chat template, and trained are
the tokens of each assistant turn with the one that ends it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference.packed_rows import NO_TARGET

END_OF_BYTES = 256


@dataclass
class Document:
    tokens: np.ndarray   # int64
    targets: np.ndarray  # of the token before; if trained the token itself, else NO_TARGET
    is_text: bool

    def truncated(self, count):
        return Document(self.tokens[:count], self.targets[:count], self.is_text)


def text_document(text, tokenizer=None):
    if tokenizer is None:
        tokens = np.append(np.frombuffer(text.encode("utf-8"), dtype=np.uint8), END_OF_BYTES)
    else:
        tokens = np.array(tokenizer(text)["input_ids"] + [tokenizer.eos_token_id])
    return Document(tokens.astype(np.int64), tokens.astype(np.int64), True)


def messages_of(row):
    if "messages" in row:
        return row["messages"]
    if "question" in row:
        return [dict(role="user", content=row["question"]),
                dict(role="assistant", content=row["answer"])]
    raise SystemExit(f"this tool reads no rows of {sorted(row)}")


def chat_document(messages, tokenizer):
    """REQUIRES: an answer ends with the tokenizer's end of text, as in ChatML."""
    def render(count, **options):
        return tokenizer.apply_chat_template(messages[:count], tokenize=False, **options)
    text = render(len(messages))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    begins = np.array([begin for begin, _ in encoded["offset_mapping"]])
    trained = np.zeros(len(begins), dtype=bool)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            begin = len(render(i, add_generation_prompt=True))
            trained |= (begins >= begin) & (begins <= text.index(tokenizer.eos_token, begin))
    tokens = np.array(encoded["input_ids"], dtype=np.int64)
    return Document(tokens, np.where(trained, tokens, NO_TARGET), False)


def read_documents(paths, tokenizer=None):
    """The documents of .txt files (one) and .jsonl files (one a line)."""
    documents = []
    for path in map(Path, paths):
        text = path.read_bytes().decode("utf-8-sig")  # line ends as they are
        if path.suffix != ".jsonl":
            documents.append(text_document(text, tokenizer))
            continue
        for line in text.split("\n"):
            row = json.loads(line) if line.strip() else None
            if row is not None:
                documents.append(text_document(row["text"], tokenizer) if "text" in row else
                                 chat_document(messages_of(row), tokenizer))
    return documents


def documents_for(model_folder, paths):
    """The documents of files as the folder's tokenizer has them; bytes if it has none."""
    tokenizer = None
    if (Path(model_folder) / "tokenizer.json").is_file():
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
    return read_documents(paths, tokenizer)
