#!/usr/bin/env python3
"""Makes a wheel of the portable program's archive, and prints its path.

    python3 tools/make_wheel.py build/pagoda-portable.tar.gz --out build

The wheel holds the program and its libraries as they lie in the archive, each library once, by the
name that programs look for, and a command `pagoda` that becomes the program, as `python -m
pagoda_moe` does. The standard library only. The format is that of the binary distribution format
(PEP 427); the tag says glibc 2.36, which the portable program needs (PEP 600).
"""

import argparse
import base64
import hashlib
import posixpath
import re
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TAG = "pagoda_moe", "py3-none-manylinux_2_36_x86_64"
INIT = '''"""Carries the program pagoda, which fine-tunes Mixture-of-Experts models."""

import os
import sys


def main():
    """Becomes the program."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "pagoda")
    os.execv(program, [program, *sys.argv[1:]])
'''
MAIN = '"""`python -m pagoda_moe` is `pagoda`."""\n\nfrom pagoda_moe import main\n\nmain()\n'


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(\s*pagoda\s[^)]*?VERSION\s+([0-9.]+)", text, re.IGNORECASE).group(1)


def metadata():
    return (f"Metadata-Version: 2.1\nName: pagoda-moe\nVersion: {version()}\n"
            "Summary: Fine-tunes every parameter of a Mixture-of-Experts model whose experts do "
            "not fit\nRequires-Python: >=3.8\n"
            "Description-Content-Type: text/markdown\n\n"
            + (ROOT / "README.md").read_text())


class Wheel:
    """A zip file that keeps account of what it holds. Equal contents give equal bytes."""

    def __init__(self, path):
        self.file = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.file.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def finish(self, info):
        name = f"{info}/RECORD"
        self.add(name, "\n".join([*self.record, f"{name},,"]).encode() + b"\n")
        self.file.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("archive", type=Path, help="pagoda-portable.tar.gz")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the wheel")
    arguments = parser.parse_args()
    path = arguments.out / f"{PACKAGE}-{version()}-{TAG}.whl"
    info = f"{PACKAGE}-{version()}.dist-info"
    wheel = Wheel(path)
    wheel.add(f"{PACKAGE}/__init__.py", INIT.encode())
    wheel.add(f"{PACKAGE}/__main__.py", MAIN.encode())
    with tarfile.open(arguments.archive) as archive:
        members = sorted(archive.getmembers(), key=lambda m: m.name)
        linked = {posixpath.join(posixpath.dirname(m.name), m.linkname)
                  for m in members if m.issym()}
        for member in members:
            name = member.name.partition("/")[2]  # below the archive's one folder
            if member.isdir() or not name or member.name in linked:
                continue
            # A link has its target's bytes: wheels hold none.
            content = archive.extractfile(member).read()
            wheel.add(f"{PACKAGE}/{name}", content, member.mode & 0o755)
    wheel.add(f"{info}/METADATA", metadata().encode())
    wheel.add(f"{info}/WHEEL", (f"Wheel-Version: 1.0\nGenerator: pagoda\n"
                                f"Root-Is-Purelib: false\nTag: {TAG}\n").encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\npagoda = pagoda_moe:main\n")
    wheel.add(f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    wheel.finish(info)
    print(path)


if __name__ == "__main__":
    main()
