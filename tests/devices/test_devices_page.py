# SPDX-License-Identifier: Apache-2.0
"""docs/devices.md does what it says: its plug-in compiles, is found, and runs kernels; its Python runs on OpenCL."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from devices.payloads import BUFFER, library_of, payload
from portcall import toolchain

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-fvisibility=hidden")
FLOAT32 = (2, 32, 1)
PROGRAM = """
import sys, portcall
from portcall.inspect import inspect_library
device = portcall.device("ext_dev")
assert device.exist and device.device_name == "my device"
x = portcall.tensor([1.0, 2.0, 3.0, 4.0], dtype="float32", device=device)
y = portcall.empty((4,), "float32", device)
[kernels] = portcall.load_module(sys.argv[1]).imported_modules
kernels["scale"](x, y, 2.5, 2, 2)
print(y.numpy().tolist(), kernels.get_source(), inspect_library(sys.argv[1]).problems)
"""


def test_plugin_of_the_page_runs_kernels(tmp_path: Path) -> None:
    [(name, source)] = re.findall(r"```cpp\n// (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert source.count("\n") < 200
    (tmp_path / name).write_text(source)
    plugin = toolchain.create_shared(tmp_path / name, tmp_path / "mydevice.so", options=STRICT)

    kernels = payload(b"code", b"scale", (b"blockIdx.x", b"threadIdx.x"), b"mine", (BUFFER, BUFFER, FLOAT32))
    blob = ",".join(map(str, library_of(kernels, b"ext_dev")))
    (tmp_path / "k.c").write_text(f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    library = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so")

    seen = "import portcall; print([portcall.device(f'ext_dev:{i}').exist for i in range(2)])"
    for visible, exist in (("cuda:0", [False, False]), ("ext_dev:0,ext_dev:0", [True, False])):
        environment = {**os.environ, "PORTCALL_DEVICES": f"ext_dev={plugin}", "PORTCALL_VISIBLE_DEVICES": visible}
        assert subprocess.check_output([sys.executable, "-c", seen], env=environment, text=True) == f"{exist}\n"

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library], env={**os.environ, "PORTCALL_DEVICES": f"ext_dev={plugin}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[2.5, 5.0, 7.5, 10.0] code ()\n"), done.stderr


def test_devices_page_python_code_runs(
    opencl_plugin: None, libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opencl.so").write_bytes(libraries["opencl"].read_bytes())
    array = np.arange(1024, dtype="float32")
    names: dict[str, Any] = {"array": array, "other": portcall.Stream(portcall.opencl(0))}
    lines = [example.source for example in doctest.DocTestParser().get_examples(PAGE.read_text())]
    for line in lines:
        exec(compile(line.replace("…", "..."), PAGE.name, "single"), names)
    np.testing.assert_array_equal(names["y"].numpy(), array + array)
    assert names["start"].seconds_until(names["end"]) >= 0
    assert len(lines) > 10
    names.clear()
