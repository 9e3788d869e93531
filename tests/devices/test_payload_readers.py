# SPDX-License-Identifier: Apache-2.0
"""Three readers know the layout of kernels: portcall/payload.h, the loader (where a module ends in a classic table) and
``portcall inspect``. All of them say the same of the same bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import portcall
from devices.payloads import BUFFER, payload, text
from portcall import errors, toolchain
from portcall.inspect._embedded import read_classic
from portcall.inspect._kernels import read_kernels

CAPACITY = 4096
TREE = text(b"_import_tree") + struct.pack("<6Q", 3, 0, 1, 1, 1, 1)
FORMS = ["0.6", "0.20", "0.21", "0.27"]
ARGUMENTS = (BUFFER, (0, 32, 1), (2, 32, 1), (2, 64, 1))
PARAMETERS = (b"blockIdx.y", b"threadIdx.x", b"tir.use_dyn_shared_memory")


def module(form: str, kernels: int = 1) -> bytes:
    """A module of several kernels as TVM of a release wrote it. Since 0.21 each argument has a tag."""
    parameters = PARAMETERS[:2] if form == "0.6" else PARAMETERS
    tags = (3,) if form in ("0.21", "0.27") else None
    code = b"".join(b"// Function: k%d\n__kernel void k%d() {}\n" % (i, i) for i in range(kernels))
    one = [
        payload(b"", b"k%d" % i, parameters, b"cl", ARGUMENTS[: i + 1], tags)[len(text(b"cl")) + 8 : -8]
        for i in range(kernels)
    ]
    return text(b"cl") + struct.pack("<Q", kernels) + b"".join(one) + text(code)


def damaged(whole: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Cut, changed, grown and spliced copies of a module; the same each time."""
    rng = random.Random(seed)
    yield whole + b"x"
    for _ in range(count):
        data, at = bytearray(whole), rng.randrange(len(whole))
        match rng.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at] = rng.choice((0, 1, 2, 127, 255))
            case 2:
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                del data[at : at + rng.choice((1, 4, 8))]
            case 4:
                data[at:at] = bytes(rng.choice((1, 4, 8)))
        yield bytes(data)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A classic library with room for a table of modules."""
    source = tmp_path_factory.mktemp("template") / "k.c"
    source.write_text(
        f"const unsigned char __tvm_dev_mblob[{CAPACITY}] = {{77, 65, 82, 75, 77, 65, 82, 75}};"
        "void* __tvm_module_ctx; int f(void) { return 0; }"
    )
    return toolchain.create_shared(source, source.with_suffix(".so")).read_bytes()


@pytest.fixture
def as_loader_splits(
    template: bytes, tmp_path: Path, register: Callable[..., portcall.PackedFunc]
) -> Callable[[bytes], bytes]:
    """Put a module of kind ``hip`` into a classic library, and return the bytes that the loader takes for it."""
    seen: list[bytes] = []
    assert portcall.opencl().exist

    def take(data: bytes) -> portcall.Module:
        seen.append(bytes(data))
        found: portcall.Module = portcall.get_global_func("ffi.Module.load_from_bytes.opencl")(payload(b""))
        return found

    register("ffi.Module.load_from_bytes.hip", take)

    def split(data: bytes) -> bytes:
        table = with_table(data)
        at = template.index(b"MARKMARK")
        file = tmp_path / f"{len(seen)}.so"
        file.write_bytes(template[:at] + table + template[at + len(table) :])
        portcall.load_module(file)
        return seen[-1]

    return split


def with_table(data: bytes) -> bytes:
    body = struct.pack("<Q", 3) + text(b"_lib") + text(b"hip") + data + TREE
    return struct.pack("<Q", len(body)) + body


def names_of_payload_h(data: bytes) -> list[str] | None:
    try:
        found = portcall.get_global_func("ffi.Module.load_from_bytes.opencl")(data)
    except errors.ModuleLoadError:
        return None
    assert isinstance(found, portcall.Module)
    return sorted(found.list_function_names())


def names_of_inspect(data: bytes) -> list[str] | None:
    found = read_kernels("hip", data)
    return None if found is None else [kernel.name for kernel in found[0].kernels]


def split_of_inspect(data: bytes) -> bytes:
    table = with_table(data)
    found = read_classic(table)[1]
    return table[found.offset :] if found.nbytes is None else table[found.offset : found.offset + found.nbytes]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernels", [0, 1, 3])
def test_modules_of_all_releases_are_read_alike(
    form: str, kernels: int, as_loader_splits: Callable[[bytes], bytes]
) -> None:
    data = module(form, kernels)
    assert names_of_payload_h(data) == names_of_inspect(data) == [f"k{i}" for i in range(kernels)]
    assert as_loader_splits(data) == split_of_inspect(data) == data


@pytest.mark.parametrize("form", FORMS)
def test_damaged_modules_are_read_alike(form: str, as_loader_splits: Callable[[bytes], bytes]) -> None:
    refused = 0
    for number, data in enumerate(damaged(module(form, 2), FORMS.index(form), 150)):
        names = names_of_payload_h(data)
        assert names == names_of_inspect(data), (number, data)
        split = as_loader_splits(data)
        assert split == split_of_inspect(data), (number, data)
        # What the table's reader takes for a module, the module's reader takes as well, and nothing else.
        rest = split == data + TREE
        assert rest or names_of_payload_h(split) is not None, (number, data)
        assert not rest or names is None, (number, data)
        refused += names is None
    assert refused > 50


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (payload(b"", arguments=[(2, 16, 1)]), r"\(2, 16, 1\)"),
        (payload(b"", parameters=(b"vthread",)), "'vthread'"),
        (payload(b"", parameters=(b"blockIdx.w",), tensor_maps=None), "'blockIdx.w'"),
    ],
)
def test_kernel_that_cannot_be_launched_is_an_error_of_its_own(wrong: bytes, named: str) -> None:
    loaded = portcall.get_global_func("ffi.Module.load_from_bytes.opencl")(wrong)
    assert isinstance(loaded, portcall.Module)
    assert loaded.list_function_names() == ["k"]
    with pytest.raises(errors.DeviceError, match=named):
        loaded["k"]
