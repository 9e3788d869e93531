# SPDX-License-Identifier: Apache-2.0
"""docs/ir-example.md does what it says; a library with a pass in C++ loads before and after libportcall_ir."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from portcall import toolchain
from portcall.inspect import inspect_library

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ir-example.md"
DOCTEST = """
import doctest, sys
failed, run = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8")
sys.exit(failed or run < 20)
"""
USE = """
import sys, portcall
for step in sys.argv[1:]:
    if step == "python":
        assert portcall.ir.structural_equal(1, 1)
    else:
        portcall.load_module(step)
Binary, Const = portcall.ir.get_object_class("lang.Binary"), portcall.ir.get_object_class("lang.Const")
assert portcall.get_global_func("lang.fold")(Binary("+", Const(1), Const(2))).value == 3
assert portcall.ir.structural_equal(Const(1), Const(1))
assert not [line for line in open("/proc/self/maps") if "libportcall_ir-" in line]  # a copy
"""


def run(folder: Path, program: str, *words: str | Path) -> None:
    # In a process of its own: what a library registers stays.
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's source, its library, and the same library linked by hand."""
    where = tmp_path_factory.mktemp("page")
    for name, source in re.findall(r"```cpp\n// (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (where / name).write_text(source)
    toolchain.create_shared(where / "lang.cc", where / "unlinked.so", options=("-Wall", "-Wextra", "-Werror"))
    core = toolchain.library_path().parent
    linked = (f"-L{core}", f"-Wl,-rpath,{core}", "-Wl,--no-as-needed", "-lportcall_ir", "-lportcall")
    toolchain.create_shared(where / "lang.cc", where / "linked.so", options=linked)
    return where


def test_example_ir_page_code_runs(folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")  # the page is read in a clone
    run(folder, DOCTEST, PAGE)


@pytest.mark.parametrize("library", ["unlinked.so", "linked.so"])
@pytest.mark.parametrize("first", [True, False])
def test_libportcall_ir_is_loaded_once_in_either_order(folder: Path, library: str, first: bool) -> None:
    run(folder, USE, *([library, "python"] if first else ["python", library]))


def test_inspect_library_with_a_pass_has_no_problem(folder: Path) -> None:
    report = inspect_library(folder / "unlinked.so")
    assert (report.missing, report.problems) == ((), ())
