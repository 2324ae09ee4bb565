#!/usr/bin/env python3
"""Checks tools/kernel_sheet.py: how many blocks a multiprocessor takes, counted by hand, what it
reads of nvcc and ptxas, what it calls worse, and the sheet that is kept.

    python tools/kernel_sheet_test.py [-v]
"""

import contextlib
import dataclasses
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import kernel_sheet
from kernel_sheet import Kernel, blocks_at_once

PTX = """
.visible .entry _ZN6pagoda3gpu10run_kernelINS0_4FillEEEvT_(
	.param .align 8 .b8 p[16]
)
.maxntid 256
.minnctapersm 2
{
	// begin inline asm
	// shared memory: 4096
	// end inline asm
	{ // a scope
	}
	ret;

}
"""
PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN6pagoda3gpu10run_kernelINS0_4FillEEEvT_' for 'sm_90'
ptxas info    : Function properties for _ZN6pagoda3gpu10run_kernelINS0_4FillEEEvT_
    24 bytes stack frame, 20 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 24 bytes cumulative stack size, 512 bytes smem
"""


class BlocksAtOnce(unittest.TestCase):
    def test_by_registers(self):
        # 40 registers of 32 threads are 1280, five times 256. 65536 / 1280 = 51.2 warps, 12 in each
        # of four parts: 48. A block has 8, so there are 6; 2048 / 256 threads would be 8.
        self.assertEqual(blocks_at_once("90", threads=256, registers=40, shared_bytes=1024), 6)
        # 33 registers are 1056, rounded up to 1280: no other.
        self.assertEqual(blocks_at_once("90", 256, 33, 1024), 6)
        # 32 are 1024, and 64 warps: all 8.
        self.assertEqual(blocks_at_once("90", 256, 32, 1024), 8)

    def test_by_shared_memory(self):
        # 48 KiB and 1 KiB for the system: 228 / 49 = 4.65, 164 / 49 = 3.3.
        self.assertEqual(blocks_at_once("90", 128, 32, 48 * 1024), 4)
        self.assertEqual(blocks_at_once("80", 128, 32, 48 * 1024), 3)
        # Nothing for the system before 8.0: 64 / 32.
        self.assertEqual(blocks_at_once("75", 128, 32, 32 * 1024), 2)

    def test_by_threads_and_blocks(self):
        self.assertEqual(blocks_at_once("75", 256, 16, 0), 4)  # 1024 threads
        self.assertEqual(blocks_at_once("89", 256, 16, 0), 6)  # 1536
        self.assertEqual(blocks_at_once("90", 32, 16, 0), 32)  # 64 blocks of a warp would do
        self.assertEqual(blocks_at_once("75", 32, 16, 0), 16)

    def test_an_architecture_with_features_of_its_own(self):
        self.assertEqual(blocks_at_once("90a", 128, 32, 48 * 1024), 4)


class Reading(unittest.TestCase):
    NAME = "_ZN6pagoda3gpu10run_kernelINS0_4FillEEEvT_"

    def test_what_compilers_say(self):
        self.assertEqual(kernel_sheet.read_ptx(PTX), {self.NAME: (256, 4096)})
        self.assertEqual(kernel_sheet.read_ptxas(PTXAS), {self.NAME: (40, 24, 36, 512)})

    def test_names(self):
        of = kernel_sheet.plain_name
        self.assertEqual(of("void pagoda::gpu::run_kernel<pagoda::gpu::(anonymous namespace)::Fill"
                            "<float, 4> >(pagoda::gpu::(anonymous namespace)::Fill<float, 4>)"),
                         "Fill<float,4>")
        self.assertEqual(of("void pagoda::gpu::run_kernel<pagoda::gpu::_GLOBAL__N__3f_7_a_cu_0::"
                            "Fill>(pagoda::gpu::_GLOBAL__N__3f_7_a_cu_0::Fill)"), "Fill")


class Worse(unittest.TestCase):
    BEFORE = Kernel("a.cu", "90", "Fill", threads=256, registers=40, stack_bytes=0, spill_bytes=8,
                    shared_bytes=1024)

    def test_is_what_costs(self):
        def found(**changes):
            return kernel_sheet.worse(dataclasses.replace(self.BEFORE, **changes), self.BEFORE)

        self.assertEqual(found(), [])
        self.assertEqual(found(registers=32, spill_bytes=0), [])
        self.assertEqual(found(registers=36, stack_bytes=24), [])
        self.assertRegex(found(spill_bytes=9)[0], "spills 9 bytes")
        self.assertRegex(found(registers=41)[0], "takes 5 blocks, and took 6")
        self.assertRegex(found(shared_bytes=40 * 1024)[0], "takes 5 blocks, and took 6")

    def test_new_kernels_do_not_spill(self):
        self.assertEqual(len(kernel_sheet.worse(self.BEFORE, None)), 1)
        fine = dataclasses.replace(self.BEFORE, spill_bytes=0)
        self.assertEqual(kernel_sheet.worse(fine, None), [])


class Fingerprint(unittest.TestCase):
    SOURCES = {"kernels/cuda/a.cu": '#include <cmath>\n#include "kernels/cuda/tiles/tile.cuh"\n'
                                    '#include "kernels/ops.h"\n',
               "kernels/cuda/tiles/tile.cuh": "#pragma once\n",
               "kernels/ops.h": '  # include "base/dtype.h"\n#include "list.inc"\n',
               "kernels/list.inc": "",
               "src/base/dtype.h": '#include "kernels/ops.h"\n',
               "kernels/cuda/other.cuh": "", "src/base/other.h": ""}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in self.SOURCES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        of_folder = {"ROOT": self.root, "FOLDER": self.root / "kernels" / "cuda"}
        patch = mock.patch.multiple(kernel_sheet, **of_folder)
        patch.start()
        self.addCleanup(patch.stop)

    def test_follows_what_is_compiled_in(self):
        before = kernel_sheet.fingerprint("a.cu")
        self.assertEqual(kernel_sheet.fingerprint("a.cu"), before)
        for name, text in self.SOURCES.items():
            (self.root / name).write_text(text + "int more;\n")
            changed = kernel_sheet.fingerprint("a.cu") != before
            self.assertEqual(changed, "other" not in name, name)
            (self.root / name).write_text(text)

    def test_misses_no_file(self):
        (self.root / "src/base/dtype.h").unlink()
        with self.assertRaisesRegex(SystemExit, "base/dtype.h"):
            kernel_sheet.fingerprint("a.cu")

    def compiles(self, compiled, registers):
        """A compiler that says what it compiles, and makes a kernel of each file that has so many
        registers on an architecture that --check does not compile for."""
        def compile_all(files, architectures, nvcc):
            compiled.extend(files)
            return [Kernel(file, of, "Fill", threads=256,
                           registers=registers.get(file, 32) if of == "80" else 32, stack_bytes=0,
                           spill_bytes=0, shared_bytes=0) for file in files for of in architectures]

        self.assertNotEqual(kernel_sheet.CHECKED, "80")
        return mock.patch.multiple(kernel_sheet, SHEET=self.root / "sheet", compile_all=compile_all,
                                   version_of=lambda nvcc: "13.0.88")

    def test_an_update_compiles_what_changed(self):
        compiled = []
        (self.root / "kernels/cuda/b.cu").write_text("")
        with self.compiles(compiled, {}):
            self.assertEqual(kernel_sheet.update("nvcc"), 0)
            self.assertEqual(compiled, ["a.cu", "b.cu"])
            whole = kernel_sheet.SHEET.read_text()
            kernel_sheet.update("nvcc")
            self.assertEqual(compiled, ["a.cu", "b.cu"])
            (self.root / "kernels/cuda/b.cu").write_text("int more;\n")
            (self.root / "kernels/cuda/c.cu").write_text("")
            kernel_sheet.update("nvcc")
            self.assertEqual(compiled[2:], ["b.cu", "c.cu"])
            (self.root / "kernels/cuda/b.cu").write_text("")
            (self.root / "kernels/cuda/c.cu").unlink()
            kernel_sheet.update("nvcc")
            self.assertEqual(compiled[4:], ["b.cu"])
            self.assertEqual(kernel_sheet.SHEET.read_text(), whole)

    def test_an_update_does_not_write_what_is_worse(self):
        (self.root / "kernels/cuda/b.cu").write_text("")
        with self.compiles([], {}):
            self.assertEqual(kernel_sheet.update("nvcc"), 0)
            whole = kernel_sheet.SHEET.read_text()
        for name in "ab":
            (self.root / f"kernels/cuda/{name}.cu").write_text("int more;\n")

        def updated(**options):
            said, compiled = io.StringIO(), []
            # 33 registers of 8 warps are 6 blocks in place of 8.
            with self.compiles(compiled, {"a.cu": 33}), contextlib.redirect_stdout(said):
                code = kernel_sheet.update("nvcc", **options)
            return code, compiled, said.getvalue(), kernel_sheet.read_sheet(
                (self.root / "sheet").read_text())

        _, files_before, _ = kernel_sheet.read_sheet(whole)
        for compiles in (["a.cu", "b.cu"], ["a.cu"]):
            code, compiled, said, (kernels, files, _) = updated()
            self.assertEqual(code, 1)
            self.assertEqual(compiled, compiles)
            self.assertRegex(
                said, r"a\.cu: Fill on 80: a multiprocessor takes 6 blocks, and took 8")
            self.assertNotIn("b.cu", said)
            self.assertEqual(kernels["80", "a.cu", "Fill"].registers, 32)
            self.assertEqual(files["a.cu"], files_before["a.cu"])
            self.assertEqual(files["b.cu"], kernel_sheet.fingerprint("b.cu"))
        code, _, _, (kernels, files, _) = updated(accept=True)
        self.assertEqual(code, 0)
        self.assertEqual(kernels["80", "a.cu", "Fill"].registers, 33)
        self.assertEqual(files["a.cu"], kernel_sheet.fingerprint("a.cu"))
        self.assertEqual(updated()[:2], (0, []))


class Table(unittest.TestCase):
    def test_has_a_line_for_a_kernel(self):
        plain = Kernel("a.cu", "75", "Fill<int,2>", threads=256, registers=40, stack_bytes=0,
                       spill_bytes=0, shared_bytes=1024)
        spills = dataclasses.replace(plain, architecture="90a", registers=255, stack_bytes=24,
                                     spill_bytes=8)
        # A warp of 40 registers takes 1280 of 65536, so 48 fit, but a multiprocessor of 7.5 has
        # 1024 threads. 255 are 8192 for each of 8 warps.
        with mock.patch.object(kernel_sheet, "ARCHITECTURES", ["75", "90a"]):
            lines = kernel_sheet.table_lines([plain, spills])
            self.assertEqual([line.split() for line in lines],
                             [["threads", "shared", "sm_75", "sm_90a", "file", "kernel"],
                              ["256", "1024", "40:4", "255:1:24:8", "a.cu", "Fill<int,2>"]])
            self.assertEqual(kernel_sheet.parse_table(lines), [plain, spills])
            # One architecture has other shared memory.
            other = dataclasses.replace(spills, shared_bytes=2048)
            lines = kernel_sheet.table_lines([plain, other])
            self.assertEqual([line.split()[:4] for line in lines[1:]],
                             [["256", "1024", "40:4", "-"], ["256", "2048", "-", "255:1:24:8"]])
            self.assertEqual(kernel_sheet.parse_table(lines), [plain, other])


class TheSheet(unittest.TestCase):
    def test_reads_back(self):
        text = kernel_sheet.SHEET.read_text()
        kernels, of_files, _ = kernel_sheet.read_sheet(text)
        self.assertEqual(text.splitlines()[-len(kernel_sheet.table_lines(kernels.values())):],
                         kernel_sheet.table_lines(kernels.values()))
        self.assertEqual(sorted(of_files), kernel_sheet.sources(), "a file is missing or gone")
        self.assertEqual({key[0] for key in kernels}, set(kernel_sheet.ARCHITECTURES))
        self.assertIn(kernel_sheet.CHECKED, kernel_sheet.ARCHITECTURES)


if __name__ == "__main__":
    unittest.main()
