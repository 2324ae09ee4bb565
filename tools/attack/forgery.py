"""Forgery: files whose checksums are right and whose content is nonsense, as somebody would make
them who wants memory taken, bounds passed or other files written. Refused, or run within bounds;
never a crash, never gigabytes, never a touch of files outside. An exit 70 is allowed here alone:
who forges a checkpoint may see an internal check fail."""

import json
import shutil
import struct

import absurd
import checksums
import laboratory
import program

DEFAULT, QUICK, HISTORIC = 160, 8, 450

CODES = program.DOCUMENTED | {program.INTERNAL}
PRECIOUS = b"a file of somebody else\n" * 400
SAFETENSORS_SHAPES = [[], [0], [-1], [1], [2**31], [2**32, 2**32], [2**62, 4], [2**63 - 1],
                      [2**64], [1] * 9, [1] * 1000, [3.5], ["8"], [None], [128, 0, 2**60]]
OFFSETS = [[0, 0], [8, 0], [0, 2**63 - 1], [2**63, 2**64], [-8, 8], [0], [0, 1, 2], ["0", "8"],
           [2**40, 2**41], [1, 2]]
SUPERBLOCK = {"format": (8, "<I"), "directories": (12, "<I"), "store id": (16, "<Q"),
              "index": (32, "<I"), "pages": (36, "<I"), "slots": (40, "<I"), "table": (44, "<I"),
              "length": (48, "<q"), "classes": (56, "<I"), "class bytes": (60, "<q"),
              "extents": (68, "<I")}
PAGE_HEADER = {"format": (8, "<I"), "page": (12, "<I"), "store id": (16, "<Q"),
               "record": (32, "<I"), "extent": (36, "<I"), "generation": (40, "<Q"),
               "bytes": (48, "<q"), "checksum": (56, "<I")}
TOKEN_HEADER = {"format": (8, "<q"), "tokens": (16, "<q"), "documents": (24, "<q"),
                "words": (32, "<q")}


def checkpoint_of(case):
    return next((case.path("half") / "checkpoints").glob("step-*"))


def read_manifest(case):
    return json.loads((checkpoint_of(case) / "MANIFEST").read_text().split("\n")[0])


def write_manifest(case, manifest):
    line = json.dumps(manifest, ensure_ascii=False, separators=(",", ":"))
    raw = line.encode("utf-8", "surrogatepass")
    (checkpoint_of(case) / "MANIFEST").write_bytes(
        raw + b"\nxxh3 " + checksums.xxh3_hex(raw).encode() + b"\n")


def wrap(number, form):
    bits = struct.calcsize(form) * 8
    number %= 1 << bits
    if form[-1].islower() and number >> (bits - 1):
        number -= 1 << bits
    return number


def change_field(draw, data, fields, base=0):
    name = draw.choice(sorted(fields))
    at, form = fields[name]
    old = struct.unpack_from(form, data, base + at)[0]
    new = draw.choice([draw.choice(absurd.NUMBERS), old + 1, old - 1, old * 2, old ^ 1 << 20])
    struct.pack_into(form, data, base + at, wrap(new, form))
    return f"{name} = {new}"


def seal_block(data, base):
    struct.pack_into("<I", data, base + 4092, checksums.crc32c(data[base:base + 4092]))


def forge_manifest(case):
    draw, manifest = case.random, read_manifest(case)
    how = []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        roll = draw.random()
        if roll < 0.2:  # the run's own options, in the text that the manifest holds
            lines = manifest["resolved_config"].split("\n")
            at = draw.choice([i for i, line in enumerate(lines) if " = " in line])
            key = lines[at].split(" = ")[0]
            lines[at] = f"{key} = {json.dumps(absurd.value(draw))}"
            manifest["resolved_config"] = "\n".join(lines)
            how.append(lines[at])
        elif roll < 0.4:
            model = json.loads(manifest["model_json"])
            how.append("model " + absurd.change(draw, model))
            manifest["model_json"] = json.dumps(model)
        elif roll < 0.5:
            place = draw.choice([str(case.path("victim")), "../victim", "/", "/dev", "",
                                 "x" * 5000])
            manifest["directories"] = draw.choice([[place], [place] * 3, ["store", place],
                                                   ["store"] * 5000])
            manifest["file_name"] = draw.choice([manifest["file_name"], "precious", "../precious",
                                                 "../../victim/precious", "pages-", "a/b"])
            how.append(f"directories {place[:40]}, {manifest['file_name']}")
        else:
            how.append(absurd.change(draw, manifest))
    write_manifest(case, manifest)
    return "MANIFEST " + "; ".join(how)


def forge_pages(case):
    draw, manifest, path = case.random, read_manifest(case), checkpoint_of(case) / "pages.bin"
    data, how = bytearray(path.read_bytes()), []
    entry = {"page": (0, "<I"), "extent": (4, "<I"), "generation": (8, "<Q"), "crc": (16, "<I")}
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(data) // 20) * 20
        how.append(f"entry {at // 20} {change_field(draw, data, entry, at)}")
    roll = draw.random()
    if roll < 0.15:
        data.extend(bytes(data))
    elif roll < 0.3:
        del data[draw.randrange(len(data)):]
    elif roll < 0.4:
        data[:20] = data[20:40]
    path.write_bytes(data)
    manifest |= {"pages_bytes": len(data), "pages_xxh3": checksums.xxh3_hex(data)}
    if draw.random() < 0.5:
        manifest["pages"] = len(data) // 20
    write_manifest(case, manifest)
    return f"pages.bin {'; '.join(how)}, {len(data)} bytes"


def forge_store(case):
    draw = case.random
    path = next((case.path("half") / "store").iterdir())
    data = bytearray(path.read_bytes())
    if draw.random() < 0.5:
        first = draw.choice([0, 4096])
        how = f"superblock at {first} {change_field(draw, data, SUPERBLOCK, first)}"
        seal_block(data, first)
        if draw.random() < 0.7:
            data[4096 - first:8192 - first] = data[first:first + 4096]
            how += ", both"
    else:
        pages = [at for at in range(65536, len(data), 4096) if data[at:at + 8] == b"PAGODAPG"]
        at = draw.choice(pages)
        how = f"page at {at} {change_field(draw, data, PAGE_HEADER, at)}"
        seal_block(data, at)
    path.write_bytes(data)
    return "store " + how


def forge_tokens(case):
    draw, path = case.random, case.path("half") / "tokens.bin"
    data = bytearray(path.read_bytes())
    if draw.random() < 0.5:
        how = change_field(draw, data, TOKEN_HEADER)
    else:
        at = draw.randrange(200, len(data) - 3) // 4 * 4
        if draw.random() < 0.4:
            at = len(data) - 4 * draw.randint(1, 4)  # a place in the index
        new = wrap(draw.choice(absurd.NUMBERS), "<I")
        struct.pack_into("<I", data, at, new)
        how = f"word at {at} = {new}"
    data[136:168] = checksums.xxh3_hex(data[200:]).encode()
    data[168:200] = checksums.xxh3_hex(data[:168]).encode()
    path.write_bytes(data)
    return "tokens.bin " + how


def forge_weights(case):
    draw, path = case.random, case.path("model") / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header, rest = json.loads(data[8:8 + length]), data[8 + length:]
    names = [name for name in header if name != "__metadata__"]
    how = []
    for _ in range(draw.choice([1, 1, 2])):
        tensor, roll = header[draw.choice(names)], draw.random()
        if roll < 0.35:
            tensor["shape"] = draw.choice(SAFETENSORS_SHAPES)
        elif roll < 0.7:
            tensor["data_offsets"] = draw.choice(OFFSETS)
        elif roll < 0.8:
            tensor["data_offsets"] = header[draw.choice(names)]["data_offsets"]  # they overlap
        else:
            how.append(absurd.change(draw, header))
        how.append(str(tensor)[:100])
        names = [n for n in header if n != "__metadata__" and isinstance(header[n], dict)]
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    if draw.random() < 0.2:  # the same name twice
        text = text[:-1] + b"," + text[1:]
        how.append("all names twice")
    count = len(text)
    if draw.random() < 0.2:
        count = wrap(draw.choice([*absurd.NUMBERS, 100_000_000, 100_000_001, count + 1]), "<Q")
        how.append(f"header of {count} bytes")
    path.write_bytes(struct.pack("<Q", count) + text + rest)
    return "safetensors " + "; ".join(how)


def forge_index(case):
    draw, model = case.random, case.path("model")
    data = (model / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])
    (model / "model.safetensors").rename(model / "part-1.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": {
        name: "part-1.safetensors" for name in header if name != "__metadata__"}}
    how = [absurd.change(draw, index) for _ in range(draw.randint(0, 2))]
    if draw.random() < 0.6 and isinstance(index.get("weight_map"), dict) and index["weight_map"]:
        name = draw.choice(list(index["weight_map"]))
        index["weight_map"][name] = draw.choice([
            "../victim/precious", str(case.path("victim") / "precious"), "", ".", "..", "sub/x",
            "config.json", "model.safetensors.index.json", "/dev/zero", "/dev/stdin", "a" * 300])
        how.append(f"{name} in {index['weight_map'][name][:40]!r}")
    (model / "model.safetensors.index.json").write_bytes(
        json.dumps(index).encode("utf-8", "surrogatepass"))
    return "index " + "; ".join(how)


def forge_json(case, name):
    path = case.path("model") / name
    document = json.loads(path.read_text())
    how = [absurd.change(case.random, document) for _ in range(case.random.choice([1, 1, 2, 3]))]
    path.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))
    return f"{name} " + "; ".join(how)


def use_run(case):
    lab, run, out = case.lab, case.path("half"), case.path("out")
    train = lab.train(run, laboratory.PAGED, case.path("model"), case.path("text.txt"))
    words = case.random.choice([
        train + ["--resume"], train + ["--resume"], lab.evaluate(run), lab.generate(run),
        ["export", "--checkpoint", run, "--model", case.path("model"), "--out", out],
        ["ckpt", "verify", run], ["ckpt", "ls", run], ["ckpt", "ls", run, "--json"]])
    case.what += f", then {' '.join(words[:2]) if words[0] == 'ckpt' else words[0]}"
    case.run(words, CODES)


def use_model(case):
    model, draw = case.path("model"), case.random
    room = ["--memory.device=64MiB", "--memory.host=64MiB"]
    words = draw.choice([
        ["generate", "--model.path", model, *laboratory.PROMPT, *room,
         f"--memory.disk={case.path('scratch')}"],
        case.lab.train(case.path("run"), {"train.steps": 1, "memory.device": "64MiB",
                                          "memory.host": "64MiB"}, model),
        ["plan", "--model.path", model, "--data.sequence_len=64", "--train.tokens_per_step=256",
             "--train.micro_batch_tokens=256"],
        ["init", "--config", model / "config.json", "--out", case.path("out")],
        ["data", "inspect", "--model.path", model, "--data.path", case.path("text.txt"),
         "--data.sequence_len=64"],
        ["upcycle", "--from", model, "--experts", 2, "--top-k", 1, "--out", case.path("out")]])
    case.what += f", then {words[0]}"
    case.run(words)


OF_RUN = [forge_manifest] * 5 + [forge_pages] * 2 + [forge_store] * 3 + [forge_tokens] * 2
OF_MODEL = [forge_weights] * 3 + [forge_index] * 2 + [
    lambda case: forge_json(case, "config.json")] * 4 + [
    lambda case: forge_json(case, "tokenizer.json")] * 2 + [
    lambda case: forge_json(case, "tokenizer_config.json")]


def attack(case):
    case.copy("half", "model", "text.txt")
    case.path("victim").mkdir()
    precious = case.path("victim") / "precious"
    for path in (precious, case.path("victim") / "precious.0"):
        path.write_bytes(PRECIOUS)
    of_run = case.random.random() < 0.55
    if of_run and not checksums.can_xxh3():
        case.skipped = "libxxhash is not installed"
        return
    case.what = case.random.choice(OF_RUN if of_run else OF_MODEL)(case)
    (use_run if of_run else use_model)(case)
    left = {p.name: p.read_bytes() for p in case.path("victim").iterdir() if p.is_file()}
    case.expect(left == {"precious": PRECIOUS, "precious.0": PRECIOUS},
                "files outside as they were", sorted(left))
    shutil.rmtree(case.path("out"), ignore_errors=True)
