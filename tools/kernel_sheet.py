#!/usr/bin/env python3
"""A static sheet of the kernels for GPUs: of each kernel and architecture its registers, spills,
shared memory, and how many of its blocks a multiprocessor takes. nvcc and ptxas say the first
three, the CUDA C++ programming guide's rules of occupancy the last. No GPU is needed.

    kernel_sheet.py [--nvcc PATH] > tools/bench/results/kernels.txt   makes the sheet, some minutes
    kernel_sheet.py [--nvcc PATH] --check    compiles what has changed since, or else one file, and
                                             compares; exit 1 where a kernel is worse, 69 without
                                             nvcc

A kernel is worse that spills more than the sheet says, or of which a multiprocessor takes fewer
blocks. One that the sheet does not have must not spill; make the sheet anew with it. The standard
library only."""

import argparse
import concurrent.futures
import dataclasses
import hashlib
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
ARCHITECTURES = ["90"]  # what a build without a GPU compiles for; ptxas takes minutes for each
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
MULTIPROCESSORS = {
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
    of = MULTIPROCESSORS[architecture]
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

    def line(self):
        return (f"{self.architecture:>4}  {self.threads:7}  {self.registers:9}  "
                f"{self.stack_bytes:5}  {self.spill_bytes:6}  {self.shared_bytes:6}  "
                f"{self.blocks():6}  {self.file}  {self.name}")

    @staticmethod
    def parse(line):
        architecture, threads, registers, stack, spill, shared, _, file, name = line.split(None, 8)
        return Kernel(file, architecture, name, int(threads), int(registers), int(stack),
                      int(spill), int(shared))


HEADING = ("  sm  threads  registers  stack  spills  shared  blocks  file  kernel")


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


def make_sheet(nvcc):
    lines = [f"tools/kernel_sheet.py, nvcc {version_of(nvcc)}. Stack, spills (stored and loaded) "
             "and shared memory in bytes;", "blocks that a multiprocessor takes at once.", ""]
    lines += [f"source {file} {fingerprint(file)}" for file in sources()]
    lines += ["", HEADING]
    lines += [kernel.line() for kernel in compile_all(sources(), ARCHITECTURES, nvcc)]
    return "\n".join(lines) + "\n"


def read_sheet(text):
    """Kernels by key, fingerprints by file, and nvcc's version."""
    head, table = text.split(HEADING + "\n")
    kernels = {k.key(): k for k in map(Kernel.parse, table.splitlines())}
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


def check(nvcc):
    kernels, of_files, version = read_sheet(SHEET.read_text())
    if version_of(nvcc) != version:
        print(f"SKIPPED: the sheet is nvcc {version}'s, this is {version_of(nvcc)}")
        return NO_NVCC
    changed = [file for file in sources() if of_files.get(file) != fingerprint(file)]
    found = []
    for kernel in compile_all(changed or [ALWAYS], ARCHITECTURES, nvcc):
        found += worse(kernel, kernels.get(kernel.key()))
    for line in found:
        print(line)
    if changed and not found:
        print(f"no kernel is worse; make the sheet anew, since {', '.join(changed)} changed")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", help="(default: on the path, or of /usr/local/cuda)")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    nvcc = options.nvcc or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or shutil.which(nvcc) is None:
        print("SKIPPED: there is no nvcc")
        return NO_NVCC
    if options.check:
        return check(nvcc)
    sys.stdout.write(make_sheet(nvcc))
    return 0


if __name__ == "__main__":
    sys.exit(main())
