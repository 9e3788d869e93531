# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, misc, no-any-return"
"""Tensors of other libraries: DLPack in its two versions, array interfaces, torch, tvm-ffi."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors

echo = portcall.get_global_func("testing.echo")
apply = portcall.get_global_func("testing.apply")

pytestmark = pytest.mark.usefixtures("native")


class Unversioned:
    """An exporter of the first protocol, which knows no max_version."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Versioned:
    """An exporter that notes what it was asked for."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.asked: list[Any] = []

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class ArrayInterface:
    """What older libraries offer."""

    def __init__(self, array: Any) -> None:
        self.keep = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("wrap", [Unversioned, Versioned, ArrayInterface])
def test_argument_of_each_array_protocol_is_not_copied(wrap: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = echo(wrap(array))
    assert isinstance(t, portcall.Tensor)
    assert t.data_ptr == array.ctypes.data
    array[0, 0] = 9
    assert t.numpy()[0, 0] == 9


def test_from_dlpack_asks_for_a_version() -> None:
    source = Versioned(np.zeros(3, np.float32))
    portcall.from_dlpack(source)
    assert source.asked == [{"max_version": (1, 1)}]


@pytest.mark.parametrize("wrap", [Unversioned, Versioned])
def test_from_dlpack_keeps_the_exporter(wrap: Any) -> None:
    array = np.arange(100, dtype=np.float32)
    gone = weakref.ref(array)
    t = portcall.from_dlpack(wrap(array))
    del array
    gc.collect()
    assert gone() is not None
    assert t.numpy().sum() == 4950
    del t
    gc.collect()
    assert gone() is None


def test_from_dlpack_of_numpy_reads_tensors() -> None:
    t = portcall.tensor(np.arange(6, dtype=np.int16).reshape(2, 3))
    array = np.from_dlpack(t)
    assert array.ctypes.data == t.data_ptr
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    del t
    gc.collect()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_from_dlpack_keeps_strides() -> None:
    view = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, 1::2]
    t = portcall.from_dlpack(view)
    assert t.strides == (12, 2)
    assert np.array_equal(np.from_dlpack(t), view)
    assert np.array_equal(portcall.from_dlpack(t).numpy(), view)


def test_from_dlpack_uses_a_capsule_once() -> None:
    capsule = np.arange(3).__dlpack__()
    t = portcall.from_dlpack(capsule)
    assert t.numpy().tolist() == [0, 1, 2]
    with pytest.raises(errors.ArgumentError, match="unused DLPack capsule"):
        portcall.from_dlpack(capsule)


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_capsule_unused_frees_its_tensor(versioned: bool) -> None:
    array = np.arange(3)
    gone = weakref.ref(array)
    t = echo(array)
    capsule = t.__dlpack__(max_version=(1, 0)) if versioned else t.__dlpack__()
    del t, array
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_dlpack_export_has_the_requested_version(version: Any) -> None:
    capsule = portcall.empty(3).__dlpack__(max_version=version)
    expected = "dltensor_versioned" if version and version[0] >= 1 else "dltensor"
    assert f'"{expected}"' in repr(capsule)


def test_dlpack_export_read_only_needs_a_version() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    t = portcall.from_dlpack(frozen) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else echo(frozen)
    assert t.readonly
    assert "read-only" in repr(t)
    assert not np.from_dlpack(t).flags.writeable
    assert portcall.from_dlpack(t).readonly
    with pytest.raises(BufferError, match="read-only"):
        t.__dlpack__()


def test_tensor_over_a_read_only_array_is_read_only() -> None:
    t = echo(np.frombuffer(b"\0" * 12, np.float32))
    assert t.readonly
    assert not t.numpy().flags.writeable


def test_dlpack_export_refuses_another_device() -> None:
    t = portcall.empty(3)
    assert t.__dlpack_device__() == (1, 0)
    assert t.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="on cpu:0; copy it"):
        t.__dlpack__(dl_device=(2, 0))


def test_dlpack_export_copies_on_request() -> None:
    t = portcall.tensor([1, 2, 3])
    copy = portcall.from_dlpack(t.__dlpack__(copy=True))
    assert copy.data_ptr != t.data_ptr
    assert copy.numpy().tolist() == [1, 2, 3]


def test_from_dlpack_passes_the_exporters_error_on() -> None:
    class Broken:
        def __dlpack__(self, **keywords: Any) -> Any:
            raise BufferError("not today")

    with pytest.raises(errors.ArgumentError, match=r"Broken .not today."):
        echo(Broken())
    with pytest.raises(BufferError, match="not today"):
        portcall.from_dlpack(Broken())


def test_from_dlpack_refuses_an_exporter_without_capsule() -> None:
    class Odd:
        def __dlpack__(self, **keywords: Any) -> Any:
            return 5

    with pytest.raises(errors.ArgumentError, match="DLPack capsule"):
        echo(Odd())


@pytest.mark.peers
def test_from_dlpack_torch_both_ways() -> None:
    import torch

    source = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    t = echo(source)
    assert t.data_ptr == source.data_ptr()
    assert (t.shape, str(t.dtype)) == ((2, 3), "float32")
    back = torch.from_dlpack(t)
    back[0, 0] = 42
    assert source[0, 0] == 42
    assert echo(source.t()).strides == (1, 3)
    assert str(echo(torch.zeros(2, dtype=torch.bfloat16)).dtype) == "bfloat16"
    made = torch.from_dlpack(portcall.tensor([1, 2, 3]))
    assert made.tolist() == [1, 2, 3]


@pytest.mark.peers
def test_argument_torch_tensor_without_memory_to_share_is_named(native: portcall.Module) -> None:
    import torch

    calls: list[tuple[Callable[[Any], Any], str, int]] = [
        (lambda t: native["add"](1, t), "add", 1),
        (echo, "testing.echo", 0),
    ]
    for tensor in (
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, device="meta"),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, dtype=torch.complex64).conj(),
    ):
        for call, function, position in calls:
            with pytest.raises(errors.ArgumentError) as raised:
                call(tensor)
            assert (raised.value.function, raised.value.position) == (function, position)
            assert "torch.Tensor" in raised.value.got
            assert "\n" not in str(raised.value)
            assert ("a.detach()" in str(raised.value)) == tensor.requires_grad


@pytest.mark.peers
def test_from_dlpack_tvm_ffi_both_ways() -> None:
    """In a process of its own: the leak check of this one knows nothing of the other runtime."""
    code = """
import numpy as np, portcall, tvm_ffi
array = np.arange(6, dtype=np.float32).reshape(2, 3)
theirs = tvm_ffi.from_dlpack(array)
ours = portcall.get_global_func("testing.echo")(theirs)
assert isinstance(ours, portcall.Tensor) and ours.data_ptr == array.ctypes.data
back = tvm_ffi.from_dlpack(portcall.tensor([1, 2, 3]))
assert np.from_dlpack(back).tolist() == [1, 2, 3]
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
