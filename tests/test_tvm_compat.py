# SPDX-License-Identifier: Apache-2.0
"""Programs on TVM's C API and on its C++ headers, compiled and linked with libportcall.

The headers are a stand-in of the same names. Those of real releases are tried, too: ``PORTCALL_TVM_HEADERS`` lists
clones of TVM with its submodules, separated by ``:``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from portcall import toolchain
from portcall.cli.config import settings

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "tests" / "native"
CLONES = [Path(text) for text in os.environ.get("PORTCALL_TVM_HEADERS", "").split(":") if text]


@pytest.fixture(scope="module")
def kernels(build_native: Callable[[str], Path]) -> Path:
    return build_native("tvm_compat_kernels.cc")


def build_and_run(folder: Path, kernels: Path, *words: str | Path) -> str:
    """Compile what ``words`` say, run it in a folder with ``kernels.so``, and return what it prints."""
    program = folder / "program"
    (folder / "kernels.so").symlink_to(kernels)
    flags = shlex.split(settings()["ldflags"])
    commands: list[list[str | Path]] = [[*words, *flags, "-o", program], [program, "kernels.so"]]
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_a_program_in_c_runs_on_the_classic_api(tmp_path: Path, kernels: Path) -> None:
    words = ("cc", "-std=c11", "-Wall", "-Werror", f"-I{toolchain.include_dir()}", NATIVE / "classic_app.c")
    assert build_and_run(tmp_path, kernels, *words) == "done\n"


@pytest.mark.parametrize("clone", [None, *CLONES], ids=lambda clone: clone.name if clone else "stand-in")
def test_a_program_on_tvms_headers_runs_with_the_source_of_config(
    tmp_path: Path, kernels: Path, clone: Path | None
) -> None:
    if clone is None:
        folders = [NATIVE / "tvm_headers", toolchain.include_dir()]
    else:
        folders = [clone / part / "include" for part in ("", "3rdparty/dlpack", "3rdparty/dmlc-core")]
    includes = [word for folder in folders for word in ("-isystem", folder)]
    defined = ["-DDMLC_USE_LOGGING_LIBRARY=<tvm/runtime/logging.h>"] if clone else []
    sources = [NATIVE / "tvm_compat_app.cc", ROOT / "core" / "tvm_compat" / "tvm_compat.cc"]
    words = ["c++", "-std=c++17", "-Wall", "-Werror", *defined, *includes, *sources]
    assert build_and_run(tmp_path, kernels, *words) == "done\n"
