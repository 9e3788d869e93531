# SPDX-License-Identifier: Apache-2.0
"""Tensors of a session: every element type and layout, views, copies, arguments, and when they are freed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import portcall
from portcall import errors, rpc
from rpc.serving import Serving

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
SMALL_FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"]


@pytest.fixture
def remote(serving_functions: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(serving_functions.address, key="k", call_timeout=60) as session:
        yield session


@pytest.fixture(scope="module")
def shared(serving_functions: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(serving_functions.address, key="k", call_timeout=60) as session:
        yield session


def layouts(array: Any) -> list[Any]:
    """The array, and others that are not compact."""
    return [array, array.T, array[::2], array[:, ::-1], array[..., 1:2], np.broadcast_to(array[0], array.shape)]


# ---- Types and layouts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DTYPES, *SMALL_FLOATS])
def test_remote_tensor_round_trip_of_every_type_and_layout(remote: rpc.Session, name: str) -> None:
    dtype = getattr(ml_dtypes, name) if name in SMALL_FLOATS else np.dtype(name)
    for array in layouts(np.arange(24).reshape(2, 3, 4).astype(dtype)):
        tensor = remote.tensor(array)
        assert tensor.shape == array.shape
        fetched = tensor.numpy()
        assert fetched.dtype == array.dtype
        np.testing.assert_array_equal(fetched, array)
        np.testing.assert_array_equal(remote["testing.echo"](portcall.ReadOnly(array)).numpy(), array)


def test_local_function_refuses_a_remote_tensor_with_a_remedy(shared: rpc.Session, libraries: dict[str, Path]) -> None:
    x = shared.tensor(np.zeros(4, "float32"))
    with pytest.raises(errors.ArgumentError, match=r"\.numpy\(\)"):
        portcall.load_module(libraries["elementwise"])["add_one"](x, x)


@settings(max_examples=50)
@given(data=st.data())
def test_remote_tensor_round_trip_of_any_array(shared: rpc.Session, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)))
    if array.ndim:
        array = array[data.draw(hnp.basic_indices(array.shape))]
    array = np.asarray(array)
    fetched = shared.tensor(array).numpy()
    np.testing.assert_array_equal(fetched, array)
    assert fetched.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1, 1), (1,) * 16])
def test_remote_tensor_without_elements_or_dimensions(remote: rpc.Session, shape: tuple[int, ...]) -> None:
    array = np.full(shape, 3, "int16")
    tensor = remote.tensor(array)
    assert (tensor.shape, tensor.ndim, tensor.size, tensor.nbytes) == (shape, len(shape), array.size, array.nbytes)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert remote["demo.shape_of"](array) == ",".join(map(str, shape))


def test_remote_tensor_of_packed_elements_is_made_there_and_read_as_a_copy(remote: rpc.Session) -> None:
    with pytest.raises(errors.ArgumentError, match="dtype int4"):
        remote.tensor(np.zeros(3, ml_dtypes.int4))
    tensor = remote.empty((3,), "int4")
    assert tensor.nbytes == 2
    array = tensor.numpy()
    assert (array.shape, array.dtype, array.flags.writeable) == ((3,), ml_dtypes.int4, False)


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.array([None]), np.array(["2020-01-01"], "datetime64[D]")], ids=str
)
def test_remote_tensor_refuses_arrays_of_other_elements(remote: rpc.Session, array: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="dtype"):
        remote.tensor(array)


def test_remote_tensor_takes_numbers_and_lists(remote: rpc.Session) -> None:
    assert remote.tensor(3.5).numpy() == 3.5
    assert remote.tensor([[1, 2], [3, 4]]).numpy().tolist() == [[1, 2], [3, 4]]
    assert remote.tensor(portcall.tensor([1, 2])).numpy().tolist() == [1, 2]


def test_remote_empty_too_large_keeps_the_session(remote: rpc.Session) -> None:
    for shape in ((1 << 62,), (1 << 40, 1 << 40), (-1,)):
        with pytest.raises((errors.RPCError, ValueError, MemoryError)):
            remote.empty(shape)
    assert remote.tensor([1]).numpy().tolist() == [1]


# ---- Devices of sessions ---------------------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[rpc.Session]:
    with rpc.LocalSession() as session:
        yield session


def test_remote_device_makes_tensors_of_its_session(remote: rpc.Session) -> None:
    array = np.arange(6, dtype="int16").reshape(2, 3)
    for made in (
        portcall.tensor(array, device=remote.cpu()),
        portcall.tensor(array.tolist(), "int16", remote.cpu()),
        portcall.tensor(array).copyto(remote.cpu()),
        portcall.empty((2, 3), "int16", remote.cpu()).copyfrom(array),
        portcall.tensor(array).copyto(remote.empty((2, 3), "int16")),
        remote.tensor(array).copyto(remote.cpu()),
    ):
        assert isinstance(made, rpc.RemoteTensor)
        assert made.session is remote
        assert made.device == remote.cpu()
        np.testing.assert_array_equal(made.numpy(), array)
    back = remote.tensor(array).copyto(portcall.cpu())
    assert isinstance(back, portcall.Tensor)
    np.testing.assert_array_equal(back.numpy(), array)
    with pytest.raises(errors.RemoteError):
        portcall.empty(3, device=remote.cuda())


def test_remote_device_of_two_sessions_differ(remote: rpc.Session, other: rpc.Session) -> None:
    assert [remote.cpu() != device for device in (remote.cpu(), other.cpu(), remote.cuda())] == [False, True, True]


def test_remote_device_keeps_its_session_through_calls(remote: rpc.Session, register: Callable[..., Any]) -> None:
    device = remote.device("cuda:1")
    assert remote["testing.echo"](device) == device
    assert remote["testing.echo"](portcall.cpu()) == remote.cpu()  # the server's, of that number
    seen: list[Any] = []
    register("test.see", seen.append)
    portcall.get_global_func("test.see")(device)
    assert seen == [device]
    assert seen[0].session is remote
    with pytest.raises(TypeError, match=r"expected Device, got portcall\.rpc\.Device"):
        portcall.get_global_func("portcall.DeviceStream")(6, remote.cpu(), 0, 0)


def test_remote_objects_of_another_session_error_names_both(
    remote: rpc.Session, other: rpc.Session, kernel_library: Path
) -> None:
    echo, both = remote["testing.echo"], f"another session, with this process; .* session with {remote.name}"
    other.upload(kernel_library)
    library = other.load_module("kernels.so")
    for kind, thing in (
        ("device", other.cpu()), ("tensor", other.tensor([1.0])), ("function", other["testing.echo"]),
        ("module", library),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"argument #1 is a {kind} of {both}"):
            remote["testing.nop"](0, thing)
    assert echo(1) == 1
    with pytest.raises(ValueError, match=f"two sessions, with this process and with {remote.name}"):
        remote.tensor([1.0]).copyfrom(other.tensor([1.0]))
    for use in (remote.device, lambda device: remote.empty(3, device=device)):
        with pytest.raises(ValueError, match=f"of this process> is not of the session with {remote.name}"):
            use(other.cpu())


def test_time_evaluator_refuses_a_device_of_another_session(
    remote: rpc.Session, other: rpc.Session, kernel_library: Path
) -> None:
    remote.upload(kernel_library)
    theirs, ours = remote.load_module("kernels.so"), portcall.load_module(kernel_library)
    for device in (remote.cpu(), portcall.cpu(), "cpu"):
        theirs.time_evaluator("add", device, number=1)(1, 2)
    with pytest.raises(ValueError, match=f"of this process> cannot be used with .* the session with {remote.name}"):
        theirs.time_evaluator("add", other.cpu())
    with pytest.raises(ValueError, match=f"of {remote.name}> cannot be used with a module of this process"):
        ours.time_evaluator("add", remote.cpu())


# ---- Copies -------------------------------------------------------------------------------------------------------


def test_remote_copyto_fills_given_arrays(remote: rpc.Session) -> None:
    array = np.arange(12, dtype="float32").reshape(3, 4)
    tensor = remote.empty((3, 4))
    assert tensor.copyfrom(array) is tensor
    out = np.zeros((3, 4), "float32")
    assert tensor.numpy(out=out) is out
    np.testing.assert_array_equal(out, array)
    spread = np.zeros((3, 8), "float32")
    assert tensor.copyto(spread[:, ::2]) is not None
    np.testing.assert_array_equal(spread[:, ::2], array)
    assert not spread[:, 1::2].any()
    local = portcall.empty((3, 4), "float32")
    tensor.copyto(local)
    np.testing.assert_array_equal(local.numpy(), array)
    other = remote.empty((3, 4))
    assert tensor.copyto(other) is other
    np.testing.assert_array_equal(np.asarray(other), array)


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        (lambda _: np.zeros(4, "float32"), ValueError, r"equal shapes: \(4,\) and \(3,\)"),
        (lambda _: np.zeros(3, "float64"), TypeError, "equal data types: float64 and float32"),
        (lambda remote: remote.empty((4,)), ValueError, "equal shapes"),
        (lambda remote: remote.empty((3,), "int32"), TypeError, "equal data types"),
    ],
)
def test_remote_copyfrom_refuses_other_shapes_and_types(
    remote: rpc.Session, source: Callable[[rpc.Session], Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        remote.empty((3,)).copyfrom(source(remote))


def test_remote_call_does_not_write_to_read_only_arrays(remote: rpc.Session) -> None:
    out = np.zeros(3, "float32")
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        remote.tensor(np.ones(3, "float32")).numpy(out=out)
    assert not out.any()


def test_remote_view_is_checked_against_the_memory(remote: rpc.Session) -> None:
    tensor = remote.tensor(np.arange(8, dtype="int32"))
    np.testing.assert_array_equal(tensor.view((2, 2), byte_offset=16).numpy(), [[4, 5], [6, 7]])
    np.testing.assert_array_equal(tensor.view((4,), "int64").numpy(), np.arange(8, dtype="int32").view("int64"))
    nested = tensor.view((6,), byte_offset=8).view((2,), byte_offset=4)
    np.testing.assert_array_equal(nested.numpy(), [3, 4])
    nested.copyfrom(np.array([30, 40], "int32"))
    np.testing.assert_array_equal(tensor.numpy(), [0, 1, 2, 30, 40, 5, 6, 7])
    for shape, offset in (((9,), 0), ((1,), 32), ((2,), 28), ((1,), 1 << 62)):
        with pytest.raises(ValueError, match="past the end"):
            tensor.view(shape, byte_offset=offset)


def test_remote_view_keeps_the_memory(remote: rpc.Session) -> None:
    view = remote.tensor(np.arange(8)).view((2,), byte_offset=8)
    remote["testing.nop"]()
    np.testing.assert_array_equal(view.numpy(), [1, 2])


# ---- Arguments ----------------------------------------------------------------------------------------------------


def test_remote_call_copies_writable_arrays_back(remote: rpc.Session) -> None:
    for array in layouts(np.zeros((3, 4), "float32"))[:-1]:
        remote["demo.fill"](array, 5.0)
        assert (array == 5).all()
    local = portcall.tensor(np.zeros(3, "float32"))
    remote["demo.fill"](local, 5.0)
    np.testing.assert_array_equal(local.numpy(), [5, 5, 5])


def test_remote_call_in_arrays_are_only_sent(remote: rpc.Session) -> None:
    array = np.zeros(1000, "float32")
    frozen = array.copy()
    frozen.flags.writeable = False
    fill = remote["demo.fill"]
    before = remote.stats()["bytes_received"]
    for argument in (portcall.ReadOnly(array), frozen, portcall.ReadOnly(frozen)):
        fill(argument, 5.0)
    assert not array.any()
    assert not frozen.any()
    assert remote.stats()["bytes_received"] - before < array.nbytes


def test_remote_call_of_compiled_code_refuses_read_only_arrays(
    remote: rpc.Session, c_libraries: dict[str, Path]
) -> None:
    remote.upload(c_libraries["classic"])
    x, y = np.ones(16, "float32"), np.zeros(16, "float32")
    y.flags.writeable = False
    for library in (portcall.load_module(c_libraries["classic"]), remote.load_module(c_libraries["classic"].name)):
        add_one = library["add_one"]
        with pytest.raises(errors.ArgumentError, match="writable") as raised:
            add_one(x, y)
        assert (raised.value.function, raised.value.position) == ("add_one", 1)
        with pytest.raises(errors.ArgumentError, match="writable"):
            add_one.future(x, y).result()
        out, later = np.zeros(16, "float32"), np.zeros(16, "float32")
        add_one(portcall.ReadOnly(y), out)
        add_one.future(portcall.ReadOnly(y), later).result()
        assert (out == 1).all()
        assert (later == 1).all()
        with pytest.raises(errors.ArgumentError, match="writable"), remote.pipeline():
            add_one(y, x)
    assert not y.any()


def test_remote_call_array_given_twice_is_one_remote_array(remote: rpc.Session) -> None:
    array = np.zeros(3, "float32")
    remote["demo.twice"](array, array)
    np.testing.assert_array_equal(array, [2, 2, 2])
    remote["demo.twice"](portcall.ReadOnly(array), array)
    np.testing.assert_array_equal(array, [4, 4, 4])


def test_remote_call_that_fails_copies_nothing_back(remote: rpc.Session) -> None:
    array = np.zeros(3, "float32")
    with pytest.raises(errors.RemoteError):
        remote["demo.fill"](array, "no number")
    assert not array.any()


def test_remote_call_mixes_tensors_and_arrays(remote: rpc.Session) -> None:
    tensor, array = remote.tensor(np.zeros(3, "float32")), np.zeros(3, "float32")
    remote["demo.twice"](tensor, array)
    np.testing.assert_array_equal(tensor.numpy(), [1, 1, 1])
    np.testing.assert_array_equal(array, [1, 1, 1])


def test_remote_call_refuses_objects_of_another_session(
    remote: rpc.Session, serving_functions: Serving, kernel_library: Path
) -> None:
    with rpc.connect(serving_functions.address, key="k") as other:
        echo = other["testing.echo"]
        for thing in (remote.tensor([1]), remote["demo.functions"](), remote["demo.adder"](1), remote.system_lib()):
            with pytest.raises(ValueError, match=r"argument #0 is .* of another session"):
                echo(thing)
        with pytest.raises(ValueError, match=r"two sessions, .*; copy through the host"):
            other.tensor([1]).copyfrom(remote.tensor([1]))
        with pytest.raises(ValueError, match="session with"):
            other.empty((3,), device=remote.cpu())
        with pytest.raises(TypeError, match="module"):
            echo(portcall.load_module(kernel_library))
        with pytest.raises(TypeError, match="is the session itself"):
            echo(other.module)


def test_local_function_refuses_a_remote_tensor(remote: rpc.Session) -> None:
    def takes_arrays(x: Any) -> float:
        return float(np.asarray(x).sum())

    assert portcall.convert(takes_arrays)(remote.tensor([1.0, 2.0])) == 3.0  # Python code may fetch it


# ---- Frees --------------------------------------------------------------------------------------------------------


def test_remote_tensor_memory_is_freed_with_the_next_requests(remote: rpc.Session) -> None:
    """Each tensor is a sixteenth of the memory: if none were freed, the server would run out of it."""
    for _ in range(64):
        remote.empty((1 << 28,), "uint8")
    names = {remote["testing.echo"](n) for n in range(3)}
    assert names == {0, 1, 2}


def test_remote_tensor_thousands_are_freed_at_once(remote: rpc.Session) -> None:
    tensors = [remote.tensor([n]) for n in range(2000)]
    assert tensors[1234].numpy().tolist() == [1234]
    before = remote.stats()["requests"]
    tensors.clear()
    gc.collect()
    assert remote.stats()["requests"] == before
    for n in range(20):
        assert remote["testing.echo"](n) == n


def test_remote_tensor_keeps_its_session(serving_functions: Serving) -> None:
    tensor = rpc.connect(serving_functions.address, key="k").tensor([1, 2])
    gc.collect()
    assert tensor.numpy().tolist() == [1, 2]
    assert tensor.session.name == serving_functions.address
    assert str(tensor.device) == "cpu:0"
    with tensor.session as session:  # type: ignore[attr-defined]
        assert repr(tensor) == f"<remote tensor int64[2] on cpu:0 of {session.name}>"
    with pytest.raises(errors.SessionClosedError):
        tensor.numpy()


def test_remote_tensor_large_copies_use_no_buffer(remote: rpc.Session) -> None:
    array = np.random.default_rng(0).integers(0, 256, 64 << 20, "uint8")
    tensor = remote.tensor(array)
    out = np.empty_like(array)
    tensor.numpy(out=out)
    assert (out == array).all()
    assert remote.stats()["requests"] < 10
