#!/usr/bin/env python3
"""The rules of the tree, as a test: who may include whom, sizes, words, headers that stand alone.

    check_tree.py ROOT [--no-headers]   a line a violation, "path:line: rule"; exit 1 if any
    check_tree.py ROOT --wrap           first clang-format breaks C++ lines that are too long
    check_tree.py --self-test           plants every violation in a small tree and expects each

After the idea of TigerBeetle's tidy.zig: style is a unit test. The standard library only.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from tree_docs import docs_violations
from tree_program import twice_defined_types, unlisted_folders, unreached_files
from tree_rooms import (CODE, MAX_MODULES, TEST_ONLY, blank_comments_and_strings, crowded_rooms,
                        include_violations, INCLUDE, quoted_includes)

MAX_FILE_LINES = 500
MAX_TEST_FILE_LINES = 800  # cases stand beside each other; no one reads them as one text
MAX_FUNCTION_LINES = 70
MAX_KERNEL_FUNCTION_LINES = 150  # kernels/cuda only
MAX_COLUMNS = 100
MAX_BINARY_BYTES = 100 * 1000
SCRIPTS = {".py", ".sh", ".cmake"}
# Spelt in pieces so that this file does not contain them.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

# Facts of the surroundings (NO_COLOR, who launched), never settings of pagoda's.
MAY_READ_ENVIRONMENT = ("src/report/progress.cc", "src/parallel/launcher.cc")


def listed_files(root):
    """Tracked and new files git does not ignore; without git, everything outside build folders."""
    try:
        command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
        out = subprocess.run(command, check=True, capture_output=True).stdout
        names = [n.decode() for n in out.split(b"\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
        names = [n for n in names if not re.match(r"(build|\.venv|\.git|runs)/", n)]
    return sorted({n for n in names if (root / n).is_file()})


def block_kind(head, outer):
    """What a brace opens, from the text before it and the kinds around it."""
    if re.search(r"\bnamespace\b[^()]*$|extern\s+\"?[^()]*$", head):
        return "scope"
    if re.search(r"\b(class|struct|enum|union)\b[^()=]*$", head) and "(" not in head.split("{")[-1]:
        return "scope"
    if re.search(r"\b(class|struct)\b", head) and re.search(r"\)\s*:\s*public|\brequires\b", head):
        return "scope" if "operator" not in head else "function"
    if all(kind == "scope" for kind in outer) and ")" in head:
        return "function"
    return "block"


def function_lengths(text):
    """(first line, lines) of each function body with its signature. A brace heuristic."""
    code = blank_comments_and_strings(text)
    stack, head, head_start = [], "", None
    line = 1
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        if char == "{":
            kind = block_kind(head, [k for k, _, _ in stack])
            stack.append((kind, head_start or line, head))
            head, head_start = "", None
        elif char == "}" and stack:
            kind, start, opened = stack.pop()
            rest = re.match(r"\s*(.)", code[index + 1:index + 200])
            # "Name() : a_{1}, b_{2} {": an initializer's braces do not end the signature.
            if kind == "function" and rest and rest.group(1) in ",{":
                head, head_start = opened + "()", start
                continue
            if kind == "function":
                yield start, line - start + 1
            head, head_start = "", None
        elif char == ";" and not head.count("(") > head.count(")"):
            head, head_start = "", None
        else:
            if head_start is None and not char.isspace():
                head_start = line
            head += char


def line_violations(path, lines):
    is_code = pathlib.Path(path).suffix in CODE
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns, more than {MAX_COLUMNS}"
        if UNFINISHED.search(line):
            yield number, "a mark of unfinished work"
        if not is_code:
            continue
        if "\t" in line:
            yield number, "a tab"
        if path.endswith((".h", ".cuh")) and re.match(r"\s*using\s+namespace\b", line):
            yield number, "using namespace in a header"
        if re.search(r"\bgetenv\b", line) and path not in MAY_READ_ENVIRONMENT:
            yield number, "configuration by environment variable"
        match = INCLUDE.match(line)
        if match:
            yield from include_violations(path, number, match.group(1), match.group(2))


def file_violations(path, text):
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    longest = MAX_TEST_FILE_LINES if path.startswith(TEST_ONLY) else MAX_FILE_LINES
    if len(lines) > longest:
        yield len(lines), f"{len(lines)} lines, more than {longest}"
    yield from line_violations(path, lines)
    if pathlib.Path(path).suffix in CODE:
        limit = (MAX_KERNEL_FUNCTION_LINES if path.startswith("kernels/cuda/")
                 else MAX_FUNCTION_LINES)
        for start, length in function_lengths(text):
            if length > limit:
                yield start, f"a function of {length} lines, more than {limit}"
        if path.endswith(".h") and "#pragma once" not in text:
            yield 1, "a header without #pragma once"


def text_violations(root, names):
    for name in names:
        path = root / name
        if pathlib.Path(name).suffix in CODE | SCRIPTS:
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                yield name, 1, "not UTF-8"
                continue
            for number, rule in file_violations(name, text):
                yield name, number, rule
        elif not name.startswith("tests/golden/") and path.stat().st_size > MAX_BINARY_BYTES:
            if b"\0" in path.read_bytes():
                yield name, 1, f"a binary of more than {MAX_BINARY_BYTES} bytes"


def include_closure(root, name, seen):
    """The names of the tree's headers that `name` includes, itself among them."""
    if name in seen:
        return seen
    seen.add(name)
    for included in quoted_includes(root, name):
        include_closure(root, included, seen)
    return seen


def closure_hash(root, name, compiler):
    digest = hashlib.sha256(compiler.encode())
    for part in sorted(include_closure(root, name, set())):
        digest.update(part.encode() + b"\0" + (root / part).read_bytes() + b"\0")
    return digest.hexdigest()


def compile_header(root, name, compiler):
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", ""
               f"-I{root}", f"-I{root}/src", "-x", "c++", str(root / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    first = next((l for l in done.stderr.split("\n") if "error" in l), "no reason given")
    return first.strip().replace(str(root) + "/", "")


def first_include(text):
    return next((m.group(2) for m in map(INCLUDE.match, text.split("\n")) if m), None)


def built_alone(root, names):
    """Headers that a .cc includes before all else: the build compiles them alone already. Not
    those of cli, whose files are built several at a time."""
    sources = [n for n in names if n.endswith(".cc") and not n.startswith("src/cli/")]
    firsts = {first_include((root / n).read_text(encoding="utf-8")) for n in sources}
    return {folder + name for name in firsts - {None} for folder in ("", "src/")}


def header_violations(root, names):
    """Compiles alone each header that the build does not; headers whose content passed before are
    remembered in build/."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        print("check_tree: skipped: headers alone (no compiler found)")
        return
    built = built_alone(root, names)
    headers = [n for n in names
               if n.endswith(".h") and n not in built and not n.startswith("kernels/cuda/")]
    memory = root / "build" / "check_tree.json"
    try:
        passed = set(json.loads(memory.read_text()))
    except (OSError, ValueError):
        passed = set()
    hashes = {name: closure_hash(root, name, compiler) for name in headers}
    due = [name for name in headers if hashes[name] not in passed]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        errors = dict(zip(due, pool.map(lambda n: compile_header(root, n, compiler), due)))
    if memory.parent.is_dir():
        good = sorted(hashes[n] for n in headers if errors.get(n) is None)
        with tempfile.NamedTemporaryFile("w", dir=memory.parent, delete=False) as out:
            json.dump(good, out)
        os.replace(out.name, memory)
    for name, error in errors.items():
        if error:
            yield name, 1, f"does not compile alone: {error}"


def check(root, headers=True):
    names = listed_files(root)
    found = list(text_violations(root, names))
    found += crowded_rooms(names)
    found += twice_defined_types(root, names)
    found += unreached_files(root, names)
    found += unlisted_folders(root, names)
    found += docs_violations(root, names)
    if headers:
        found += header_violations(root, names)
    return sorted(found), len(names)


def wrap_long_lines(root):
    """Breaks what is too long, alone. Breaking one line can lengthen the next: a few rounds."""
    for _ in range(3):
        found = list(text_violations(root, listed_files(root)))
        for name, number, rule in reversed(found):  # from below, so that numbers stay true
            if "columns" in rule and pathlib.Path(name).suffix in CODE:
                lines = f"--lines={number}:{number}"
                subprocess.run(["clang-format", "-i", lines, str(root / name)], check=True)


MD = ".md"  # apart, so that this file cites none of the pages below
# One planted violation of each rule: path, content, and words of the rule that must be reported.
PLANTED = [
    ("src/base/a.h", '#pragma once\n#include "device/b.h"\n', "base may not stand on device"),
    ("src/device/b.h", "#pragma once\nusing namespace std;\n", "using namespace"),
    ("kernels/c.cc", '#include "offload/d.h"\n', "kernels may not stand on offload"),
    ("offload/d.h", '#pragma once\n#include "kernels/c.h"\n', "offload may not stand on kernels"),
    ("src/plan/e.cc", '#include "offload/pager.h"\n', "plan may not stand on offload"),
    ("src/plan/step/f.cc", "#include <chrono>\n", "must stay pure"),
    ("src/plan/step/y.cc", '#include "plan/zebra/y.h"\n', "may not stand on plan/zebra"),
    ("src/train/z.cc", '#include "report/progress.h"\n', "train may not stand on report"),
    ("src/train/g.cc", "#include <liburing.h>\n", "offload/storage_uring.cc"),
    ("src/model/h.cc", "#include <cuda_runtime.h>\n", "kernels/cuda/"),
    ("src/parallel/x.cc", "#include <mpi.h>\n", "src/parallel/communicator_mpi.cc"),
    ("src/train/i.cc", '#include "tests/testing/x.h"\n', "only tests and benches"),
    ("src/train/j.cc", '#include "executor.h"\n', "name of its room"),
    ("src/base/k.cc", "int a;\n" * 501, "501 lines"),
    ("src/base/l.cc", "int f(int a) {\n" + "  ++a;\n" * 69 + "  return a;\n}\n", "72 lines"),
    ("src/base/m.cc",
     "struct S {\n S()\n : a{1}, b{2} {\n" + " ++a;\n" * 70 + " }\n int a, b;\n};\n",
     "a function of 73 lines"),
    ("src/base/n.cc", "// " + "x" * 98 + "\n", "101 columns"),
    ("src/base/o.cc", "// TO" + "DO later\n", "unfinished"),
    ("src/base/p.cc", 'const char* q = getenv("X");\n', "environment"),
    ("src/base/r.h", "int s;\n", "#pragma once"),
    ("src/base/t.cc", "\tint t;\n", "a tab"),
    ("src/base/u.h", "#pragma once\nstd::string u;\n", "does not compile alone"),
    ("src/base/w.h", "#pragma once\nstd::string w;\n", "does not compile alone"),
    ("src/plan/step/one.h", "#pragma once\nnamespace pagoda {\nstruct Twice {};\n}\n",
     "pagoda::Twice is also defined in"),
    ("src/bench/unused.h", "#pragma once\n", "nothing but tests reaches it"),
    ("tools/gpu_check/CMakeLists.txt", "file(GLOB s ${root}/optim/*.cc)\n", "build src/base"),
    ("tests/crowded/a00_test.cc", "\n", f"has {MAX_MODULES + 1} modules, more than"),
    ("tools/v.bin", "\0" * 100001, "a binary"),
    ("README.md", f"[a page](docs/page{MD})\n" * 1001, "1001 lines, more than"),
    ("README.md", f"[a page](docs/page{MD})\n" * 1001, "2002 words, more than"),
    (f"docs/one{MD}", "[none](no-such-page.html)\n", "a link to no-such-page.html"),
    (f"docs/two{MD}", "see `src/base/no_such.h`\n", "names src/base/no_such.h"),
    ("src/base/x.cc", f"// See docs/no_such_page{MD} section 2.\n", "cites docs/no_such_page."),
    ("src/base/aa.cc", "\n// Of a layer's rows.\nint a;\n", 'opens with "Of"'),
    ("src/base/ab.cc", "int b;  // Likewise.\n", 'opens with "Likewise"'),
    ("src/base/ac.cc", "int c;  // of them\n", 'opens with "of them"'),
    ("tools/planted.py", '"""As before."""\n', 'opens with "As"'),
    ("tools/planted.sh", "# That of the step.\n", 'opens with "That"'),
]
# What must not be reported, however it looks.
INNOCENT = [
    ("src/cli/main.cc",
     '#include "base/good.h"\n#include "base/w.h"\n#include "plan/step/good.h"\n'),
    ("src/base/good.h", "#pragma once\n"),
    ("src/plan/step/good.h", "#pragma once\n// The rows\n// of a layer.\nint d;  // of a page\n"),
    ("src/plan/machine/one.h", "#pragma once\nnamespace pagoda {\nstruct Twice {};\n"
     "namespace {\nstruct Mine {};\n}\n}\n"),
    ("src/base/good.cc", '// a { brace\nconst char* kText = "{{{";\nnamespace x {\nstruct T {\n'
     + "  int v() const { return 1; }\n" * 80 + "};\n}\n"),
    ("src/base/w.cc", '#include <string>\n\n#include "base/w.h"\n'),
    ("tools/gpu_check/main.cc", '#include "base/good.h"\n'),
    ("src/plan/step/good.cc", '#include "offload/residency.h"\n#include "base/status.h"\n'),
    (f"docs/page{MD}",
     "[up](../README.md#top) [out](https://example.org) `src/base/good.h` `src/`\n"),
    ("tests/cites_test.cc", f"// See docs/page{MD} and README.md.\n"),
    ("tests/good_test.cc", '#include "kernels/ops.h"\n#include "tests/testing/x.h"\n'),
]


# Planted beside them: what fills a room.
CROWD = [(f"tests/crowded/a{i:02}_test.cc", "\n") for i in range(1, MAX_MODULES + 1)]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, content, *_ in PLANTED + INNOCENT + CROWD:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        found, _ = check(root)
    missed = [f"{path}: not reported: {rule}" for path, _, rule in PLANTED
              if not any(p == path and rule in r for p, _, r in found)]
    innocent = {path for path, _ in INNOCENT + CROWD} - {"src/plan/machine/one.h"}  # unreached
    wrong = [f"{p}:{n}: reported wrongly: {r}" for p, n, r in found if p in innocent]
    for line in missed + wrong:
        print(line)
    print(f"check_tree: {len(PLANTED)} planted, {len(missed)} missed, {len(wrong)} wrong")
    return 1 if missed or wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path)
    parser.add_argument("--no-headers", action="store_true", help="skip compiling headers alone")
    parser.add_argument("--wrap", action="store_true", help="break long C++ lines (clang-format)")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if arguments.root is None:
        parser.error("name the root of the tree")
    if arguments.wrap:
        wrap_long_lines(arguments.root.resolve())
    found, files = check(arguments.root.resolve(), headers=not arguments.no_headers)
    for path, number, rule in found:
        print(f"{path}:{number}: {rule}")
    print(f"check_tree: {files} files, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
