"""Hostile inputs: texts and rows, packed files, run files, command lines, machine sheets, names and
prompts as nobody means them. Each ends in bounded time and memory with a code of the table, and
nothing that it prints commands a terminal."""

import gzip
import os
import pty
import re
import struct

import absurd
import hostile_texts
import program

DEFAULT, QUICK, HISTORIC = 560, 24, 6044

ROOM = ["--memory.device=64MiB", "--memory.host=64MiB"]


def argument(text):
    """What the kernel can hand over."""
    return text.replace("\0", "").encode("utf-8", "surrogatepass")


def read_data(case, path):
    """Uses a file of text: looks at it, trains on it or evaluates on it."""
    draw, lab = case.random, case.lab
    model, roll = lab.path("model"), draw.random()
    given = [f"--model.path={model}", f"--data.sequence_len={draw.choice([2, 16, 64, 1024])}"]
    options = [draw.choice([[], [], ["--data.kind=messages"], ["--data.kind=text"],
                            ["--data.chat_template=chatml"], ["--data.train_on=all"],
                            ["--data.too_long=error"], ["--data.fields=text=content"]])]
    given += options[0]
    if roll < 0.5:
        words = ["data", "inspect", *given, f"--data.path={path}",
                 *draw.choice([[], ["--json"], ["--rows", 50]])]
    elif roll < 0.8:
        words = [*lab.train(case.path("run"), {"train.steps": 1}, text=path), *options[0]]
    else:
        words = ["eval", *given, f"--data.eval_path={path}", *ROOM,
                 f"--memory.disk={case.path('scratch')}"]
    case.what += f", then {words[0]}"
    case.run(words)


def attack_text(case):
    path = case.path("text.txt")
    path.write_bytes(hostile_texts.text(case.random))
    case.what = f"a text of {path.stat().st_size} bytes"
    read_data(case, path)


def attack_rows(case):
    path = case.path(case.random.choice(["rows.jsonl", "rows.jsonl", "rows.json"]))
    path.write_bytes(hostile_texts.rows(case.random, path.suffix == ".json"))
    case.what = f"{path.name} of {path.stat().st_size} bytes"
    read_data(case, path)


def zst_bomb(count):
    """A frame without its length, of blocks that repeat one byte 128 KiB long each."""
    block = struct.pack("<I", (131072 << 3) | 2)[:3]
    last = struct.pack("<I", (131072 << 3) | 3)[:3]
    return b"\x28\xb5\x2f\xfd\x00\x58" + (block + b"a") * (count - 1) + last + b"a"


def attack_packed(case):
    draw = case.random
    kind, inner = draw.choice(["gz", "zst"]), draw.choice(["txt", "jsonl", "json"])
    text = hostile_texts.text(draw)
    if kind == "gz":
        data = draw.choice([gzip.compress(text), gzip.compress(bytes(24 << 20)),
                            gzip.compress(text) * 3, gzip.compress(gzip.compress(text))])
    else:
        data = draw.choice([zst_bomb(200), zst_bomb(3) * 5, zst_bomb(2),
                            b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + zst_bomb(1),
                            b"\x28\xb5\x2f\xfd\xc0\xff" + b"\xff" * 8 + zst_bomb(1)[5:],
                            b"\x28\xb5\x2f\xfd\x00\xff" + zst_bomb(1)[6:]])  # a window of terabytes
    data, how = bytearray(data), draw.choice(["whole", "cut", "flipped", "with more behind"])
    if how == "cut":
        del data[draw.randrange(len(data)):]
    elif how == "flipped":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how == "with more behind":
        data += draw.choice([draw.randbytes(50), bytes(50), bytes(data)])
    path = case.path(f"text.{inner}.{kind}")
    path.write_bytes(data)
    case.what = f"{path.name} of {len(data)} bytes, {how}"
    read_data(case, path)


def attack_run_file(case):
    draw, lab = case.random, case.lab
    text = (lab.path("whole") / "resolved.toml").read_text()
    text = re.sub(r"output_dir = .*", f'output_dir = "{case.path("run")}"', text)
    text = re.sub(r"(?m)^steps = .*", "steps = 1", text, count=1)
    data, how = hostile_texts.toml(draw, text)
    path = case.path("run.toml")
    path.write_bytes(data)
    command = draw.choice(["train", "plan", "plan", "data inspect", "eval"])
    case.what = f"run file, {how}, for {command}"
    safe = ["--train.steps=1", f"--train.output_dir={case.path('run')}"]
    case.run([*command.split(), path, *(safe if command == "train" else [])])


COMMANDS = ["train", "eval", "generate", "export", "ckpt", "ckpt ls", "ckpt verify", "init",
            "upcycle", "plan", "data", "data inspect", "doctor", "bench", "--version", "--help", ""]
FLAGS = ["--model.path", "--data.path", "--data.sequence_len", "--train.steps", "--train.threads",
         "--train.tokens_per_step", "--train.micro_batch_tokens", "--train.save_steps",
         "--optim.learning_rate", "--optim.beta1", "--optim.clip", "--memory.device",
         "--memory.host", "--memory.disk", "--memory.pin", "--plan.group_blocks", "--checkpoint",
         "--out", "--config", "--seed", "--prompt", "--temperature", "--top_p", "--max_new_tokens",
         "--step", "--dtype", "--experts", "--top-k", "--noise", "--machine", "--cluster", "--html",
         "--tokens", "--rows", "--json", "--resume", "--quiet", "-q", "--sample.prompts",
         "--trace-steps", "--chat", "--search", "--dir", "--model", "--tokenizer", "--from",
         "--trian.steps", "--train.step", "--Train.steps", "--model", "--", "-", "---", "-x",
         "--=", "--train.steps=", "=1"]
VALUES = ["NaN", "nan", "inf", "-inf", "1e999", "-1", "0", "1", "99999999999999999999", "0x10",
          "1e3", "1.5", "2**3", "", " ", "1GiB", "-1GiB", "1e30GiB", "16EiB", "40%", "400%", "-4%",
          "auto", "off", "true", "1:2", "2:1", "0:0", "-1:5", "1:99999999999999999999",
          ":",
          "/proc/version", "/proc/self/maps", "/proc/x", ".", "..", "~", "$HOME", "`id`",
          "a" * 5000]


def attack_command_line(case):
    draw = case.random
    words = draw.choice(COMMANDS).split()
    if words[:1] == ["bench"]:
        words = ["bench", draw.choice(["adamm", "--", "disk2", "--rounds", "-1"])]
    for _ in range(draw.randint(0, 4)):
        flag, value = draw.choice(FLAGS), draw.choice([*VALUES, draw.choice(absurd.TEXTS)])
        words += draw.choice([[flag], [f"{flag}={value}"], [flag, value], [value]])
    if draw.random() < 0.3:  # a sound beginning, so that values are looked at
        words[:1] = map(str, case.lab.train(case.path("run"), {"train.steps": 1}))
    words = [argument(word) for word in words]
    case.what = " ".join(map(repr, words))[:300]
    outcome = case.start(words).wait()
    case.judge(outcome, heard=outcome.code != 2)
    if outcome.code == 2:
        case.expect(outcome.err.count(b"\n") <= 3, "a line for a wrong command line",
                    f"{outcome.err.count(bytes([10]))} lines")


def attack_sheet(case):
    draw = case.random
    of = draw.choice(sorted((case.lab.path("sheets")).iterdir()))
    data, how = hostile_texts.toml(draw, of.read_text())
    path = case.path("sheet.toml")
    path.write_bytes(data)
    kind = "--cluster" if "cluster" in of.name else "--machine"
    case.what = f"{of.name}, {how}"
    if kind == "--cluster":
        for sheet in case.lab.path("sheets").iterdir():
            (case.path(sheet.name)).write_bytes(sheet.read_bytes())
    words = ["plan", "--model.path", case.lab.path("model"), kind, path,
             "--data.sequence_len=64", "--train.tokens_per_step=256",
             "--train.micro_batch_tokens=256",
             *draw.choice([[], [], ["--search"], ["--json"], ["--tokens", 10**15],
                           ["--html", case.path("page.html")]])]
    case.run(words)


def attack_names(case):
    """Files and folders with names that were made to be printed."""
    draw, lab = case.random, case.lab
    odd = draw.choice([b"\x1b[2Jx", b"\x9b31m", b"\xff\xfe", "\u202ex".encode(), b"a\nb", b"a\rb",
                       "\x85".encode(), b"\x07", b"%n%s", b"a" * 250, b" ", b"-rf",
                       "\u2028".encode(), "\u00e9".encode(), b'"', b"'", b"\\", b"a b", b"#"])
    folder = os.fsencode(case.folder) + b"/" + odd
    os.mkdir(folder)
    text = folder + draw.choice([b"/t.txt", b"/t" + odd[:100] + b".jsonl"])
    with open(text, "wb") as file:
        file.write(lab.path("text.txt").read_bytes() if text.endswith(b".txt") else b'{"a": 1}\n')
    missing = [b"--model.path=" + folder] if draw.random() < 0.3 else []
    words = draw.choice([
        [*map(os.fsencode, map(str, lab.train(case.path("run"), {"train.steps": 1})))]
        + [b"--data.path=" + text],
        [*map(os.fsencode, map(str, lab.train(case.path("run"), {"train.steps": 1})))]
        + [b"--train.output_dir=" + folder + b"/run"],
        [b"data", b"inspect", b"--data.path", text, b"--model.path", os.fsencode(
            lab.path("model"))],
        [b"init", b"--config", text, b"--out", folder],
        [b"init", b"--config", os.fsencode(lab.path("config.json")), b"--out", folder + b"/m"],
        [b"ckpt", b"ls", folder], [b"export", b"--checkpoint", folder, b"--out", folder + b"/o"],
        [b"doctor", b"--dir", folder], [b"plan", b"--model.path", folder],
        [b"generate", b"--model.path", folder, b"--prompt", odd], [odd], [b"train", folder]])
    case.what = f"name {odd[:20]!r} for {words[0]!r}"
    outcome = case.start([*words, *missing]).wait()
    case.judge(outcome, heard=outcome.code != 2)


def run_on_terminal(case, words):
    """Output and errors of a run on a terminal, all of it."""
    ours, theirs = pty.openpty()
    running = case.start(words, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = bytearray()
    while len(shown) < program.KEPT_BYTES:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    outcome = running.wait()
    os.close(ours)
    return outcome, bytes(shown)


def attack_terminal(case):
    """What a model and a text say is shown as text; colours and the status line are our own."""
    draw, lab = case.random, case.lab
    prompt = draw.choice(absurd.TEXTS[:20]).replace("\0", "")[:2000] or "x"
    path = case.path("text.txt")
    path.write_bytes(hostile_texts.text(draw))
    words = draw.choice([
        ["generate", "--model.path", lab.path("model"), "--prompt", argument(prompt),
         "--max_new_tokens", 24, "--temperature", draw.choice([1, 3]), "--seed", draw.randrange(99),
         *ROOM, f"--memory.disk={case.path('scratch')}"],
        ["data", "inspect", f"--model.path={lab.path('model')}", f"--data.path={path}",
         "--data.sequence_len=64", "--rows", 9],
        [*lab.train(case.path("run"), {"train.steps": 2, "sample.max_new_tokens": 9}),
         "--sample.prompts", argument(prompt)]])
    case.what = f"{words[0]} on a terminal"
    outcome, shown = run_on_terminal(case, words)
    case.judge(outcome, heard=False)
    own = re.sub(rb"\x1b\[[0-9;]*[mK]|\r", b"", shown)
    unsafe = program.unsafe_bytes(own)
    case.expect(unsafe is None, "a terminal that is not commanded", unsafe)


ATTACKS = [attack_text] * 3 + [attack_rows] * 5 + [attack_packed] * 2 + [attack_run_file] * 4 + [
    attack_command_line] * 6 + [attack_sheet] * 3 + [attack_names] * 2 + [attack_terminal]


def attack(case):
    ATTACKS[case.index % len(ATTACKS)](case)
