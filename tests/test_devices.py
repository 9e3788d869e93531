# SPDX-License-Identifier: Apache-2.0
"""Devices, and data on them: proved with a fake accelerator whose memory the host cannot read."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors

EXT = portcall.device("ext_dev:0")
OTHER = portcall.device("ext_dev:1")

pytestmark = pytest.mark.usefixtures("fake_device")


def fake(name: str, *arguments: Any) -> Any:
    return portcall.get_global_func(f"portcall_test.fake.{name}")(*arguments)


def count(what: str) -> int:
    counted: int = fake("count", what)
    return counted


@pytest.fixture(autouse=True)
def _device_is_left_clean() -> Iterator[None]:
    before = count("blocks")  # those that the traceback of a failed test holds on to
    yield
    fake("set_capacity", 64 << 20)
    fake("fail_copies", False)
    assert count("blocks") == before
    assert count("streams") == 0


# ---- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "number", "index"),
    [
        (("cpu",), "cpu", 1, 0),
        (("cpu:0",), "cpu", 1, 0),
        (("cuda:1",), "cuda", 2, 1),
        (("cuda", 3), "cuda", 2, 3),
        (("gpu:2",), "cuda", 2, 2),
        (("llvm",), "cpu", 1, 0),
        (("cl:1",), "opencl", 4, 1),
        (("ext_dev:1",), "ext_dev", 12, 1),
        ((1,), "cpu", 1, 0),
        ((12, 1), "ext_dev", 12, 1),
        ((portcall.cpu(),), "cpu", 1, 0),
    ],
)
def test_device_accepts_every_usual_name(arguments: Any, kind: str, number: int, index: int) -> None:
    device = portcall.device(*arguments)
    assert (device.kind, device.device_type, device.device_id) == (kind, number, index)
    assert str(device) == f"{kind}:{index}"
    assert repr(device) == f"portcall.device('{kind}:{index}')"


def test_device_compares_by_value() -> None:
    assert portcall.device("cuda:1") == portcall.cuda(1)
    assert portcall.cuda(1) != portcall.cuda(0)
    assert portcall.cpu() != "cpu:0"  # type: ignore[comparison-overlap]
    assert len({portcall.cpu(), portcall.device("cpu:0"), portcall.cuda()}) == 2
    assert pickle.loads(pickle.dumps(portcall.cuda(1))) == portcall.cuda(1)
    assert copy.deepcopy(EXT) == EXT


def test_device_of_an_unnamed_kind_shows_its_number() -> None:
    assert str(portcall.device(99, 2)) == "device(99):2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tpu",), "unknown device kind 'tpu' in 'tpu'; kinds are cpu, cuda"),
        (("",), "unknown device kind ''"),
        (("CPU",), "unknown device kind 'CPU'"),
        (("cpu:",), "give one index"),
        (("cpu:x",), "give one index"),
        (("cpu:-1",), "give one index"),
        (("cpu:0:0",), "give one index"),
        (("cpu:0", 1), "give one index"),
    ],
)
def test_device_refuses_unknown_names(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        portcall.device(*arguments)


@pytest.mark.parametrize("value", [None, 1.5, b"cpu", object(), ["cpu"]])
def test_device_refuses_other_values(value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="device"):
        portcall.device(value)


# ---- Attributes ------------------------------------------------------------------------------------------------------


def test_cpu_exists_and_has_attributes() -> None:
    cpu = portcall.cpu()
    assert cpu.exist is True
    assert cpu.device_name
    assert cpu.multi_processor_count == len(os.sched_getaffinity(0))
    assert cpu.total_global_memory is not None
    assert cpu.available_global_memory is not None
    assert 0 < cpu.available_global_memory <= cpu.total_global_memory
    assert cpu.max_threads_per_block is None
    assert cpu.warp_size is None
    assert cpu.compute_version is None
    cpu.sync()


def test_cpu_has_one_index() -> None:
    assert portcall.cpu(1).exist is False
    with pytest.raises(errors.DeviceError, match="there is one host, cpu:0; got cpu:1"):
        portcall.empty(3, device=portcall.cpu(1))


def test_device_of_a_registered_kind_has_attributes() -> None:
    assert EXT.exist is True
    assert portcall.device("ext_dev:2").exist is False
    assert EXT.device_name == "fake accelerator"
    assert EXT.compute_version == "9.0"
    assert EXT.max_threads_per_block == 1024
    assert EXT.warp_size == 32
    assert EXT.total_global_memory == 64 << 20
    block = portcall.empty(1 << 20, "uint8", EXT)
    assert EXT.available_global_memory == (64 << 20) - block.nbytes
    assert EXT.multi_processor_count is None


def test_device_of_an_unregistered_kind_does_not_exist() -> None:
    assert portcall.device("vulkan:0").exist is False
    for use in (lambda d: d.sync(), lambda d: d.device_name, lambda d: portcall.empty(3, device=d)):
        with pytest.raises(errors.DeviceError, match="no support for device kind 'vulkan'"):
            use(portcall.device("vulkan:0"))  # type: ignore[no-untyped-call]


def test_device_kinds_are_listed() -> None:
    assert {1, 12} <= set(portcall.get_global_func("portcall.DeviceTypes")())


def test_device_kind_is_registered_once() -> None:
    with pytest.raises(errors.AlreadyRegisteredError, match="the device kind ext_dev is already registered"):
        fake("register_again")


@pytest.mark.parametrize(
    ("device_type", "struct_size", "message"),
    [
        (0, 100, "device type 0 is not between 1 and 127"),
        (-5, 100, "device type -5 is not between"),
        (128, 100, "device type 128 is not between"),
        (77, 8, r"the table of device\(77\) is too short: set struct_size"),
        (77, -1, r"the table of device\(77\) lacks get_attr, alloc, free or copy"),
    ],
)
def test_device_register_refuses_incomplete_tables(device_type: int, struct_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fake("register_type", device_type, struct_size)


def test_set_device_is_called_by_compiled_code() -> None:
    portcall.get_global_func("__tvm_set_device")(12, 1)
    assert count("current") == 1
    portcall.get_global_func("__tvm_set_device")(1, 0)
    with pytest.raises(errors.DeviceError):
        portcall.get_global_func("__tvm_set_device")(7, 0)


# ---- Memory and copies -----------------------------------------------------------------------------------------------


def test_empty_allocates_and_frees_device_memory() -> None:
    before = count("blocks")
    t = portcall.empty((10, 10), device=EXT)
    assert t.device == EXT
    assert repr(t) == "<portcall.Tensor float32[10, 10] on ext_dev:0>"
    assert count("blocks") == before + 1
    del t
    assert count("blocks") == before


def test_tensor_goes_to_the_device_and_comes_back() -> None:
    source = np.arange(1000, dtype=np.int64).reshape(10, 100)
    t = portcall.tensor(source, device="ext_dev:0")
    assert np.array_equal(t.numpy(), source)
    assert t.numpy() is not t.numpy()


def test_numpy_of_a_device_tensor_is_a_copy() -> None:
    t = portcall.tensor([1, 2, 3], device=EXT)
    t.numpy()[:] = 0
    assert t.numpy().tolist() == [1, 2, 3]
    assert np.asarray(t).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="on ext_dev:0 cannot become an array without a copy"):
        t.__array__(copy=False)


def test_copyto_goes_from_device_to_device() -> None:
    first = portcall.tensor(np.arange(50), device=EXT)
    second = first.copyto(OTHER)
    assert second.device == OTHER
    third = portcall.empty(50, "int64", EXT)
    third.copyfrom(second)
    assert third.numpy().tolist() == list(range(50))


def test_copyfrom_on_one_device_is_asynchronous_until_read() -> None:
    first = portcall.tensor(np.arange(5), device=EXT)
    second = portcall.empty(5, "int64", EXT)
    second.copyfrom(first)
    assert count("pending") == 1
    EXT.sync()
    assert count("pending") == 0
    assert second.numpy().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[::-1], np.s_[:, 1:3], np.s_[2]], ids=str)
def test_copyto_takes_strided_host_arrays(view: Any) -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    t = portcall.tensor(base[view], device=EXT)
    assert np.array_equal(t.numpy(), base[view])
    target = np.zeros_like(base)
    t.copyto(target[view])
    expected = np.zeros_like(base)
    expected[view] = base[view]
    assert np.array_equal(target, expected)
    out = np.zeros_like(base)[view]
    assert np.array_equal(t.numpy(out=out), base[view])


def test_copyfrom_part_of_a_device_tensor_uses_its_offset(fake_device: portcall.Module) -> None:
    whole = portcall.tensor(np.arange(10, dtype=np.float32), device=EXT)
    part = fake_device["part_of"](whole, 3, 4)
    assert part.shape == (4,)
    assert part.data_ptr == whole.data_ptr + 12
    assert part.numpy().tolist() == [3, 4, 5, 6]
    part.copyfrom(np.full(4, 9, np.float32))
    assert whole.numpy().tolist() == [0, 1, 2, 9, 9, 9, 9, 7, 8, 9]
    assert part.copyto(OTHER).numpy().tolist() == [9, 9, 9, 9]
    del whole
    assert part.numpy().tolist() == [9, 9, 9, 9]


def test_copy_of_an_empty_device_tensor_copies_nothing() -> None:
    before = count("copy")
    t = portcall.tensor(np.zeros((0, 4)), device=EXT)
    assert t.numpy().shape == (0, 4)
    assert count("copy") == before


@pytest.mark.parametrize("shape", [(), (1,), (3, 0, 2), (2, 3, 4, 5)])
def test_tensor_of_every_shape_goes_to_the_device(shape: tuple[int, ...]) -> None:
    source = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)
    assert np.array_equal(portcall.tensor(source, device=EXT).numpy(), source)


def test_copy_checks_shapes_and_types_before_the_device() -> None:
    t, before = portcall.empty(4, device=EXT), count("copy")
    with pytest.raises(ValueError, match="equal shapes"):
        t.copyfrom(np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="equal data types"):
        t.copyto(np.zeros(4, np.int32))
    assert count("copy") == before


# ---- Failures --------------------------------------------------------------------------------------------------------


def test_empty_beyond_device_memory_is_a_memory_error() -> None:
    fake("set_capacity", 1000)
    with pytest.raises(MemoryError, match="ext_dev:0 has no 4000 bytes left"):
        portcall.empty(1000, device=EXT)
    assert portcall.empty(100, device=EXT).nbytes == 400


def test_empty_on_a_missing_device_index_is_a_device_error() -> None:
    with pytest.raises(errors.DeviceError, match="there is no device ext_dev:2; there are 2"):
        portcall.empty(3, device="ext_dev:2")


def test_copy_raises_the_devices_error() -> None:
    t, other = portcall.tensor([1, 2], device=EXT), portcall.empty(2, "int64", OTHER)
    fake("fail_copies", True)
    for use in (t.numpy, lambda: t.copyfrom([3, 4]), lambda: t.copyto(other), lambda: portcall.tensor([1], device=EXT)):
        with pytest.raises(errors.DeviceError, match="the bus is on fire"):
            use()
    fake("fail_copies", False)
    assert t.numpy().tolist() == [1, 2]


def test_from_dlpack_of_numpy_refuses_device_memory() -> None:
    t = portcall.empty(3, device=EXT)
    assert t.__dlpack_device__() == (12, 0)
    with pytest.raises((BufferError, RuntimeError), match=r"(?i)device"):
        np.from_dlpack(t)


# ---- Calls -----------------------------------------------------------------------------------------------------------


def test_kernel_of_the_device_uses_its_memory(fake_device: portcall.Module) -> None:
    x = portcall.tensor(np.arange(6, dtype=np.float32), device=EXT)
    y = portcall.empty(6, device=EXT)
    fake_device["add_one"](x, y)
    assert count("pending") == 1
    assert y.numpy().tolist() == [1, 2, 3, 4, 5, 6]


def test_alignment_policy_ignores_device_tensors(fake_device: portcall.Module) -> None:
    whole = portcall.tensor(np.arange(8, dtype=np.float32), device=EXT)
    part = fake_device["part_of"](whole, 1, 4)
    assert part.data_ptr % 64 != 0
    before = portcall.alignment_copy_stats()
    fake_device["add_one"](part, part)
    assert portcall.alignment_copy_stats() == before
    assert whole.numpy().tolist() == [0, 2, 3, 4, 5, 5, 6, 7]


def test_kernel_refuses_tensors_of_another_device(fake_device: portcall.Module) -> None:
    x, y = portcall.empty(3, device=EXT), portcall.empty(3, device=OTHER)
    with pytest.raises(ValueError, match="expected tensors on one ext_dev device, got ext_dev:0 and ext_dev:1"):
        fake_device["add_one"](x, y)
    with pytest.raises(ValueError, match="got cpu:0 and cpu:0"):
        fake_device["add_one"](np.zeros(3, np.float32), np.zeros(3, np.float32))


def test_kernel_on_the_host_refuses_device_tensors(native: portcall.Module) -> None:
    with pytest.raises(ValueError, match=r"^fill\(\): argument #0: expected a tensor in the host's memory, got one on"):
        native["fill"](portcall.empty(3, device=EXT), 1.0)


def test_call_passes_device_tensors_unchanged() -> None:
    t = portcall.tensor([1, 2, 3], device=EXT)
    echo = portcall.get_global_func("testing.echo")
    assert echo(t).same_as(t)
    assert echo([t])[0].device == EXT
    assert portcall.get_global_func("testing.apply")(lambda x: x.numpy().sum(), t) == 6


# ---- Streams ---------------------------------------------------------------------------------------------------------


def test_stream_of_the_thread_gets_the_work(fake_device: portcall.Module) -> None:
    x = portcall.tensor(np.zeros(3, np.float32), device=EXT)
    fake("enter_stream", EXT)
    try:
        fake_device["add_one"](x, x)
        in_other_thread: list[int] = []

        def sync_in_other_thread() -> None:
            EXT.sync()  # of the default stream, which has nothing to do
            in_other_thread.append(count("pending"))

        thread = threading.Thread(target=sync_in_other_thread)
        thread.start()
        thread.join()
        assert in_other_thread == [1]
        EXT.sync()
        assert count("pending") == 0
        assert x.numpy().tolist() == [1, 1, 1]
    finally:
        fake("leave_stream", EXT)


def test_stream_is_per_device(fake_device: portcall.Module) -> None:
    x = portcall.tensor(np.zeros(2, np.float32), device=OTHER)
    fake("enter_stream", EXT)
    try:
        fake_device["add_one"](x, x)
        EXT.sync()
        assert count("pending") == 1
        OTHER.sync()
        assert count("pending") == 0
    finally:
        fake("leave_stream", EXT)
    assert x.numpy().tolist() == [1, 1]


def test_copyto_the_host_waits_for_the_stream(fake_device: portcall.Module) -> None:
    fake("enter_stream", EXT)
    try:
        x = portcall.tensor(np.arange(4, dtype=np.float32), device=EXT)
        for _ in range(3):
            fake_device["add_one"](x, x)
        assert x.numpy().tolist() == [3, 4, 5, 6]
        target = np.zeros(8, np.float32)[::2]
        fake_device["add_one"](x, x)
        x.copyto(target)
        assert target.tolist() == [4, 5, 6, 7]
    finally:
        fake("leave_stream", EXT)
