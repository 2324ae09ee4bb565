"""Makes texts, rows and TOML files that are almost what pagoda reads."""

import json

import absurd

CONTROL = [b"\x1b[31m", b"\x1b]0;t\x07", b"\x9b", b"\xc2\x9b", b"\xe2\x80\xae", b"\xe2\x81\xa6",
           b"\x00", b"\x7f", b"\r", b"\x08", b"\xff", b"\xc0\x80", b"\xed\xa0\x80",
           b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
           b"\xf0\x9f\x98\x80", b"\xcc\x81" * 30, b"<|im_start|>",
           b"<|endoftext|>", b"<s>", b"\t", b"\n\n"]
ROLES = ["user", "assistant", "system", "tool", "USER", "", "\x1b[1m", None, 3]
FROMS = ["human", "gpt", "system", "user", "tool", "\u202e"]


def text(draw):
    parts = [draw.choice([b"plain words ", b"x" * 300, b"1234567890", b"\n", draw.randbytes(9),
                          draw.choice(CONTROL)]) for _ in range(draw.choice([0, 1, 5, 60, 400]))]
    if draw.random() < 0.5:  # well formed, so that it goes on to what is printed
        joined = b"".join(parts).decode("utf-8", "ignore").encode()
    else:
        joined = b"".join(parts)
    return joined * draw.choice([1, 1, 1, 30])


def _words(draw):
    if draw.random() < 0.3:
        return draw.choice(absurd.TEXTS)
    return " ".join(draw.choice(["yes", "no", "why", "because", "\x1b[5m", "\u2067"])
                    for _ in range(draw.choice([0, 3, 30])))


def _row(draw):
    kind = draw.randrange(6)
    if kind == 0:
        return {"text": _words(draw)}
    if kind == 1:
        return {"messages": [{"role": draw.choice(ROLES), "content": _words(draw)}
                             for _ in range(draw.randint(0, 5))]}
    if kind == 2:
        return {"conversations": [{"from": draw.choice(FROMS), "value": _words(draw)}
                                  for _ in range(draw.randint(0, 5))]}
    if kind == 3:
        return {"instruction": _words(draw), "input": _words(draw), "output": _words(draw)}
    if kind == 4:
        return {"prompt": _words(draw), "completion": _words(draw)}
    return {"question": _words(draw), "answer": _words(draw), "history": [[_words(draw)] * 2]}


def _sound_row(draw):
    return {"messages": [{"role": "user", "content": _words(draw) + "?"},
                         {"role": "assistant", "content": _words(draw) + "."}]}


def _line(draw, row):
    """One row as bytes, sometimes not as JSON says."""
    raw = json.dumps(row, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    roll = draw.random()
    if roll < 0.04:
        at = draw.randrange(len(raw))
        raw = raw[:at] + draw.choice(CONTROL) + raw[at:]
    elif roll < 0.07:
        raw = raw[:draw.randrange(len(raw))]
    elif roll < 0.09:
        raw = b"[" * 100000
    elif roll < 0.1:
        raw = b'{"text": ' + b"9" * 5000 + b"}"
    elif roll < 0.11:
        raw = b'{"a":' * 20000 + b"1" + b"}" * 20000
    return raw


def rows(draw, as_array):
    sound = draw.random() < 0.6
    made = [(_sound_row if sound else _row)(draw) for _ in range(draw.choice([0, 1, 3, 30]))]
    if made and draw.random() < 0.5:
        row = draw.choice(made)
        absurd.change(draw, row)
    lines = [_line(draw, row) for row in made]
    if as_array:
        raw = b"[" + b",\n".join(lines) + draw.choice([b"]", b"]", b",]", b"", b"]]", b"]\n{}"])
    else:
        raw = draw.choice([b"\n", b"\n", b"\r\n", b"\n\n", b" "]).join(lines) + b"\n"
    return draw.choice([b"", b"", b"\xef\xbb\xbf", b"\xff\xfe"]) + raw


TOML_VALUES = ["nan", "inf", "-inf", "-1", "0", "1e400", "9223372036854775807",
               "9223372036854775808", "-9223372036854775808", "true", "[]", "[[[]]]", "{}", '""',
               '"\\u001b[31m"', '"\\u202e"', "1979-05-27", '"999999TiB"', '"0%"', '"nan%"',
               '"1e9%"', "0x7fffffffffffffff", "1_000", "1e-320", '"' + "a" * 70000 + '"', "'''x",
               '"-1GiB"', "[" * 2000, "{a=" * 500, '["a", 1]', "4294967296", "2147483648", "0.5"]


def toml(draw, sound):
    """A sound TOML text with one or more lines spoilt; and how."""
    lines, how = sound.split("\n"), []
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        settings = [i for i, line in enumerate(lines) if " = " in line]
        at, roll = draw.choice(settings), draw.random()
        key = lines[at].split(" = ")[0]
        if roll < 0.7:
            lines[at] = f"{key} = {draw.choice(TOML_VALUES)}"
        elif roll < 0.8:
            lines.insert(at, lines[at])
        elif roll < 0.88:
            lines[at] = lines[at].replace(key, draw.choice([key + "x", key[:-1] or "_", "\u202e",
                                                            '"\\u001b"', "a." * 3000 + "b"]), 1)
        elif roll < 0.93:
            lines[at] = "[" + draw.choice(["model", "x", "", "[train]", "a.b.c", '"\\u009b"']) + "]"
        else:
            del lines[at]
            how.append(f"{key} gone")
            continue
        how.append(lines[at][:60])
    raw = "\n".join(lines).encode()
    if draw.random() < 0.1:
        at = draw.randrange(len(raw))
        raw = raw[:at] + draw.choice(CONTROL) + raw[at:]
        how.append(f"bytes at {at}")
    return raw, "; ".join(how)
