# SPDX-License-Identifier: Apache-2.0
"""docs/calls.md and docs/numbers.md do what they say; the Python of every page is run by a test, or stands here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from portcall import toolchain

ROOT = Path(__file__).parents[1]
PROGRAM = """
import doctest, sys
failed, run = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS)
sys.exit(failed or run < int(sys.argv[2]))
"""


# The test that runs the Python of each page that has some, in fences or after >>>.
RUN_BY = {
    "README": "test_examples.py", "coming-from-tvm-ffi": "test_pages.py", "calls": "test_pages.py",
    "compile": "compile/test_compile_page.py",
    "cpp": "test_cpp_page.py", "devices": "devices/test_devices_page.py", "farm": "farm/test_farm_page.py",
    "language-models": "vm/test_language_page.py",
    "graph": "graph/test_docs.py", "ir": "ir/test_docs.py", "ir-example": "ir/test_example_page.py",
    "numbers": "test_pages.py", "rpc": "rpc/test_rpc_page.py",
    "testing-on-boards": "farm/test_pytest_plugin.py", "vm": "vm/test_vm_page.py",
}  # fmt: skip
NOT_RUN = {"javascript": "the other side of each block is a page in a browser: js/test/browser/device.test.ts"}


def test_python_of_every_page_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    with_python = {page.stem for page in pages if re.search(r"^```python$|^ *>>> ", page.read_text(), re.MULTILINE)}
    assert with_python == {*RUN_BY, *NOT_RUN}
    for page, file in RUN_BY.items():
        assert re.search(rf"\b{page}\.md\b", (ROOT / "tests" / file).read_text()), f"{file} does not read {page}.md"


@pytest.mark.parametrize(("page", "fewest"), [("calls.md", 30), ("numbers.md", 6)])
def test_code_of_a_page_runs(page: str, fewest: int, tmp_path: Path) -> None:
    (tmp_path / "tour").mkdir()
    kernels = toolchain.create_shared(ROOT / "src" / "portcall" / "cli" / "demo_kernels.cc", tmp_path / "kernels.so")
    (tmp_path / "tour" / "kernels.so").symlink_to(kernels)
    # In a process of its own: the page changes settings and the registry.
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "docs" / page), str(fewest)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.peers
def test_coming_from_tvm_ffi_page_code_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "coming-from-tvm-ffi.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"{number}.py"
        script.write_text(block)
        command = [sys.executable, str(script)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stderr) == (0, "")
