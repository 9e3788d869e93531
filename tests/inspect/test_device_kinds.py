# SPDX-License-Identifier: Apache-2.0
"""Kernels for devices that no plug-in of portcall's runs: they are read and shown, and a call says what is missing."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import portcall
from devices.payloads import text
from portcall import errors, toolchain
from portcall.inspect import inspect_library

BUFFER, FLOAT = (3, 64, 1), (2, 32, 1)
CODE = b"kernel code"


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def infos(
    *, tagged: bool, launch: tuple[bytes, ...] = (b"blockIdx.x", b"threadIdx.x"), tags: bytes = number(2) + bytes(8)
) -> bytes:
    """A map with the kernel ``k``, which takes a buffer and a float."""
    info = text(b"k") + number(2) + struct.pack("<BBHBBH", *BUFFER, *FLOAT)
    info += number(len(launch)) + b"".join(map(text, launch))
    return number(1) + text(b"k") + info + (tags if tagged else b"")


def codes(code: bytes = CODE) -> bytes:
    return number(1) + text(b"k") + text(code)


SPIRV = struct.pack("<IQII", 0, 2, 0x07230203, 5)  # a flag, the list of words
PAYLOADS = {
    "metal of 0.27": ("metal", text(b"metal") + infos(tagged=True) + codes()),
    "metal of 0.19": ("metal", text(b"0.1.0") + codes() + infos(tagged=False) + text(b"metal")),
    "metal of 0.6": ("metal", text(b"metal") + infos(tagged=False) + text(CODE)),
    "webgpu of 0.27": (
        "webgpu",
        infos(tagged=True, launch=(b"blockIdx.x", b"paramWriteAccess:[0,1]"), tags=number(0)) + codes(),
    ),
    "vulkan of 0.20": ("vulkan", text(b"spirv") + infos(tagged=False) + number(1) + text(b"k") + SPIRV),
    "vulkan of 0.27": ("vulkan", text(b"spirv") + infos(tagged=True) + codes(SPIRV)),
    "hip of 0.27": ("hip", text(b"hsaco") + infos(tagged=True) + text(CODE)),
    "hip of 0.6": ("hip", text(b"hsaco") + infos(tagged=False) + text(CODE)),
}


@pytest.mark.parametrize("which", PAYLOADS)
def test_kernels_of_other_devices_are_shown_and_their_call_names_the_kind(which: str, tmp_path: Path) -> None:
    kind, payload = PAYLOADS[which]
    body = struct.pack("<6Q", 3, 0, 1, 1, 1, 1) + text(b"_lib") + text(kind.encode()) + text(payload)
    blob = ",".join(map(str, number(len(body)) + body))
    source = tmp_path / "k.c"
    source.write_text(f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    library = toolchain.create_shared(source, tmp_path / "k.so")

    [_, module] = inspect_library(library).modules
    assert module.kernels
    [kernel] = module.kernels.kernels
    assert (kernel.name, kernel.arguments) == ("k", ("handle", "float32"))
    assert kernel.launch[0] == "blockIdx.x"
    assert module.kernels.source == (CODE.decode() if kind in ("metal", "webgpu") else "")
    done = subprocess.run(
        [sys.executable, "-m", "portcall", "inspect", library, "--json"], capture_output=True, text=True, check=False
    )
    [shown] = [found for found in json.loads(done.stdout)["modules"] if found["kind"] == kind]
    assert shown["kernels"]["kernels"][0]["name"] == "k"

    loaded = portcall.load_module(library)
    assert [imported.type_key for imported in loaded.imported_modules] == [kind]
    with pytest.raises(errors.FunctionNotFoundError, match=kind):
        loaded["k"]
