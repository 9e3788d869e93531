# SPDX-License-Identifier: Apache-2.0
"""apache-tvm, apache-tvm-ffi and portcall share a process, whichever is imported first, and it ends in peace.

Each test is a process of its own that runs one scenario of scripts/interop.py.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ORDERS = [",".join(order) for order in itertools.permutations(("tvm_ffi", "tvm", "portcall"))]
EVERY_ORDER = pytest.mark.parametrize("order", ORDERS)
FIRST_AND_LAST = pytest.mark.parametrize("order", ["portcall,tvm_ffi,tvm", "tvm_ffi,tvm,portcall"])


def run(*words: str | Path) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def scenario(order: str, name: str, libraries: dict[str, Path], folder: Path) -> None:
    paths = {name: str(path) for name, path in libraries.items()} | {"folder": str(folder)}
    run(SCRIPTS / "interop.py", order, name, json.dumps(paths))


@EVERY_ORDER
def test_both_run_the_same_files_when_ours_loads_them_first(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenario(order, "same_files_ours_first", libraries, tmp_path)


@EVERY_ORDER
def test_both_run_the_same_files_when_theirs_loads_them_first(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenario(order, "same_files_theirs_first", libraries, tmp_path)


@EVERY_ORDER
def test_both_run_different_files(order: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenario(order, "different_files", libraries, tmp_path)


@EVERY_ORDER
def test_compiling_works_after_this_package_was_used(order: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenario(order, "compiling_works_afterwards", libraries, tmp_path)


@EVERY_ORDER
def test_system_libraries_are_apart(order: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenario(order, "system_libraries_are_apart", libraries, tmp_path)


@FIRST_AND_LAST
@pytest.mark.parametrize(
    "name",
    [
        "same_files_loaded_before_either_is_used",
        "same_files_after_ours_are_gone",
        "from_many_threads",
        "registries_are_apart",
        "tensors_go_both_ways",
        "tensors_outlive_their_makers",
        "functions_go_both_ways",
        "exceptions_go_both_ways",
        "libraries_on_headers_meet_both",
        "handled_errors_are_not_reported_again",
    ],
)
def test_both_in_one_process(order: str, name: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenario(order, name, libraries, tmp_path)
