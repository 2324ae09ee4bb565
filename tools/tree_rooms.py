"""The rooms of the tree, what each may stand on, and who includes whom. Used by check_tree.py."""

import re

CODE = {".h", ".cc", ".cu", ".cuh"}
MAX_MODULES = 25  # of a room
TEST_ONLY = "tests/"
MAY_INCLUDE_TOOLS = (TEST_ONLY, "tools/bench/", "tools/gpu_check/")

# The rooms, and for each the rooms it may stand on besides itself. A name that ends in a slash is
# the room and all below it; one that ends in ".h" is one header. Rooms are folders of src/, but
# for those that stand beside it.
BESIDE_SRC = ("kernels", "offload", "optim")
KERNELS = {"base", "device", "kernels", "optim/adam.h"}
PLAN = {"base", "offload/residency.h", "offload/place.h", "plan", "plan/sums"}
KERNEL_ROOMS = {"kernels/cpu/rows", "kernels/cpu/products", "kernels/cpu/attention"}
RUN = {"base", "hardware", "device", "kernels", "offload", "optim", "parallel", "parallel/gpus",
       "model", "tokenizer", "template", "data", "checkpoint", "plan", "plan/sums", "plan/step",
       "plan/machine", "plan/memory", "config"}
ROOMS = {
    "base": set(),
    "hardware": {"base"},
    "device": {"base", "hardware"},
    "optim": {"base", "device"},
    "offload": {"base", "device"},
    "parallel": {"base", "device"},
    "parallel/gpus": {"base", "device", "parallel"},
    "kernels": KERNELS,
    "kernels/cpu/rows": KERNELS,
    "kernels/cpu/products": KERNELS | {"kernels/cpu/rows"},
    "kernels/cpu/attention": KERNELS | {"kernels/cpu/rows", "kernels/cpu/products"},
    "kernels/cpu": KERNELS | {"kernels/cpu/"},
    "kernels/cuda/machine": KERNELS,
    "kernels/cuda/library": KERNELS,
    "kernels/cuda/tiles": KERNELS | {"kernels/cuda/machine"},
    "kernels/cuda": KERNELS | {"kernels/cuda/"},
    "model": {"base", "device", "kernels", "offload", "plan/machine/model_shape.h",
              "plan/sums/sum_shape.h"},
    "tokenizer": {"base", "model/json.h", "model/json_type.h"},
    "template": {"base"},
    "data": {"base", "hardware", "model/json.h", "model/json_type.h", "tokenizer", "template"},
    "checkpoint": {"base", "device", "model", "offload", "data", "tokenizer"},
    "gguf": {"base", "device", "model", "offload", "tokenizer", "checkpoint"},
    "plan": {"base"},
    "plan/sums": {"base"},
    "plan/rounds": {"base", "plan"},
    "plan/step": PLAN | {"plan/rounds"},
    "plan/machine": PLAN | {"plan/step"},
    "plan/memory": PLAN | {"plan/step", "plan/machine"},
    "plan/forecast": PLAN | {"plan/step", "plan/machine", "plan/memory"},
    "plan/zebra": PLAN | {"plan/step", "plan/machine"},
    "plan/exchange": PLAN | {"plan/rounds", "plan/step"},
    "config": {"base", "hardware", "device", "kernels", "offload", "optim", "model", "data",
               "plan/step", "plan/machine"},
    "train": RUN | {"plan/exchange"},
    "preview": RUN | {"plan/rounds", "plan/exchange", "plan/forecast", "plan/zebra", "train"},
    "report": RUN | {"train"},
    "commands": RUN | {"plan/exchange", "train", "preview", "report", "gguf"},
    "bench/race": RUN,
    "bench/roofs": RUN | KERNEL_ROOMS | {"bench/race"},
    "bench": RUN | KERNEL_ROOMS | {"train", "preview", "report", "bench/race", "bench/roofs"},
    "bench/sheet": RUN | {"train", "preview", "report", "bench", "bench/race", "bench/roofs"},
    "cli": RUN | {"preview", "report", "commands", "bench", "bench/sheet", "gguf"},
    "cli/doctor": RUN | {"cli", "bench/sheet"},
    "cli/plan": RUN | {"plan/", "preview", "report", "commands", "cli"},
}

# A header's name, and the paths (or beginnings of paths) that may include it.
RESTRICTED = [
    (r"cuda.*|cublas.*|nvtx.*", ("src/device/", "kernels/cuda/", "src/parallel/",
                                 "tools/gpu_check/", "tests/cuda/")),
    (r"liburing.*", ("offload/storage_uring.cc",)),
    (r"isa-l.*", ("offload/",)),
    (r"(oneapi/)?dnnl.*", ("kernels/",)),
    (r"mpi\.h", ("src/parallel/communicator_mpi.cc",)),
    (r"nccl.*", ("src/parallel/",)),
    (r"toml\+\+/.*", ("src/cli/option_file.cc",)),
    (r"CLI/.*", ("src/cli/",)),
]
# What is pure has no device, no files, no threads and no clock.
PURE = ("src/plan/", "offload/residency.", "offload/rehearsal.", "offload/foresight.",
        "offload/page_use.")
IMPURE = re.compile(r"chrono|thread|mutex|condition_variable|future|fstream|filesystem|ctime|"
                    r"fcntl\.h|unistd\.h|sys/.*")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def room_of(path):
    """The room of a file, by its path in the tree; None for what is no product."""
    folder = path.rpartition("/")[0]
    if folder.startswith("src/"):
        folder = folder[len("src/"):]
    elif folder.split("/")[0] not in BESIDE_SRC:
        return None
    while folder and folder not in ROOMS:
        folder = folder.rpartition("/")[0]
    return folder or None


def may_stand_on(room, header):
    """Whether a file of `room` may include `header`, as it is written in an include."""
    target = header.rpartition("/")[0]
    return target == room or any(
        entry in (target, header) or (entry.endswith("/") and (target + "/").startswith(entry))
        for entry in ROOMS[room])


def include_violations(path, number, bracket, name):
    if bracket == "<":
        for pattern, allowed in RESTRICTED:
            if re.fullmatch(pattern, name) and not path.startswith(allowed):
                yield number, f"<{name}> may be included only in {', '.join(allowed)}"
        if path.startswith(PURE) and IMPURE.fullmatch(name):
            yield number, f"<{name}> in a file that must stay pure"
        return
    if path.startswith(MAY_INCLUDE_TOOLS):
        return
    target = name.rpartition("/")[0]
    own = room_of(path)
    if name.split("/")[0] in ("tests", "tools", "testing"):
        yield number, f'"{name}": only tests and benches include it'
    elif not target:
        yield number, f'"{name}": write the include with the name of its room'
    elif target not in ROOMS:
        yield number, f'"{name}": no such room'
    elif own and not may_stand_on(own, name):
        yield number, f'"{name}": {own} may not stand on {target}'


def crowded_rooms(names):
    """Folders of C++ with more modules than a reader sees at a glance, a header and its source
    being one."""
    modules = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if "." + file.rpartition(".")[2] in CODE:
            modules.setdefault(folder, {}).setdefault(file.rpartition(".")[0], name)
    for folder, files in sorted(modules.items()):
        if len(files) > MAX_MODULES:
            yield min(files.values()), 1, (f"{folder} has {len(files)} modules, more than "
                                           f"{MAX_MODULES}: divide the room")


def is_product(name):
    return room_of(name) is not None


def quoted_includes(root, name):
    """The tree's files that `name` includes by name, in its order."""
    for line in (root / name).read_text(encoding="utf-8").split("\n"):
        match = INCLUDE.match(line)
        if match and match.group(1) == '"':
            for folder in ("", "src/"):
                if (root / (folder + match.group(2))).is_file():
                    yield folder + match.group(2)


def blank_comments_and_strings(text):
    """The same text with the insides of comments, strings and directives blanked, lines kept."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    pattern = (r'R"([^(\s]*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
               r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*")
    return re.sub(pattern, blank, text, flags=re.S | re.M)
