"""Values that nobody means, and documents with some of them in place of what was there."""

NUMBERS = [-1, 0, 1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63 - 1,
           2**63, 2**64, -2**31, -2**63]
REALS = [0.5, -0.0, 1e-320, 1e30, 1e308, -1e308]
# None of them is a path outside that a program run by root could write to or replace.
# Escapes of a terminal, marks of direction, C1, line ends, bytes of paths.
TEXTS = ["", " ", "a" * 70000, "../../victim/precious", "/proc/version",
         "/proc/self/maps", ".", "..",
         "\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\u202eevil\u202c", "\u2066x", "\x9b31m", "\x7f",
         "a\nb", "a\rb", "a\0b", "\u2028", "%s%s%n", "nan", "-1", "\u00e9\u0301\U0001f600",
         "\ufeff", "\ud7ff", "{{ x }}", "{% for a in b %}", "model.safetensors", "fp64", "int8"]


def nested(depth, kind=list):
    value = None
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def value(draw):
    kind = draw.randrange(8)
    if kind < 3:
        return draw.choice(NUMBERS)
    if kind < 5:
        return draw.choice(TEXTS)
    return draw.choice([None, True, False, [], {}, [[]], [0] * 1000, {"a": 1}, *REALS,
                        nested(90), nested(90, dict)])


def near(draw, old):
    """A value of the same kind, most often."""
    if draw.random() < 0.3:
        return value(draw)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return draw.choice([draw.choice(NUMBERS), old + 1, old - 1, old * 2, -old, old * 2**32])
    if isinstance(old, float):
        return draw.choice([*REALS, -old, old * 1e6, draw.choice(NUMBERS)])
    if isinstance(old, str):
        return draw.choice([draw.choice(TEXTS), old + "x", old[:-1], old * 50,
                            draw.choice(TEXTS) + old])
    if isinstance(old, list):
        return draw.choice([[], old + old, old[:-1], old[::-1], old * 30, [value(draw)] + old])
    return value(draw)


def _containers(document):
    """Every list and object of it that holds something, the outermost first."""
    found, at = [document], 0
    while at < len(found):
        inner = found[at].values() if isinstance(found[at], dict) else found[at]
        found += [v for v in inner if isinstance(v, (dict, list)) and v]
        at += 1
    return found


def change(draw, document):
    """Changes one place of a JSON document in place; says how."""
    containers = _containers(document)
    inside = draw.choice(containers[:60]) if draw.random() < 0.5 else document
    keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
    if not keys:
        return "nothing changed"
    key, roll = draw.choice(keys), draw.random()
    if roll < 0.1:
        del inside[key]
        return f"{key!r} removed"
    if roll < 0.15 and isinstance(inside, dict):
        new = draw.choice(TEXTS)
        inside[new] = inside.pop(key)
        return f"{key!r} renamed {new[:40]!r}"
    inside[key] = near(draw, inside[key])
    return f"{key!r} = {inside[key]!r}"[:120]
