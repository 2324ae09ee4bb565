"""What every attack starts from: a tiny model, a text, an unbroken run with its hash, and a case
that runs the program and keeps what it did wrong."""

import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct

import program

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "router_aux_loss_coef": 0.01,
    "max_position_embeddings": 256, "mlp_only_layers": [], "decoder_sparse_step": 1,
    "attention_bias": False}
SHEETS = pathlib.Path(__file__).resolve().parents[2] / "configs"
STEPS, EARLY_STEPS, HALF_STEPS = 6, 2, 4
# A run's results do not depend on these, so each of them must end in the same bytes.
PAGED = {"memory.device": "1500KiB", "memory.host": "1700KiB"}
RESIDENT = {"memory.device": "16MiB", "memory.host": "16MiB"}
# These do: each expert is cut in two, and its outputs are another sum.
PARTS = {"parallel.sharing": "model", "parallel.hidden_shares": ["1", "1"]}
PROMPT = ["--prompt", "the quick", "--max_new_tokens", "6", "-q"]


def sha256_of_folder(folder):
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(folder).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def metrics_of(run):
    """The objects of a run's metrics.jsonl; a line that is none is left out."""
    objects = []
    try:
        lines = (pathlib.Path(run) / "metrics.jsonl").read_bytes().split(b"\n")
    except OSError:
        return objects
    for line in lines:
        try:
            objects.append(json.loads(line))
        except ValueError:
            continue
    return [o for o in objects if isinstance(o, dict)]


def losses_of(run):
    return [(o["step"], o["loss"], o["grad_norm"]) for o in metrics_of(run) if o["type"] == "step"]


def files_of(run):
    """Names in a run's folder, the store's without its random part."""
    names = (os.path.relpath(p, run) for p in glob.glob(f"{run}/**", recursive=True)
             if not os.path.isdir(p))
    return sorted(n[:len("store/pages-")] if n.startswith("store/pages-") else n for n in names)


def skew_routers(model):
    """Makes two experts of each layer favoured, at home on the first of two ranks, or of four:
    their rows of the router are 16 times as large, so that half of the tokens choose them."""
    path = pathlib.Path(model) / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    for name, tensor in json.loads(data[8:8 + length]).items():
        if not name.endswith(".mlp.gate.weight"):
            continue
        assert tensor["dtype"] == "BF16"
        begin = 8 + length + tensor["data_offsets"][0]
        for expert in (0, 4):
            first = begin + 2 * expert * tensor["shape"][1]
            for at in range(first, first + 2 * tensor["shape"][1], 2):
                bits = struct.unpack_from("<H", data, at)[0]
                exponent = (bits >> 7 & 255) + 4
                if 4 < exponent < 255:
                    struct.pack_into("<H", data, at, bits & 0x807f | exponent << 7)
    path.write_bytes(data)


@dataclasses.dataclass
class Reference:
    """What unbroken runs gave."""
    exported: str = ""           # SHA-256 of the exported folder after STEPS
    half_exported: str = ""      # after HALF_STEPS
    losses: list = dataclasses.field(default_factory=list)
    skewed_exported: str = ""    # as exported and losses, of the model with skewed routers
    skewed_losses: list = dataclasses.field(default_factory=list)
    parted_exported: str = ""    # of runs with PARTS
    parted_losses: list = dataclasses.field(default_factory=list)
    files: list = dataclasses.field(default_factory=list)
    evaluated: bytes = b""       # of the run after HALF_STEPS
    generated: bytes = b""
    run_s: float = 0.0


class Laboratory:
    """Folders that no case changes: model, text.txt, early and half (one run after EARLY_STEPS and
    HALF_STEPS), tuned (the export of the whole run), skewed (the model, whose routers favour
    experts)."""

    def __init__(self, folder, pagoda, timeout_s, default_times=False):
        self.folder = pathlib.Path(folder)
        self.default_times = default_times  # of the heartbeat and the deadline of ranks
        self.pagoda = os.path.abspath(pagoda)
        self.timeout_s = timeout_s
        self.reference = Reference()

    def path(self, name):
        return self.folder / name

    def train(self, run, flags=None, model=None, text=None):
        given = {"model.path": model or self.path("model"), "data.path": text or self.path(
            "text.txt"), "train.output_dir": run, **RESIDENT, **(flags or {})}
        fixed = {"data.sequence_len": 64, "train.steps": STEPS, "train.tokens_per_step": 256,
                 "train.micro_batch_tokens": 128, "train.save_steps": 2, "train.threads": 1,
                 "train.devices": "cpu", "optim.schedule": "constant", "optim.learning_rate": 3e-3,
                 "train.log_steps": 1}
        return ["train", *(f"--{key}={one}" for key, value in (fixed | given).items()
                           for one in (value if isinstance(value, list) else [value]))]

    def prepare(self):
        self.folder.joinpath("config.json").write_text(json.dumps(CONFIG))
        text = "".join(f"{i} the quick brown fox jumps over {i * 7 % 13} lazy dogs\n"
                       for i in range(200))
        self.folder.joinpath("text.txt").write_text(text)
        shutil.copytree(SHEETS / "machines", self.path("sheets"))
        for cluster in (SHEETS / "clusters").iterdir():
            text = cluster.read_text().replace("../machines/", "")
            (self.path("sheets") / f"cluster-{cluster.name}").write_text(text)
        must = self._must_run
        must("init", "--config", self.path("config.json"), "--seed", 1, "--out",
             self.path("model"))
        whole, half = self.path("whole"), self.path("half")
        self.reference.run_s = must(*self.train(whole)).seconds
        must("export", "--checkpoint", whole, "--out", self.path("tuned"))
        shutil.copytree(self.path("model"), self.path("skewed"))
        skew_routers(self.path("skewed"))
        must(*self.train(self.path("skewed-whole"), model=self.path("skewed")))
        must("export", "--checkpoint", self.path("skewed-whole"), "--out",
             self.path("skewed-tuned"))
        must(*self.train(self.path("parted-whole"), PARTS))
        must("export", "--checkpoint", self.path("parted-whole"), "--out",
             self.path("parted-tuned"))
        must(*self.train(half, {"train.steps": EARLY_STEPS}))
        shutil.copytree(half, self.path("early"))
        must(*self.train(half, {"train.steps": HALF_STEPS}), "--resume")
        must("export", "--checkpoint", half, "--out", self.path("half-tuned"))
        reference = self.reference
        reference.exported = sha256_of_folder(self.path("tuned"))
        reference.half_exported = sha256_of_folder(self.path("half-tuned"))
        reference.skewed_exported = sha256_of_folder(self.path("skewed-tuned"))
        reference.skewed_losses = losses_of(self.path("skewed-whole"))
        reference.parted_exported = sha256_of_folder(self.path("parted-tuned"))
        reference.parted_losses = losses_of(self.path("parted-whole"))
        reference.losses, reference.files = losses_of(whole), files_of(whole)
        reference.evaluated = must(*self.evaluate(half)).out
        reference.generated = must(*self.generate(half)).out

    def evaluate(self, run, text=None):
        return ["eval", "--checkpoint", run, "--data.eval_path", text or self.path("text.txt"),
                "--memory.device=8MiB", "--memory.host=8MiB", "--json"]

    def generate(self, run):
        return ["generate", "--checkpoint", run, *PROMPT, "--memory.device=8MiB",
                "--memory.host=8MiB"]

    def _must_run(self, *words):
        outcome = program.Running([self.pagoda, *map(str, words)],
                                  program.Limits(timeout_s=600), self.folder).wait()
        if outcome.code != 0:
            raise SystemExit(f"attack: {' '.join(map(str, words))}: {outcome.ended()}")
        return outcome


class Case:
    """One attack: a folder of its own, the draws of its seed, and what it found."""

    def __init__(self, lab, name, seed, index):
        self.lab, self.index = lab, index
        self.id = f"{name}-{seed}-{index}"
        self.random = random.Random(self.id)
        self.folder = lab.path("cases") / self.id
        self.what = ""            # what was done, for people
        self.failures = []        # (expected, got)
        self.skipped = ""         # why this machine cannot do it
        self.folder.mkdir(parents=True)

    def path(self, name):
        return self.folder / name

    def copy(self, *names):
        """Copies of what the laboratory holds, in the case's folder."""
        for name in names:
            of = self.lab.path(name)
            (shutil.copytree if of.is_dir() else shutil.copy2)(of, self.path(name))

    def fail(self, expected, got):
        self.failures.append((expected, got))

    def expect(self, true, expected, got):
        if not true:
            self.fail(expected, got)
        return bool(true)

    def limits(self, **changed):
        return program.Limits(**{"timeout_s": self.lab.timeout_s, **changed})

    def start(self, words, limits=None, **given):
        given.setdefault("folder", self.folder)
        words = [w if isinstance(w, bytes) else str(w) for w in words]
        return program.Running([self.lab.pagoda, *words], limits or self.limits(), **given)

    def judge(self, outcome, codes=program.DOCUMENTED, limits=None, heard=True):
        for expected, got in program.broken_rules(outcome, codes, limits or self.limits(), heard):
            self.fail(f"{outcome.command}: {expected}", got)
        return outcome

    def run(self, words, codes=program.DOCUMENTED, limits=None, heard=True, **given):
        """Runs the program on `words` and holds it to the rules of every run."""
        limits = limits or self.limits()
        return self.judge(self.start(words, limits, **given).wait(), codes, limits, heard)

    def expect_run(self, run, steps_lost=False, may_lie=()):
        """Expects a finished run to equal the unbroken one: exported bytes, losses, files.
        `steps_lost`: the metrics were damaged on purpose. `may_lie`: files besides."""
        out = self.path("exported")
        shutil.rmtree(out, ignore_errors=True)
        made = self.run(["export", "--checkpoint", run, "--model", self.lab.path("model"),
                         "--out", out])
        if not self.expect(made.code == 0, "an export of the finished run", made.ended()):
            return
        reference = self.lab.reference
        self.expect(sha256_of_folder(out) == reference.exported,
                    "the exported bytes of an unbroken run", "others")
        if not steps_lost:
            losses = losses_of(run)
            self.expect(losses == reference.losses, "every step's loss of an unbroken run",
                        f"{len(losses)} steps, first other {first_other(losses, reference)}")
            names = [name for name in files_of(run) if name not in may_lie]
            self.expect(names == reference.files, "the files of an unbroken run",
                        f"besides {sorted(set(names) ^ set(reference.files))}")

    def end(self, keep):
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def first_other(losses, reference):
    for got, expected in zip(losses, reference.losses):
        if got != expected:
            return f"{got}, not {expected}"
    return "none"
