# SPDX-License-Identifier: Apache-2.0
"""Tensors through DLPack's table of C functions: those of torch that we take, and our own that others take."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall
from descriptions import DLTensor
from portcall import errors

echo = portcall.get_global_func("testing.echo")


# ---- What others see of ours -----------------------------------------------------------------------------------------


class Managed(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ManagedOut = ctypes.POINTER(ctypes.POINTER(Managed))


class Table(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        (
            "allocate",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(DLTensor), ManagedOut, ctypes.c_void_p, SetError),
        ),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ManagedOut)),
        ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Managed), ctypes.POINTER(ctypes.py_object))),
        ("borrow", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))),
        ("current_stream", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)),
    )


@pytest.fixture(scope="module")
def table() -> Table:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = portcall.Tensor.__dlpack_c_exchange_api__
    return Table.from_address(pointer(capsule, b"dlpack_exchange_api"))


def test_dlpack_exchange_api_has_its_version(table: Table) -> None:
    assert (table.major, table.minor, table.previous) == (1, 3, None)


def test_dlpack_exchange_api_describes_a_tensor_in_place(table: Table) -> None:
    t = portcall.tensor(np.zeros((2, 3), "int16"))
    found = DLTensor()
    assert table.borrow(t, ctypes.byref(found)) == 0
    assert found.data == t.data_ptr
    assert (found.shape[:2], found.strides[:2], found.ndim) == ([2, 3], [3, 1], 2)
    assert (found.code, found.bits, found.lanes) == (0, 16, 1)
    assert (found.device_type, found.device_id) == (1, 0)


def test_dlpack_exchange_api_keeps_the_read_only_flag(table: Table) -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    t = portcall.from_dlpack(array)
    with pytest.raises(BufferError, match="read-only"):
        table.borrow(t, ctypes.byref(DLTensor()))
    out = ctypes.POINTER(Managed)()
    assert table.from_object(t, ctypes.byref(out)) == 0
    assert out.contents.flags & 1
    out.contents.deleter(ctypes.cast(out, ctypes.c_void_p))


def test_dlpack_exchange_api_round_trip(table: Table) -> None:
    array = np.arange(4.0)
    gone = weakref.ref(array)
    out, back = ctypes.POINTER(Managed)(), ctypes.py_object()
    assert table.from_object(portcall.from_dlpack(array), ctypes.byref(out)) == 0
    del array
    assert table.to_object(out, ctypes.byref(back)) == 0
    t = back.value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(t))  # the reference that `back` was given
    assert type(t) is portcall.Tensor
    assert t.numpy().tolist() == [0, 1, 2, 3]
    del t, back
    gc.collect()
    assert gone() is None


def test_dlpack_exchange_api_allocates_a_tensor(table: Table) -> None:
    found = DLTensor()
    table.borrow(portcall.empty((2, 2)), ctypes.byref(found))
    out, said = ctypes.POINTER(Managed)(), []
    report = SetError(lambda context, kind, message: said.append((context, kind, message)))
    assert table.allocate(ctypes.byref(found), ctypes.byref(out), 5, report) == 0
    assert out.contents.tensor.data % 64 == 0
    assert out.contents.tensor.shape[:2] == [2, 2]
    out.contents.deleter(ctypes.cast(out, ctypes.c_void_p))
    found.device_type = 17  # of which there is no device, in other tests either
    assert table.allocate(ctypes.byref(found), ctypes.byref(out), 5, report) == -1
    (context, kind, message) = said[0]
    assert (context, kind) == (5, b"DeviceError")
    assert message


def test_dlpack_exchange_api_host_has_no_stream(table: Table) -> None:
    stream = ctypes.c_void_p(1)
    assert table.current_stream(1, 0, ctypes.byref(stream)) == 0
    assert stream.value is None


@pytest.mark.peers
def test_dlpack_exchange_api_with_tvm_ffi() -> None:
    import tvm_ffi

    t = portcall.tensor(np.arange(3.0))
    back = tvm_ffi.get_global_func("testing.echo")(t)
    assert type(back) is portcall.Tensor
    assert back.data_ptr == t.data_ptr


# ---- What we take of torch's -----------------------------------------------------------------------------------------


@pytest.mark.peers
def test_torch_tensor_lives_as_long_as_the_tensor_over_it() -> None:
    import torch

    source = torch.arange(6.0).reshape(2, 3)
    gone = weakref.ref(source)
    t = echo(source)
    assert (t.data_ptr, t.shape, t.strides, t.readonly) == (source.data_ptr(), (2, 3), (3, 1), False)
    assert echo(source.T).strides == (1, 3)
    assert echo(torch.zeros(())).shape == ()
    del source
    gc.collect()
    assert t.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    del t
    gc.collect()
    assert gone() is None


def torch_tensors_that_are_not_what_their_memory_says() -> list[Callable[[Any], Any]]:
    return [
        lambda torch: torch.tensor([1 + 2j]).conj(),
        lambda torch: torch.zeros(3, requires_grad=True),
        lambda torch: torch.nn.Parameter(torch.zeros(3)),
        lambda torch: torch.eye(3).to_sparse(),
        lambda torch: torch.zeros(3, device="meta"),
    ]


@pytest.mark.peers
@pytest.mark.parametrize("make", torch_tensors_that_are_not_what_their_memory_says(), ids=range(5))
def test_torch_tensor_that_is_not_its_memory_is_refused(make: Callable[[Any], Any]) -> None:
    import torch

    source = make(torch)
    for _ in range(2):  # the type is known then
        with pytest.raises(errors.ArgumentError):
            echo(source)
    assert echo(torch.tensor([1 + 2j])).numpy().tolist() == [1 + 2j]
    assert echo(torch.nn.Parameter(torch.ones(2), requires_grad=False)).numpy().tolist() == [1, 1]


@pytest.mark.peers
def test_torch_subclass_properties_are_respected() -> None:
    import torch

    class Lazy(torch.Tensor):
        @property
        def requires_grad(self) -> bool:  # type: ignore[override]
            return True

    with pytest.raises(errors.ArgumentError):
        echo(torch.zeros(3).as_subclass(Lazy))
    assert echo(torch.zeros(3)).shape == (3,)
