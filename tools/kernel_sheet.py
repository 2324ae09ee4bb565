#!/usr/bin/env python3
"""A static sheet of the kernels for GPUs: of each kernel, on each architecture that the portable
program carries, its registers, spills, shared memory, and how many of its blocks a multiprocessor
takes. nvcc and ptxas say the first three, the CUDA C++ programming guide's rules of occupancy the
last. No GPU is needed.

    kernel_sheet.py [--nvcc PATH] [--accept]
                                     brings tools/bench/results/kernels.txt up to date: compiles the
                                     files that changed since, all of them in some twenty minutes of
                                     a core. The sheet is written behind each file, so that who ends
                                     it can go on. Of a file with a kernel that is worse it keeps
                                     what it had, and the exit is 1, unless that is accepted
    kernel_sheet.py [--nvcc PATH] --check [--all]
                                     compiles the same files, or else one that has not changed, for
                                     one architecture, in a seventh of that at most, or with --all
                                     for each, and compares; exit 1 where a kernel is worse

Without nvcc both exit with 69. A kernel is worse that spills more than the sheet says, or of which
a multiprocessor takes fewer blocks. One that the sheet does not have must not spill. The standard
library only."""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "kernels" / "cuda"
SHEET = ROOT / "tools" / "bench" / "results" / "kernels.txt"
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
ARCHITECTURES = next(preset["cacheVariables"]["PAGODA_CUDA_ARCHITECTURES"]
                     for preset in PRESETS if preset["name"] == "portable").split(";")
CHECKED = "90a"  # by --check, since ptxas takes minutes for each
ALWAYS = "rope.cu"  # compiled by --check though nothing has changed
NO_NVCC = 69
# What tools/cuda.cmake compiles them with.
FLAGS = ["-std=c++20", "-fmad=false", "-O3", "-DNDEBUG", f"-I{ROOT}", f"-I{ROOT / 'src'}"]


@dataclasses.dataclass(frozen=True)
class Multiprocessor:
    """What one has (CUDA C++ programming guide, table of technical specifications)."""
    threads: int
    blocks: int
    shared_bytes: int
    own_bytes: int  # shared memory that the system takes for each block
    granularity: int  # of a block's shared memory


KIB = 1024
MULTIPROCESSORS = {  # by architecture, without the letter of those that have features of their own
    "75": Multiprocessor(1024, 16, 64 * KIB, 0, 256),
    "80": Multiprocessor(2048, 32, 164 * KIB, KIB, 128),
    "86": Multiprocessor(1536, 16, 100 * KIB, KIB, 128),
    "89": Multiprocessor(1536, 24, 100 * KIB, KIB, 128),
    "90": Multiprocessor(2048, 32, 228 * KIB, KIB, 128),
    "100": Multiprocessor(2048, 32, 228 * KIB, KIB, 128),
    "120": Multiprocessor(1536, 24, 100 * KIB, KIB, 128),
}
REGISTERS = 64 * KIB  # of each; a warp takes them by 256, and warps go to four parts evenly
WARP, REGISTER_GRANULARITY, PARTS = 32, 256, 4


def round_up(value, unit):
    return -(-value // unit) * unit


def blocks_at_once(architecture, threads, registers, shared_bytes):
    """How many blocks of a kernel a multiprocessor takes at once."""
    of = MULTIPROCESSORS[architecture.rstrip("af")]
    warps = -(-threads // WARP)
    of_warp = round_up(max(registers, 1) * WARP, REGISTER_GRANULARITY)
    most_warps = REGISTERS // of_warp // PARTS * PARTS
    of_block = round_up(shared_bytes + of.own_bytes, of.granularity)
    by_shared = of.shared_bytes // of_block if of_block > 0 else of.blocks
    return min(of.blocks, of.threads // (warps * WARP), most_warps // warps, by_shared)


@dataclasses.dataclass(frozen=True)
class Kernel:
    file: str
    architecture: str
    name: str
    threads: int
    registers: int
    stack_bytes: int
    spill_bytes: int  # stored and loaded
    shared_bytes: int

    def key(self):
        return self.architecture, self.file, self.name

    def blocks(self):
        return blocks_at_once(self.architecture, self.threads, self.registers, self.shared_bytes)

    def row(self):
        """What it has in common with the kernels of its line."""
        return self.file, self.name, self.threads, self.shared_bytes

    def cell(self):
        more = f":{self.stack_bytes}:{self.spill_bytes}" if self.stack_bytes or self.spill_bytes \
            else ""
        return f"{self.registers}:{self.blocks()}{more}"

    @staticmethod
    def parse(architecture, row, cell):
        registers, _, stack, spills = map(int, (cell + ":0:0").split(":")[:4])
        file, name, threads, shared = row
        return Kernel(file, architecture, name, threads, registers, stack, spills, shared)


CELL = 13  # characters: 255:16:184:384


def table_lines(kernels):
    """A heading, and a line for each kernel with a cell for each architecture. A kernel of which
    architectures have different threads or shared memory has several lines."""
    lines = ["threads  shared" + "".join(f"{'sm_' + a:>{CELL + 1}}" for a in ARCHITECTURES) +
             "  file  kernel"]
    cells = {}  # [row][architecture]
    for kernel in kernels:
        cells.setdefault(kernel.row(), {})[kernel.architecture] = kernel.cell()
    for row in sorted(cells):
        file, name, threads, shared = row
        lines.append(f"{threads:7}  {shared:6}" + "".join(
            f" {cells[row].get(a, '-'):>{CELL}}" for a in ARCHITECTURES) + f"  {file}  {name}")
    return lines


def parse_table(lines):
    """The kernels of table_lines()."""
    architectures = [word[3:] for word in lines[0].split() if word.startswith("sm_")]
    kernels = []
    for line in lines[1:]:
        threads, shared, *cells, file, name = line.split(None, 3 + len(architectures))
        row = file, name, int(threads), int(shared)
        kernels += [Kernel.parse(a, row, cell) for a, cell in zip(architectures, cells)
                    if cell != "-"]
    return kernels


def plain_name(demangled):
    """A kernel's struct as its file has it: "Fill<float>"."""
    inside = re.search(r"run_kernel<(.*)>\(", demangled)
    name = inside.group(1) if inside else demangled
    for noise in (r"\(anonymous namespace\)::", r"_GLOBAL__N__\w+::", r"pagoda::gpu::",
                  r"pagoda::"):
        name = re.sub(noise, "", name)
    return name.replace(" ", "")


def demangled(names):
    filter_names = shutil.which("c++filt") or shutil.which("cu++filt")
    if not names or filter_names is None:
        return names
    done = subprocess.run([filter_names], input="\n".join(names) + "\n", text=True,
                          capture_output=True, check=True)
    return done.stdout.splitlines()


def read_ptx(text):
    """[mangled name] threads and shared memory of a block, as run_kernel() says them."""
    found = {}
    for name, body in re.findall(r"\.entry (\w+)\((.*?)\n\}", text, re.DOTALL):
        threads = re.search(r"\.maxntid (\d+)", body)
        shared = re.search(r"// shared memory: (\d+)", body)
        if threads is None or shared is None:
            raise SystemExit(f"kernel_sheet: {name} does not say its threads or shared memory")
        found[name] = int(threads.group(1)), int(shared.group(1))
    return found


def read_ptxas(text):
    """[mangled name] registers, bytes of stack, of spills and of static shared memory."""
    found = {}
    for part in text.split("Compiling entry function ")[1:]:
        name = re.match(r"'(\w+)'", part).group(1)
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
            part).groups())
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = (int(re.search(r"Used (\d+) registers", part).group(1)), stack,
                       stores + loads, int(shared.group(1)) if shared else 0)
    return found


def kernels_of(file, architecture, nvcc):
    """Compiles a file for an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = pathlib.Path(folder) / "kernels.ptx"
        subprocess.run([nvcc, "-ptx", f"-arch=compute_{architecture}", *FLAGS, FOLDER / file, "-o",
                        ptx], check=True)
        ptxas = pathlib.Path(nvcc).with_name("ptxas")
        said = subprocess.run([ptxas, "-v", "-O3", f"-arch=sm_{architecture}", ptx, "-o",
                               f"{folder}/kernels.cubin"], check=True, text=True,
                              capture_output=True).stderr
        of_ptx, of_ptxas = read_ptx(ptx.read_text()), read_ptxas(said)
    names = sorted(of_ptx)
    kernels = []
    for name, readable in zip(names, demangled(names)):
        threads, dynamic = of_ptx[name]
        registers, stack, spills, static = of_ptxas[name]
        kernels.append(Kernel(file, architecture, plain_name(readable), threads, registers, stack,
                              spills, static + dynamic))
    return kernels


def sources():
    return sorted(path.name for path in FOLDER.glob("*.cu"))


def compiled_in(file):
    """What of the project a file is compiled from: itself, and what it includes, and so on."""
    found, left = set(), [FOLDER / file]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            folders = [folder for folder in (path.parent, ROOT, ROOT / "src")
                       if (folder / name).is_file()]
            if not folders:
                raise SystemExit(f"kernel_sheet: {path} includes {name}, which is nowhere")
            left.append(folders[0] / name)
    return sorted(found)


def fingerprint(file):
    """A hash over what of the project a file is compiled from."""
    digest = hashlib.sha256()
    for path in compiled_in(file):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() +
                      b"\0")
    return digest.hexdigest()[:16]


def compile_all(files, architectures, nvcc):
    tasks = [(file, architecture) for file in files for architecture in architectures]
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2))) as pool:
        results = pool.map(lambda task: kernels_of(*task, nvcc), tasks)
        return sorted((k for kernels in results for k in kernels), key=Kernel.key)


def version_of(nvcc):
    said = subprocess.run([nvcc, "--version"], check=True, text=True, capture_output=True).stdout
    return re.search(r"release [\d.]+, V([\d.]+)", said).group(1)


def sheet_text(version, of_files, kernels):
    lines = [f"tools/kernel_sheet.py, nvcc {version}. Of each architecture a kernel's registers, "
             "and the blocks that a multiprocessor takes",
             "at once; behind these bytes of stack and of spills (stored and loaded), unless both "
             "are 0. Shared memory in bytes.",
             "On sm_75 nothing launches a TensorUnit, which multiplies bf16 by tensor cores; 0 "
             "blocks: it would not fit.", ""]
    lines += [f"source {file} {of_files[file]}" for file in sorted(of_files)]
    lines += [""] + table_lines(kernels)
    return "\n".join(lines) + "\n"


def update(nvcc, accept=False):
    """Compiles what the sheet does not have, and writes the sheet, but for files with a kernel that
    is worse, unless that is accepted."""
    version = version_of(nvcc)
    before, of_files, of_version = read_sheet(SHEET.read_text()) if SHEET.exists() else ({}, {}, "")
    whole = of_version == version and {key[0] for key in before} == set(ARCHITECTURES)
    of_files = {file: print_ for file, print_ in of_files.items() if whole and file in sources()}
    kept = [kernel for kernel in before.values()
            if kernel.file in sources() and kernel.architecture in ARCHITECTURES]
    left = []
    for file in sources():
        if of_files.get(file) != fingerprint(file):
            compiled = compile_all([file], ARCHITECTURES, nvcc)
            found = [line for kernel in compiled
                     for line in worse(kernel, before.get(kernel.key()))]
            for line in found:
                print(line)
            if found and not accept:
                left.append(file)
                continue
            kept = [kernel for kernel in kept if kernel.file != file] + compiled
            of_files[file] = fingerprint(file)
        SHEET.write_text(sheet_text(version, of_files, kept))
    if left:
        print("the sheet keeps what it had of " + ", ".join(left) +
              "; mend the kernels, or --accept what is worse")
    return 1 if left else 0


def read_sheet(text):
    """Kernels by key, fingerprints by file, and nvcc's version."""
    head, table = re.split(r"^(?=threads )", text, maxsplit=1, flags=re.MULTILINE)
    kernels = {kernel.key(): kernel for kernel in parse_table(table.splitlines())}
    of_files = dict(re.findall(r"^source (\S+) (\w+)$", head, re.MULTILINE))
    return kernels, of_files, re.search(r"nvcc (\S+)\.", head).group(1)


def worse(kernel, before):
    """What is worse about a kernel than the sheet has it, for people; none: nothing. `before`:
    None: the sheet has no such kernel."""
    where = f"{kernel.file}: {kernel.name} on {kernel.architecture}"
    found = []
    if kernel.spill_bytes > (before.spill_bytes if before else 0):
        found.append(f"{where} spills {kernel.spill_bytes} bytes")
    if before and kernel.blocks() < before.blocks():
        found.append(f"{where}: a multiprocessor takes {kernel.blocks()} blocks, and took "
                     f"{before.blocks()}; registers {before.registers} -> {kernel.registers}, "
                     f"shared memory {before.shared_bytes} -> {kernel.shared_bytes}")
    return found


def check(nvcc, architectures):
    kernels, of_files, version = read_sheet(SHEET.read_text())
    if version_of(nvcc) != version:
        print(f"SKIPPED: the sheet is nvcc {version}'s, this is {version_of(nvcc)}")
        return NO_NVCC
    changed = [file for file in sources() if of_files.get(file) != fingerprint(file)]
    found = []
    for kernel in compile_all(changed or [ALWAYS], architectures, nvcc):
        found += worse(kernel, kernels.get(kernel.key()))
    for line in found:
        print(line)
    if changed and not found:
        print("no kernel is worse; bring the sheet up to date, since these changed: " +
              ", ".join(changed))
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", help="(default: on the path, or of /usr/local/cuda)")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--all", action="store_true", help="check each architecture")
    parser.add_argument("--accept", action="store_true", help="write what is worse, too")
    options = parser.parse_args()
    nvcc = options.nvcc or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or shutil.which(nvcc) is None:
        print("SKIPPED: there is no nvcc")
        return NO_NVCC
    if options.check:
        return check(nvcc, ARCHITECTURES if options.all else [CHECKED])
    return update(nvcc, options.accept)


if __name__ == "__main__":
    sys.exit(main())
