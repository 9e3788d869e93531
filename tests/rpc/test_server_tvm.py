# SPDX-License-Identifier: Apache-2.0
"""Clients of apache-tvm, as it comes from PyPI, against ``portcall serve``."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from portcall import toolchain
from rpc.serving import FUNCTIONS, Serving

pytestmark = pytest.mark.peers

CLIENT = Path(__file__).parents[1] / "scripts" / "tvm_client.py"
SERVER_OPTIONS = ("--key", "k")
SERVED = (
    FUNCTIONS
    + """
@register("shape")
def shape(n): return portcall.Shape(range(1, n + 1))
@register("sum")
def sum_(values): return sum(values)
"""
)
KERNEL = """
#include <portcall/portcall.h>
using portcall::TensorView;
static void AddOne(TensorView x, TensorView y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = x.data<float>()[i] + 1;
}
PORTCALL_EXPORT_TYPED(add_one, AddOne)
"""


def run_client(server: Serving, scenario: str, *more: object) -> None:
    done = subprocess.run(
        [sys.executable, CLIENT, str(server.port), scenario, *map(str, more)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


SCENARIOS = ["values", "tensors", "functions", "exceptions", "files", "timeout", "constructors", "further", "wrong_key",
             "many", "together"]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_server_serves_a_tvm_client(server: Serving, scenario: str) -> None:
    run_client(server, scenario)


def test_server_serves_uploads_and_timing_of_a_tvm_client(server: Serving, tmp_path: Path) -> None:
    (tmp_path / "kernel.cc").write_text(KERNEL)
    toolchain.create_shared(tmp_path / "kernel.cc", tmp_path / "kernel.so")
    run_client(server, "modules", tmp_path)


def test_server_links_archives_of_a_tvm_client(server: Serving, tmp_path: Path) -> None:
    (tmp_path / "kernel.cc").write_text(KERNEL)
    toolchain.create_shared(tmp_path / "kernel.cc", tmp_path / "kernel.so")
    compiler = toolchain.find_compiler("c++")
    words = (*compiler.command, *compiler.flags(), f"-I{toolchain.include_dir()}", "-c", str(tmp_path / "kernel.cc"))
    subprocess.run([*words, "-o", tmp_path / "kernel.o"], check=True)
    with tarfile.open(tmp_path / "kernel.tar", "w") as archive:
        archive.add(tmp_path / "kernel.o", "kernel.o")
    run_client(server, "archives", tmp_path)


def test_server_runs_kernels_of_opencl_for_a_tvm_client(
    server: Serving, libraries: dict[str, Path], opencl_plugin: None
) -> None:
    run_client(server, "devices", libraries["opencl"])
    run_client(server, "textures", libraries["opencl_texture"])


def test_server_runs_a_library_compiled_by_tvm(server: Serving, libraries: dict[str, Path]) -> None:
    run_client(server, "compiled", libraries["single"])
