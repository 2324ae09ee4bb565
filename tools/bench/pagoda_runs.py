"""Runs of pagoda for a benchmark: models with random weights, runs that take turns, and what their
plans and metrics say. Standard library only."""

import json
import math
import os
import random
import re
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from launcher import under_mpirun

WARM_STEPS = 3  # pages arrive in the first, the first updates run in the second, and what comes of
# both is known from the third on: from then on steps move as much as each other
LAYERS = 4
MOST_ROUNDS = 4  # times the rounds of a scale, where effects are looked for
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SHORT = ["--bytes", "16MiB"]  # what a measurement of a machine moves and writes
REFUSED = {71, 72, 73}
NO_TEXT = "no-such-text.txt"  # a run that would go on ends here, before it writes anything


@dataclass
class Shape:
    """Settings of all models and runs, unless flags say otherwise."""

    hidden: int
    ffn: int
    tokens: int  # per step
    microbatch: int
    steps: int
    rounds: int
    tiny: bool = False  # figures say nothing


def fail(what):
    raise SystemExit(f"bench: {what}")


def budget(size_bytes):
    unit = "MiB" if size_bytes >= 64 * 2**20 else "KiB"
    return f"{int(size_bytes) // UNITS[unit] + 1}{unit}"


def parse_size(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


@dataclass
class Plan:
    """What `pagoda train` prints before it begins."""

    accepted: bool  # it would begin
    parameters: float
    least_device: float  # bytes, as all that follow
    least_host: float
    on_device: float  # of memory.device that is used
    pages_on_device: float  # room for `pages`; the rest of on_device is the step's own
    guests: float  # room for weights of other processes' experts, in that rest
    guest_layers: int  # whose weights have room there; 0: they come when they are due
    disk: float
    pages: float  # weights, state, gradients and activations
    weights: float
    state: float
    resident: bool  # all on the device
    needs_disk: bool

    def lowest_tier(self):
        return "device" if self.resident else "disk" if self.needs_disk else "host"

    @staticmethod
    def parse(code, text):
        def size(pattern):
            found = re.search(pattern + r" ([\d.]+ (?:B|KiB|MiB|GiB))", text, re.MULTILINE)
            if found is None:
                fail(f"the plan does not say \"{pattern}\":\n{text}")
            return parse_size(found.group(1))

        kinds = ("weights", "state", "gradients", "activations")
        held = {kind: size(rf"^  {kind} +") for kind in kinds}
        guests = re.search(r"^  guests +([\d.]+ \w+) on the devices.*?(?: in (\d+) layers)?$", text,
                           re.MULTILINE)
        return Plan(accepted=code not in REFUSED,
                    parameters=float(re.search(r"^model: ([\d.]+) M", text).group(1)) * 1e6,
                    least_device=size("smallest memory.device that would do:"),
                    least_host=size("smallest memory.host that would do:"),
                    on_device=size("^device:"), disk=size("^disk: +"),
                    pages_on_device=sum(size(rf"^  {kind} +\S+ \S+ in all: room for")
                                        for kind in kinds),
                    guests=parse_size(guests.group(1)) if guests else 0.0,
                    guest_layers=int(guests.group(2) or 0) if guests else 0,
                    pages=sum(held.values()), weights=held["weights"], state=held["state"],
                    resident="everything fits on the device" in text,
                    needs_disk="the rest on disk" in text)


class OtherWork:
    """Cores that anything but our own processes had, on average since this was made."""

    def __init__(self):
        self.began, self.busy = time.monotonic(), self.busy_s()

    @staticmethod
    def busy_s():
        """Busy time of all cores, with stolen time, without that of our finished processes."""
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
        idle = ticks[3] + ticks[4]
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - ours.ru_utime - ours.ru_stime

    def cores(self):
        return max(0.0, (self.busy_s() - self.busy) / (time.monotonic() - self.began))


class Run:
    """The steps of one run after the first ones. other_cores: OtherWork during the run."""

    def __init__(self, lines, other_cores):
        self.other_cores = other_cores
        records = [json.loads(line) for line in lines]
        every_step = [r for r in records if r["type"] == "step"]
        self.moves = [r for r in records if r["type"] == "move"]
        self.losses = [r["loss"] for r in every_step]
        self.steps = every_step[WARM_STEPS:]
        if not self.steps:
            fail("a run without steps to measure")

    def median(self, field):
        return statistics.median(r[field] for r in self.steps)

    def total(self, field):
        return sum(r[field] for r in self.steps)

    def imbalance(self):
        """Rows that padding makes the experts compute, over those they have."""
        return statistics.mean(x for r in self.steps for x in r["experts"]["max_over_mean"])


def median_interval(values):
    """(least, most) that the true median lies between in at least 19 of 20 cases, whatever the
    distribution: each value is above it with the chance of a coin, so that the binomial
    distribution says how many of the least and the most may be left out. None of fewer than 6
    values, which say nothing with that certainty."""
    n, tail, left_out = len(values), 0.0, 0
    while True:
        tail += math.comb(n, left_out) / 2**n
        if 2 * tail > 0.05:
            break
        left_out += 1
    if left_out == 0:
        return None
    ordered = sorted(values)
    return ordered[left_out - 1], ordered[n - left_out]


class Race:
    """Rounds of some variants, by name."""

    def __init__(self, runs):
        self.runs = runs

    def seconds(self, name):
        return [run.median("step_s") for run in self.runs[name]]

    def tokens_per_s(self, name):
        return statistics.median(run.median("tokens_per_s") for run in self.runs[name])

    def ratios(self, name, base):
        return [a / b for a, b in zip(self.seconds(name), self.seconds(base))]

    def ratio(self, name, base):
        return statistics.median(self.ratios(name, base))

    def effect(self, name, base):
        """"slower" or "faster" than base where 19 of 20 such races would say so, else "none"."""
        interval = median_interval(self.ratios(name, base))
        if interval is None or interval[0] <= 1 <= interval[1]:
            return "none"
        return "slower" if interval[0] > 1 else "faster"

    def gigabytes(self, name, field):
        return statistics.median(run.median(field) for run in self.runs[name]) / 1e9

    def share(self, name, field):
        return statistics.median(run.median(field) for run in self.runs[name])

    def expect_paged(self, *names):
        for name in names:
            for run in self.runs[name]:
                if run.total("fetch_bytes") <= 0 or run.total("write_back_bytes") <= 0:
                    fail(f"\"{name}\" did not page: {run.total('fetch_bytes')} bytes read, "
                         f"{run.total('write_back_bytes')} written")

    def expect_same_bits(self, *names):
        losses = {name: sorted({tuple(run.losses) for run in self.runs[name]}) for name in names}
        if len({loss for of_name in losses.values() for loss in of_name}) != 1:
            fail(f"runs that must compute the same bits have different losses: {losses}")


class Bench:
    """Runs `program` on `text`, with its models and runs in `folder`; `raw` keeps the metrics."""

    def __init__(self, program, text, folder, raw, shape):
        self.program, self.text, self.folder, self.raw = program, text, folder, raw
        self.shape = shape
        self.experts_per_token = 2
        self.machines = None  # machine_spaces.Machines on which processes run; None: on this one
        self.models = {}  # by their numbers of experts and of a token's
        self.profiles = {}  # [profile] of a sheet, by what it depends on
        self.other_cores = []  # of each run

    # Small weights and small steps: what attention makes common to all tokens stays small beside
    # what they differ in, so that routing is as even as the text's tokens, and stays so.
    def config(self, experts, ffn=None):
        return {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "vocab_size": 320, "hidden_size": self.shape.hidden, "num_hidden_layers": LAYERS,
            "num_attention_heads": self.shape.hidden // 32, "head_dim": 32,
            "num_key_value_heads": max(1, self.shape.hidden // 128), "intermediate_size": 64,
            "moe_intermediate_size": ffn or self.shape.ffn, "num_experts": experts,
            "num_experts_per_tok": self.experts_per_token, "norm_topk_prob": True,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "router_aux_loss_coef": 0.01, "initializer_range": 0.002,
            "max_position_embeddings": 2048, "mlp_only_layers": [], "decoder_sparse_step": 1,
            "attention_bias": False, "eos_token_id": 256}

    def model(self, experts, ffn=None):
        """A model with random weights, made when it is first wanted."""
        key = experts, self.experts_per_token, ffn or self.shape.ffn
        if key in self.models:
            return self.models[key]
        path = self.folder / ("model-" + "-".join(map(str, key)))
        config = self.folder / "config.json"
        config.write_text(json.dumps(self.config(experts, ffn)))
        made = subprocess.run([self.program, "init", "--config", config, "--seed", "1", "--out",
                               path], capture_output=True, text=True)
        if made.returncode != 0:
            fail(f"init of {experts} experts: {made.stderr}")
        self.models[key] = path
        return path

    def options(self, text, steps, flags):
        """A run's options by key. `flags` name the model; the run's folder is self.folder /
        "run"."""
        tokens = int(flags.get("train.tokens_per_step", self.shape.tokens))
        options = {
            "data.path": text, "train.output_dir": self.folder / "run",
            "data.sequence_len": min(256, self.shape.microbatch), "train.steps": steps,
            "train.tokens_per_step": tokens,
            "train.micro_batch_tokens": min(self.shape.microbatch, tokens),
            "train.save_steps": 0, "train.eval_steps": 0, "train.log_steps": steps,
            "optim.learning_rate": 1e-6, "optim.schedule": "constant"} | flags
        return options

    def words(self, text, steps, flags):
        """The same as words of a command line. A list's flag comes once for each of its texts."""
        return [word for key, value in self.options(text, steps, flags).items()
                for one in (value if isinstance(value, list) else [value])
                for word in (f"--{key}", str(one))]

    def run_file(self, flags):
        """The same as a file."""
        sections = {}
        for key, value in self.options(self.text, self.shape.steps, flags).items():
            section, name = key.split(".", 1)
            text = value if isinstance(value, (int, float)) else json.dumps(
                [str(one) for one in value] if isinstance(value, list) else str(value))
            sections.setdefault(section, []).append(f"{name} = {text}")
        path = self.folder / "run.toml"
        path.write_text("".join(f"[{section}]\n" + "\n".join(lines) + "\n"
                                for section, lines in sections.items()))
        return path

    def processes(self, count, words):
        """One process of pagoda, or several under mpirun."""
        command = [str(self.program), *words]
        if count > 1 and self.machines:
            command, more = self.machines.of_mpirun(command)
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  check=False, **more)
        if count > 1:
            return under_mpirun(count, command)
        return subprocess.run(command, capture_output=True, text=True)

    def train(self, text, steps, flags):
        """Exit code and what was printed. "ranks" of `flags`, which is no option, is the number of
        processes."""
        flags = dict(flags)
        ranks = flags.pop("ranks", 1)
        done = self.processes(ranks, ["train", *self.words(text, steps, flags)])
        return done.returncode, done.stderr

    def profile(self, flags):
        """The costs of the run's devices, measured, as a section of a sheet."""
        config = json.loads((Path(flags["model.path"]) / "config.json").read_text())
        options = self.options(self.text, self.shape.steps, flags)
        key = (json.dumps([v for k, v in config.items() if k != "num_experts"]),
               *(str(options[k]) for k in ("train.devices", "train.micro_batch_tokens",
                                           "data.sequence_len")))
        if key not in self.profiles:
            sheet = self.folder / "profiled.toml"
            made = self.processes(1, ["bench", "machine", self.run_file(flags), "--device", "cpu",
                                      *self.rounds(), *SHORT, "--dir", self.folder,
                                      "--out", sheet])
            if made.returncode != 0:
                fail(f"bench machine of a run: {made.stderr}")
            self.profiles[key] = section(sheet.read_text(), "profile")
        return self.profiles[key]

    def rounds(self):
        """How often the machine is measured where nothing is timed: once."""
        return ["--rounds", "1"] if self.shape.tiny else []

    def planned(self, machines, flags, profiled=False, routing=None):
        """What `pagoda plan` says of the run on so many machines as this one, each with a process;
        None: it does not fit. Their network is what two processes have here. `profiled`: the costs
        of the run's devices are measured, each by itself, once for the same sizes. `routing`: what
        was recorded of the run."""
        lab = "spaces" if self.machines else "lab"
        sheet, cluster = self.folder / f"{lab}.toml", self.folder / f"{lab}{machines}.toml"
        if not sheet.exists():
            short = SHORT if self.shape.tiny else []
            made = self.processes(2, ["bench", "machine", *self.rounds(), *short, "--dir",
                                      self.folder, "--out", sheet])
            if made.returncode != 0:
                fail(f"bench machine: {made.stderr}")
        node = self.folder / re.search(r'(?m)^nodes = \["([^"]*)"', sheet.read_text()).group(1)
        flags = {key: value for key, value in flags.items() if key != "ranks"}
        if profiled:
            profile, text = self.profile(flags), node.read_text()
            node = self.folder / "profiled-node.toml"
            node.write_text(text.replace(section(text, "profile"), "") + "\n" + profile)
        nodes = f"nodes = {json.dumps([node.name] * machines)}"
        text = re.sub(r"(?m)^nodes = .*$", nodes, sheet.read_text())
        cluster.write_text(re.sub(r"(?m)^hosts = .*$", "hosts = []", text))
        words = ["plan", *self.words(self.text, self.shape.steps, flags), "--cluster", cluster,
                 "--json"] + ([] if routing is None else ["--routing", routing])
        asked = self.processes(1, words)
        if not asked.stdout.startswith("{"):
            fail(f"plan: {asked.stderr}")
        plan = json.loads(asked.stdout)["as_train"]
        return None if "why" in plan else plan

    def ask(self, flags):
        """The plan of a run, which is not begun: its text does not exist. None: the budgets are
        too small to make one."""
        code, printed = self.train(self.folder / NO_TEXT, 1, flags)
        if code in REFUSED and "smallest memory.host" not in printed:
            return None
        return Plan.parse(code, printed)

    def run(self, label, flags):
        others = OtherWork()
        code, printed = self.train(self.text, self.shape.steps, flags)
        other_cores = others.cores()
        if code != 0:
            fail(f"{label} exits with {code}: {printed[-1000:]}")
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        shutil.rmtree(self.folder / "run")
        (self.raw / f"{label}.jsonl").write_text("\n".join(lines) + "\n")
        return Run(lines, other_cores)

    def race(self, table, variants, base=None):
        """Every variant once a round, in the other order every second time. variants: flags by
        name. Where there are several rounds and a `base`, they go on until each variant has an
        effect against it, up to MOST_ROUNDS times as many."""
        runs = {name: [] for name in variants}
        most = self.shape.rounds * (MOST_ROUNDS if base and self.shape.rounds > 1 else 1)
        for number in range(1, most + 1):
            if number > self.shape.rounds and all(
                    Race(runs).effect(name, base) != "none" for name in variants if name != base):
                break
            for name, flags in list(variants.items())[::1 if number % 2 else -1]:
                label = f"{table}-{re.sub(r'[^a-z0-9.]+', '_', name)}-{number}"
                run = self.run(label, flags)
                runs[name].append(run)
                print(f"  {label}: {run.median('step_s'):.3f} s/step, others had "
                      f"{run.other_cores:.1f} cores", file=sys.stderr)
        self.other_cores += [run.other_cores for of_name in runs.values() for run in of_name]
        return Race(runs)

    def roomy_plan(self, experts, flags):
        return self.ask({"model.path": self.model(experts), "memory.device": "1TiB",
                         "memory.host": "1TiB"} | flags)

    def plan_without_weights(self, experts, flags):
        folder = self.folder / "outline"
        make_outline(self.model(2), self.config(experts), folder)
        plan = self.ask(flags | {"model.path": folder})
        shutil.rmtree(folder)
        return plan

    def paged(self, experts, flags):
        """Flags of a run whose weights and state page: a model, on the device what the least
        budget of `flags` holds and a quarter of the weights, in host memory 0.4 of weights and
        state."""
        plan = self.roomy_plan(experts, flags)
        host = max(1.1 * plan.least_host, 0.4 * (plan.weights + plan.state))
        return {"model.path": self.model(experts),
                "memory.device": budget(plan.least_device + 0.25 * plan.weights),
                "memory.host": budget(host)}


def largest(fits, least=2, most=4096):
    """The largest count from least to most for which fits(count), 0 if there is none. What fits
    a count fits all below."""
    if not fits(least):
        return 0
    low, high = least, 2 * least
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def write_even_text(path, characters=300_000):
    """Characters drawn so that their bytes are about equally frequent: experts of a random model
    then get about as many tokens each as those of a trained one."""
    one_byte = [chr(code) for code in range(0x20, 0x7f)]
    two_bytes = [chr(code) for code in range(0xa0, 0x800)]
    drawn = random.Random(1).choices(20 * one_byte + two_bytes, k=characters)
    path.write_text("".join(drawn), encoding="utf-8")


def make_outline(template, config, folder):
    """A model folder whose weights are a hole in a file: enough for a plan. The tensors of
    `template`, a model that init made, with as many experts as `config` says."""
    with open(template / "model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    experts, shapes = config["num_experts"], {}
    for name, tensor in header.items():
        number = re.search(r"\.experts\.(\d+)\.", name)
        if number is None:
            shapes[name] = tensor["shape"]
            if name.endswith(".mlp.gate.weight"):  # the router
                shapes[name] = [experts, tensor["shape"][1]]
        elif number.group(1) == "0":
            for e in range(experts):
                shapes[name.replace(".experts.0.", f".experts.{e}.")] = tensor["shape"]
    entries, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def section(toml, name):
    """A section of a file, or ""."""
    found = re.search(rf"(?ms)^\[{name}\]$.*?(?=^\[|\Z)", toml)
    return found.group(0) if found else ""
