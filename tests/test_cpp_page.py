# SPDX-License-Identifier: Apache-2.0
"""docs/cpp.md does what it says: its library and its program are compiled, and its lines print what is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from portcall import toolchain

PAGE = Path(__file__).parents[1] / "docs" / "cpp.md"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
PROGRAM = """
import doctest, sys
failed, run = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8")
sys.exit(failed or run < 8)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page shows, and the library."""
    where = tmp_path_factory.mktemp("page")
    for name, source in re.findall(r"```cpp\n// (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (where / name).write_text(source)
    hidden = ("-fvisibility=hidden", "-fno-rtti")
    toolchain.create_shared(where / "plugin.cc", where / "plugin.so", options=(*STRICT, *hidden))
    return where


def test_cpp_page_python_code_runs(folder: Path) -> None:
    # In a process of its own: what the library registers stays.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, PAGE], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("standard", ["17", "20"])
def test_cpp_page_program_runs(folder: Path, standard: str) -> None:
    options = (*STRICT, f"-std=c++{standard}")
    program = toolchain.create_executable(folder / "host.cc", folder / f"host{standard}", options=options)
    done = subprocess.run([program, "plugin.so"], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert done.stdout == shown
    missing = subprocess.run(
        [program, "missing.so"], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert missing.returncode == 1
    assert missing.stderr.startswith("ModuleLoadError: cannot open 'missing.so': ")
