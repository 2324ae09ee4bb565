"""Corruption: bytes flipped, zeroed, cut, added, swapped or replaced by older ones in every file
that pagoda keeps. It is refused in one line that names the file, or what comes out is what would
have come out without."""

import os
import shutil

import laboratory

DEFAULT, QUICK, HISTORIC = 130, 6, 632

BLOCK = 4096


def flip_bit(draw, data, stale):
    at = draw.randrange(len(data))
    data[at] ^= 1 << draw.randrange(8)
    return f"bit flipped in byte {at}"


def random_bytes(draw, data, stale):
    at, count = draw.randrange(len(data)), draw.choice([1, 8, 100, BLOCK])
    data[at:at + count] = draw.randbytes(min(count, len(data) - at))
    return f"{count} random bytes at {at}"


def zero_range(draw, data, stale):
    at, count = draw.randrange(len(data)), draw.choice([1, 64, 512, BLOCK, 1 << 16])
    end = min(len(data), at + count)
    data[at:end] = bytes(end - at)
    return f"{end - at} bytes from {at} on made zero"


def cut(draw, data, stale):
    size = draw.choice([0, 1, len(data) - 1, len(data) // 2, draw.randrange(len(data))])
    del data[size:]
    return f"cut to {size} bytes"


def extend(draw, data, stale):
    count = draw.choice([1, 20, BLOCK])
    data += draw.choice([bytes(count), draw.randbytes(count), bytes(data[:count])])
    return f"{count} bytes added"


def swap_blocks(draw, data, stale):
    blocks = max(1, len(data) // BLOCK)
    a, b = draw.randrange(blocks) * BLOCK, draw.randrange(blocks) * BLOCK
    data[a:a + BLOCK], data[b:b + BLOCK] = data[b:b + BLOCK], data[a:a + BLOCK]
    return f"blocks at {a} and {b} swapped"


def copy_range(draw, data, stale):
    """A misdirected write."""
    count = draw.choice([512, BLOCK, 4 * BLOCK])
    a, b = (draw.randrange(max(1, len(data) // 512)) * 512 for _ in range(2))
    end = min(len(data), b + count)
    data[b:end] = data[a:a + end - b]
    return f"{count} bytes from {a} written to {b}"


def older_range(draw, data, stale):
    """A lost write."""
    at, count = draw.randrange(len(data)) // 512 * 512, draw.choice([512, BLOCK, 64 * BLOCK])
    data[at:at + count] = stale[at:at + count]
    return f"{count} older bytes at {at}"


def older_file(draw, data, stale):
    data[:] = stale
    return "the file of an earlier checkpoint"


DAMAGES = [flip_bit, flip_bit, random_bytes, zero_range, cut, extend, swap_blocks, copy_range,
           older_range, older_file]

# Where a case's files lie, and how often they are chosen.
TARGETS = ["store"] * 6 + ["MANIFEST"] * 3 + ["pages.bin"] * 3 + ["tokens.bin"] * 3 + [
    "metrics.jsonl", "resolved.toml", "LATEST", "text.txt", "text.txt", "model.safetensors",
    "config.json", "tokenizer.json", "tokenizer_config.json"]
OF_MODEL = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")


def file_of(root, target, of_run="half"):
    run = root / of_run
    if target == "store":
        return next((run / "store").iterdir())
    if target in ("MANIFEST", "pages.bin"):
        return next((run / "checkpoints").glob("step-*")) / target
    if target == "LATEST":
        return run / "checkpoints" / target
    if target == "text.txt":
        return root / target
    return (root / "model" if target in OF_MODEL else run) / target


def damage(case, target):
    """Damages the target in the case's copies; says how."""
    path, draw = file_of(case.folder, target), case.random
    if draw.random() < 0.06:
        path.unlink()
        return path, "removed"
    data = bytearray(path.read_bytes())
    old = file_of(case.lab.folder, target, "early")
    stale = old.read_bytes() if old.exists() else bytes(data)
    how = draw.choice(DAMAGES)(draw, data, stale)
    path.write_bytes(data)
    return path, how


def named(outcome, path):
    """Whether a refusal says which file is meant."""
    other = {"MANIFEST": path.parent.name, "pages.bin": path.parent.name,
             "text.txt": "training data", "config.json": "model", "tokenizer.json": "tokenizer",
             "tokenizer_config.json": "tokenizer"}
    return any(name in outcome.text() for name in (path.name, other.get(path.name, path.name)))


def resume(case, target, path, whole):
    lab, run = case.lab, case.path("half")
    flags = case.random.choice([laboratory.PAGED, laboratory.RESIDENT])
    words = lab.train(run, flags, case.path("model"), case.path("text.txt")) + ["--resume"]
    outcome = case.run(words)
    if outcome.code != 0:
        case.expect(named(outcome, path), f"a line that names {path.name}", outcome.ended())
        path.write_bytes(whole)
        outcome = case.run(words)
        if not case.expect(outcome.code == 0, "the run to go on when what was damaged is put back",
                           outcome.ended()):
            return
    if target == "metrics.jsonl":
        losses = laboratory.losses_of(run)
        rest = case.lab.reference.losses[laboratory.HALF_STEPS:]
        case.expect(losses[-len(rest):] == rest, "the losses of an unbroken run", losses)
    case.expect_run(run, steps_lost=target == "metrics.jsonl")


def verify_and_resume(case, target, path, whole):
    outcome = case.run(["ckpt", "verify", case.path("half")])
    lists = case.run(["ckpt", "ls", case.path("half")])
    case.expect(outcome.code == 0 or named(outcome, path), f"a line that names {path.name}",
                outcome.ended())
    case.expect(lists.code in (0, 81), "a list of checkpoints, or none of them", lists.ended())
    if target in ("store", "MANIFEST", "pages.bin"):
        found = outcome.code == 0
        out = case.path("verified")
        made = case.run(["export", "--checkpoint", case.path("half"), "--out", out])
        case.expect((made.code == 0) >= found, "an export of what was verified", made.ended())
        shutil.rmtree(out, ignore_errors=True)
    resume(case, target, path, whole)


def answer(case, target, path, words, expected):
    outcome = case.run(words)
    if outcome.code == 0:
        case.expect(outcome.out == expected, "the answer without damage", outcome.out[:80])
    else:
        case.expect(named(outcome, path), f"a line that names {path.name}", outcome.ended())


def export(case, target, path):
    out = case.path("out")
    outcome = case.run(["export", "--checkpoint", case.path("half"), "--model", case.path("model"),
                        "--out", out])
    if outcome.code == 0 and case.expect(out.is_dir(), "a folder of an export", "none"):
        case.expect(laboratory.sha256_of_folder(out) == case.lab.reference.half_exported,
                    "the bytes of an export without damage", "others")
    if outcome.code == 0:
        return
    case.expect(not out.exists(), "no folder of a failed export", os.listdir(case.folder))
    case.expect(named(outcome, path), f"a line that names {path.name}", outcome.ended())


def use_run(case, target, path, whole):
    lab, run = case.lab, case.path("half")
    choice = case.random.choice(["resume", "verify", "export", "eval", "generate"])
    case.what += f", then {choice}"
    if choice == "resume":
        resume(case, target, path, whole)
    elif choice == "verify":
        verify_and_resume(case, target, path, whole)
    elif choice == "export":
        export(case, target, path)
    elif choice == "eval":
        answer(case, target, path, lab.evaluate(run, lab.path("text.txt")),
               lab.reference.evaluated)
    else:
        answer(case, target, path, lab.generate(run), lab.reference.generated)


def use_model(case):
    """Nothing guards the bytes of a model folder, so only how it ends is looked at."""
    model = case.path("model")
    choice = case.random.choice(["generate", "train"])
    case.what += f", then a new {choice}"
    if choice == "generate":
        case.run(["generate", "--model.path", model, *laboratory.PROMPT, "--memory.device=64MiB",
                  "--memory.host=64MiB", f"--memory.disk={case.path('scratch')}"])
    else:
        flags = {"train.steps": 1, "memory.device": "64MiB", "memory.host": "64MiB"}
        case.run(case.lab.train(case.path("run"), flags, model))


def attack(case):
    target = case.random.choice(TARGETS)
    case.copy("half", "model", "text.txt")
    whole = file_of(case.folder, target).read_bytes()
    path, how = damage(case, target)
    case.what = f"{target} {how}"
    if target in OF_MODEL and case.random.random() < 0.7:
        use_model(case)
    elif target == "text.txt" or target in OF_MODEL:
        case.what += ", then resume"
        resume(case, target, path, whole)
    else:
        use_run(case, target, path, whole)
