# SPDX-License-Identifier: Apache-2.0
"""Tensors of other packages on devices with streams, such as torch's on CUDA.

The torch that tests install has no CUDA: a class stands in for its tensors, by the same two interfaces (``__dlpack__``
and the exchange table of DLPack 1.3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import portcall
from devices.conftest import FakeDriver

DEVICE, HOST = portcall.cuda(0), portcall.cpu()


class Table(ctypes.Structure):
    """DLPackExchangeAPI; only what is used has its type."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)),
        ("to_object", ctypes.c_void_p),
        ("borrow", ctypes.c_void_p),
        (
            "current_stream",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
        ),
    )


def table_of(kind: type) -> Table:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return Table.from_address(pointer(kind.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))  # type: ignore[attr-defined]


OWN = table_of(portcall.Tensor)


class Plain:
    """A tensor with ``__dlpack__`` alone.

    Attributes:
        asked: the streams that it was asked to order its work for.
    """

    def __init__(self, inner: portcall.Tensor) -> None:
        self.inner = inner
        self.asked: list[Any] = []

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.asked.append(stream)
        return self.inner.__dlpack__(stream=-1, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()


class Foreign(Plain):
    """A tensor with an exchange table as well, whose package has a current stream."""

    current: ClassVar[int] = 0


def _from_object(tensor: Foreign, out: int) -> int:
    return int(OWN.from_object(tensor.inner, out))


def _current_stream(device_type: int, device_id: int, out: Any) -> int:
    out[0] = Foreign.current or None
    return 0


foreign_table = Table(1, 3, None, None, Table._fields_[4][1](_from_object), None, None,
                      Table._fields_[7][1](_current_stream))  # fmt: skip
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
Foreign.__dlpack_c_exchange_api__ = _new_capsule(  # type: ignore[attr-defined]
    ctypes.addressof(foreign_table), b"dlpack_exchange_api", None
)


def current(*_: Any) -> int:
    """The current stream, as a function that is called with tensors sees it."""
    number: int = portcall.get_global_func("portcall.DeviceStream")(5, DEVICE, 0, 0)
    return number


@pytest.fixture
def theirs(driver: FakeDriver) -> Iterator[portcall.Stream]:
    stream = portcall.Stream(DEVICE)
    Foreign.current = stream.handle
    yield stream
    Foreign.current = 0


@pytest.mark.parametrize("count", [1, 12])
def test_call_runs_on_the_current_stream_of_the_tensors_package(theirs: portcall.Stream, count: int) -> None:
    tensor = Foreign(portcall.empty((2,), "int64", DEVICE))
    assert portcall.convert(current)(*[tensor] * count) == theirs.handle
    assert tensor.asked == []  # nobody has to wait
    assert current() == 0


def test_stream_is_put_back_after_an_error(theirs: portcall.Stream) -> None:
    seen = []

    def fail(_: portcall.Tensor) -> None:
        seen.append(current())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        portcall.convert(fail)(Foreign(portcall.empty((2,), "int64", DEVICE)))
    assert (seen, current()) == ([theirs.handle], 0)


def test_stream_that_the_user_chose_stays_and_the_package_orders_its_work_for_it(theirs: portcall.Stream) -> None:
    ours = portcall.Stream(DEVICE)
    plain, foreign = Plain(portcall.empty((2,), "int64", DEVICE)), Foreign(portcall.empty((2,), "int64", DEVICE))
    with ours:
        assert portcall.convert(current)(plain, foreign) == ours.handle
        assert (plain.asked, foreign.asked) == ([ours.handle], [ours.handle])
        with theirs:
            assert portcall.convert(current)(foreign) == theirs.handle
    assert foreign.asked == [ours.handle]


def test_second_package_orders_its_work_for_the_stream_of_the_first(theirs: portcall.Stream) -> None:
    plain = Plain(portcall.empty((2,), "int64", DEVICE))
    assert portcall.convert(current)(Foreign(portcall.empty((2,), "int64", DEVICE)), plain) == theirs.handle
    assert plain.asked == [theirs.handle]


def test_tensor_in_a_list_is_ordered_for_the_default_stream(theirs: portcall.Stream) -> None:
    tensor = Foreign(portcall.empty((2,), "int64", DEVICE))
    assert portcall.convert(current)([tensor]) == 0
    assert tensor.asked == [None]


def test_tensor_of_the_host_has_no_stream(theirs: portcall.Stream) -> None:
    plain, foreign = Plain(portcall.empty((2,), "int64", HOST)), Foreign(portcall.empty((2,), "int64", HOST))
    with portcall.Stream(DEVICE) as ours:
        assert portcall.convert(current)(plain, foreign) == ours.handle
        portcall.from_dlpack(plain)
    assert plain.asked == [None, None]


def test_from_dlpack_orders_for_the_current_stream(driver: FakeDriver) -> None:
    plain = Plain(portcall.empty((2,), "int64", DEVICE))
    portcall.from_dlpack(plain)
    with portcall.Stream(DEVICE) as ours:
        portcall.from_dlpack(plain)
    assert plain.asked == [None, ours.handle]
