# SPDX-License-Identifier: Apache-2.0
"""CUDA, by a fake driver and compiler (tests/native/fake_cuda.cc, fake_nvrtc.cc), with libraries that TVM compiled."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import portcall
from devices.conftest import FakeDriver
from devices.payloads import BUFFER, INT64, payload, two
from portcall import errors, graph, rpc

DEVICE, OTHER, HOST = portcall.cuda(0), portcall.cuda(1), portcall.device("cuda_host:0")
pytestmark = pytest.mark.usefixtures("driver")


def random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).random(shape, "float32")


def on_device(array: Any, device: portcall.Device = DEVICE) -> portcall.Tensor:
    return portcall.tensor(array, device=device)


def empty(*shape: int, device: portcall.Device = DEVICE) -> portcall.Tensor:
    return portcall.empty(shape, "float32", device)


def load(data: bytes) -> portcall.Module:
    """A module whose kernels are called without host code, which would choose the device."""
    portcall.get_global_func("__tvm_set_device")(DEVICE.device_type, DEVICE.device_id)
    module = portcall.get_global_func("ffi.Module.load_from_bytes.cuda")(data)
    assert isinstance(module, portcall.Module)
    return module


@pytest.fixture
def lib(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["cuda"])


# ---- Devices ---------------------------------------------------------------------------------------------------------


def test_device_has_the_attributes_of_the_driver() -> None:
    assert DEVICE.exist
    assert not portcall.cuda(2).exist
    assert DEVICE.device_name == "fake GPU 0"
    assert OTHER.device_name == "fake GPU 1"
    assert DEVICE.compute_version == "9.0"
    assert (DEVICE.warp_size, DEVICE.multi_processor_count, DEVICE.max_threads_per_block) == (32, 4, 1024)
    assert DEVICE.total_global_memory == 1 << 30
    before = DEVICE.available_global_memory or 0
    tensor = empty(1024)
    assert DEVICE.available_global_memory == before - 4096
    del tensor
    assert HOST.exist


def test_empty_on_a_device_that_does_not_exist_is_a_device_error() -> None:
    with pytest.raises(errors.DeviceError, match="cuda:7"):
        empty(4, device=portcall.cuda(7))


def test_empty_of_more_than_the_device_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        empty(1 << 40)


USE = """
import os, portcall
print(portcall.cuda().exist)
try:
    portcall.empty((4,), "float32", portcall.cuda())
except portcall.errors.DeviceError as error:
    print(error)
"""


def run(program: str, variables: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return done.stdout


def test_cuda_without_a_driver_is_a_device_error_that_names_a_package() -> None:
    text = run(USE, {"PORTCALL_LIBCUDA": "/nowhere/libcuda.so"})
    assert text.startswith("False")
    assert "/nowhere/libcuda.so" in text
    assert "nvidia-driver" in text


def test_driver_without_a_device_says_so(cuda_variables: dict[str, str]) -> None:
    text = run(USE, {**cuda_variables, "FAKE_CUDA_NO_DEVICE": "1"})
    assert text.startswith("False")
    assert "CUDA_ERROR_NO_DEVICE" in text


def test_nothing_is_initialized_before_a_device_is_used(
    cuda_variables: dict[str, str], libraries: dict[str, Path]
) -> None:
    program = f"""
import ctypes, portcall
lib = portcall.load_module({str(libraries["cuda"])!r})
assert lib.imported_modules[0].list_function_names()
print(ctypes.CDLL({cuda_variables["PORTCALL_LIBCUDA"]!r}).fake_cuda_calls())
"""
    assert run(program, cuda_variables).strip() == "0"


def test_doctor_shows_devices_and_the_compiler(cuda_variables: dict[str, str]) -> None:
    program = "from portcall.cli import main; main()"
    report = json.loads(run(program, cuda_variables, "doctor", "--json"))
    found = {device["name"]: device for device in report["devices"]}
    assert (found["cuda:0"]["driver"], found["cuda:0"]["units"], found["cuda:0"]["generation"]) == ("12.9", 4, "9.0")
    assert found["cuda:1"]["memory"] == 1 << 30
    assert report["nvrtc"] == "12.9"
    report = json.loads(run(program, {**cuda_variables, "PORTCALL_LIBNVRTC": "/nowhere"}, "doctor", "--json"))
    assert any("nvidia-cuda-nvrtc" in line for line in report["suggestions"])


def test_context_of_others_stays_current(driver: FakeDriver) -> None:
    own = driver.current()
    other = driver.context(1)
    driver.set_current(other)
    try:
        assert on_device([1, 2]).numpy().tolist() == [1, 2]
        assert driver.current() == other
    finally:
        driver.set_current(own)


# ---- Memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [DEVICE, OTHER, HOST], ids=str)
def test_copies_go_to_each_kind_of_memory_and_back(target: portcall.Device) -> None:
    array = np.arange(1000, dtype="int32")
    tensor = on_device(array)
    there = portcall.empty((1000,), "int32", target).copyfrom(tensor)
    back = portcall.empty((1000,), "int32", OTHER).copyfrom(there)
    np.testing.assert_array_equal(back.numpy(), array)


def test_view_begins_at_any_byte_and_keeps_its_base(lib: portcall.Module) -> None:
    array = random(256)
    base = on_device(array)
    view, out = base[16:80], empty(64)  # 64 bytes, which compiled code asks for
    del base
    lib["add"](view, view, out)
    np.testing.assert_array_equal(out.numpy(), 2 * array[16:80])


# ---- Kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 64, 1000])
def test_add_of_any_length_is_right(lib: portcall.Module, n: int) -> None:
    x, y, out = random(n), random(n)[::-1].copy(), empty(n)
    lib["add"](on_device(x), on_device(y), out)
    np.testing.assert_array_equal(out.numpy(), x + y)


def test_matmul_over_two_axes_is_right(lib: portcall.Module) -> None:
    x, y, out = random(64, 128), random(128, 96), empty(64, 96)
    lib["matmul"](on_device(x), on_device(y), out)
    np.testing.assert_allclose(out.numpy(), x @ y, rtol=1e-5)


@pytest.mark.parametrize("device", [DEVICE, OTHER], ids=str)  # the compiler knows the first one's generation only
@pytest.mark.parametrize("name", ["cuda_two", "cuda_dynamic"])
def test_workspace_shared_memory_and_scalars_are_right(
    libraries: dict[str, Path], name: str, device: portcall.Device
) -> None:
    x, out = random(256), empty(256, device=device)
    portcall.load_module(libraries[name])["two"](on_device(x, device), out, 3, 2.5, 7)
    np.testing.assert_allclose(out.numpy(), two(x, 3, 7), rtol=1e-6)


def test_one_kernel_is_called_from_several_threads(lib: portcall.Module) -> None:
    x, wrong = random(256), list[int]()

    def work(number: int) -> None:
        source, out = on_device(x * number), empty(256)
        for _ in range(50):
            lib["add"](source, source, out)
            if not np.array_equal(out.numpy(), 2 * (x * number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# A kernel that fills n numbers with the last one, by way of dynamic shared memory.
SHARED = b"""
extern "C" __global__ void k(long long* A, long long n) {
  extern __shared__ long long buffer[];
  for (int i = 0; i < n; ++i) buffer[i] = n;
  for (int i = 0; i < n; ++i) A[i] = buffer[i];
}
"""


def test_launch_with_more_than_48_kib_of_shared_memory_is_permitted() -> None:
    module = load(payload(SHARED, b"k", (b"blockIdx.x", b"tirx.use_dyn_shared_memory"), b"cuda", (BUFFER, INT64)))
    for nbytes in (64 << 10, 1 << 10, 96 << 10):
        n = nbytes // 8
        out = portcall.empty((n,), "int64", DEVICE)
        module["k"](out, n, 1, nbytes)
        assert (out.numpy() == n).all()


STEP = b'extern "C" __global__ void k(long long* A) { A[blockIdx.x] = gridDim.x; }'


def test_cooperative_dependent_and_cluster_launches_have_their_attributes(driver: FakeDriver) -> None:
    flags = (b"tirx.use_cooperative_launch", b"tirx.use_programtic_dependent_launch")
    axes = (b"blockIdx.x", b"clusterCtaIdx.x", b"clusterCtaIdx.y", b"preferredClusterCtaIdx.x")
    out = portcall.empty((4,), "int64", DEVICE)
    load(payload(STEP, b"k", (*axes, *flags), b"cuda"))["k"](out, 4, 2, 1, 4)
    assert out.numpy().tolist() == [4] * 4
    assert driver.attributes() == "4=2x1x1 11=4x1x1 2=1 6=1"


@pytest.mark.parametrize("form", ["ptx", "cubin", "fatbin"])
def test_images_that_a_compiler_made_are_given_to_the_driver_as_they_are(
    form: str, cuda_variables: dict[str, str]
) -> None:
    out = portcall.empty((4,), "int64", DEVICE)
    load(payload(image_of(STEP, cuda_variables), b"k", (b"blockIdx.x",), form.encode()))["k"](out, 4)
    assert out.numpy().tolist() == [4] * 4


# Adds one to the exponent of a bfloat16.
DOUBLE = b'extern "C" __global__ void k(unsigned short* A) { A[blockIdx.x] = A[blockIdx.x] + 128; }'


def test_kernel_computes_with_bfloat16() -> None:
    values = np.array([1, -2.5, 7e37, 2.0**-120], ml_dtypes.bfloat16)
    x = on_device(values)
    load(payload(DOUBLE, b"k", (b"blockIdx.x",), b"cuda"))["k"](x, 4)
    assert x.dtype == "bfloat16"
    np.testing.assert_array_equal(x.numpy(), values * 2)


# A kernel that writes what is in a tensor map, which the fake driver fills with its arguments.
MAP = b"""
extern "C" __global__ void k(const __grid_constant__ CUtensorMap map, unsigned long long* A) {
  for (int i = 0; i < 16; ++i) A[i] = map.opaque[i];
}
"""


def test_tensor_map_is_encoded_and_passed_by_value() -> None:
    out, data = portcall.empty((16,), "int64", DEVICE), on_device(random(8, 4))
    memory = ctypes.create_string_buffer(192)
    place = ctypes.c_void_p((ctypes.addressof(memory) + 63) // 64 * 64)
    encode = portcall.get_global_func("runtime.cuTensorMapEncodeTiled")
    encode(place, "float32", 2, ctypes.c_void_p(data.data_ptr), 4, 8, 16, 2, 3, 1, 1, 0, 3, 2, 0)
    load(payload(MAP, b"k", (b"blockIdx.x",), b"cuda", (BUFFER, BUFFER), (0,)))["k"](place, out, 1)
    address, *rest = out.numpy().tolist()
    assert address == data.data_ptr
    assert rest == [7, 4, 8, 16, 0, 2, 3, 1, 1, 0, 3, 2, 0, 0, 0]  # type, extents, stride, box, steps, modes


def test_tensor_map_of_a_wrong_rank_or_type_is_a_value_error() -> None:
    encode = portcall.get_global_func("runtime.cuTensorMapEncodeTiled")
    with pytest.raises(ValueError, match="rank 6"):
        encode(None, "float32", 6, None)
    with pytest.raises(ValueError, match="multiple of 64"):
        encode(ctypes.c_void_p(72), "float32", 1, None, 4, 2, 1, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="int16x2"):
        encode(ctypes.c_void_p(64), "int16x2", 1, None, 4, 2, 1, 0, 0, 0, 0)


def test_time_evaluator_asks_the_device(lib: portcall.Module, driver: FakeDriver) -> None:
    x, out = on_device(random(64, 128)), empty(64, 96)
    result = lib.time_evaluator("matmul", DEVICE, number=3, repeat=2)(x, on_device(random(128, 96)), out)
    assert len(result.results) == 2
    assert all(0 < seconds < 10 for seconds in result.results)


# ---- Modules ---------------------------------------------------------------------------------------------------------


def test_source_that_the_compiler_refuses_is_a_compile_error_with_its_log() -> None:
    module = load(payload(b'extern "C" __global__ void k(float* A) { nonsense; }', form=b"cuda"))
    assert module.list_function_names() == ["k"]
    with pytest.raises(errors.CompileError, match="nonsense"):
        module["k"](None, 1)


def test_source_without_a_compiler_is_a_compile_error_that_names_a_package(cuda_variables: dict[str, str]) -> None:
    program = f"""
import portcall
portcall.cuda().exist
try:
    portcall.get_global_func("ffi.Module.load_from_bytes.cuda")({payload(STEP, form=b"cuda")!r})["k"](None, 1)
except portcall.errors.CompileError as error:
    print(error)
"""
    text = run(program, {**cuda_variables, "PORTCALL_LIBNVRTC": "/nowhere/libnvrtc.so"})
    assert "/nowhere/libnvrtc.so" in text
    assert "pip install nvidia-cuda-nvrtc" in text


def test_ptx_that_the_driver_refuses_is_a_compile_error_with_its_log() -> None:
    with pytest.raises(errors.CompileError, match=r"no \.version directive"):
        load(payload(b"nonsense", form=b"ptx"))["k"](None, 1)


def test_ptx_goes_to_the_driver_as_it_is() -> None:
    module = load(payload(b".version 8.0\n.target sm_80\n.entry k", form=b"ptx"))
    with pytest.raises(errors.DeviceError, match="NO_BINARY_FOR_GPU"):  # the fake driver runs no PTX
        module["k"](None, 1)


def test_module_goes_when_its_kernels_have_ended(driver: FakeDriver) -> None:
    source = b"""
#include <chrono>
extern "C" __global__ void k(long long* A) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); A[0] = 7; }
"""
    out = portcall.empty((1,), "int64", DEVICE)
    before = driver.live()
    load(payload(source, form=b"cuda"))["k"](out, 1)  # and the module is gone
    assert driver.live() == before
    assert driver.mistakes() == 0
    assert out.numpy().tolist() == [7]


# ---- Errors of the driver --------------------------------------------------------------------------------------------


def use_everything(modules: list[bytes]) -> None:
    """Call each function of the driver that does work."""
    step, shared = (load(module)["k"] for module in modules)
    x, out = on_device(np.arange(4)), portcall.empty((4,), "int64", DEVICE)
    there, host = portcall.empty((4,), "int64", OTHER), portcall.empty((4,), "int64", HOST)
    stream, second = portcall.Stream(DEVICE), portcall.Stream(DEVICE)
    start, end = portcall.Event(DEVICE), portcall.Event(DEVICE)
    start.record(stream)
    with stream:
        x.copyto(out)
        step(out, 4, 16)
        second.wait(stream)
        shared(x, 4, 1, 64 << 10)
    end.record(stream)
    second.wait(end)
    second.sync()
    assert start.seconds_until(end) >= 0
    end.sync()
    there.copyfrom(out)
    host.copyfrom(there)
    assert host.numpy().tolist() == [4] * 4
    load(modules[0]).time_evaluator("k", DEVICE, number=1)(out, 4, 16)
    DEVICE.sync()
    assert DEVICE.device_name
    assert DEVICE.available_global_memory
    assert DEVICE.total_global_memory
    assert DEVICE.compute_version
    assert DEVICE.driver_version
    place = ctypes.create_string_buffer(192)
    portcall.get_global_func("runtime.cuTensorMapEncodeTiled")(
        ctypes.c_void_p((ctypes.addressof(place) + 63) // 64 * 64), "float32", 1, None, 4, 2, 1, 0, 0, 0, 0
    )


def image_of(source: bytes, cuda_variables: dict[str, str]) -> bytes:
    """Compile kernels, with the fake compiler."""
    compiler = ctypes.CDLL(cuda_variables["PORTCALL_LIBNVRTC"])
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), source, b"", 0, None, None) == 0
    assert compiler.nvrtcCompileProgram(program, 0, None) == 0
    assert compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    image = ctypes.create_string_buffer(size.value)
    assert compiler.nvrtcGetCUBIN(program, image) == 0
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw


FUNCTIONS = set(re.findall(r"  X\((cu\w+),", (Path(__file__).parents[2] / "core/devices/cuda_api.h").read_text()))
FIRST = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain"}  # called once in a process
TEXTS = {"cuGetErrorName", "cuGetErrorString"}


@pytest.mark.parametrize(("status", "error"), [(1, errors.DeviceError), (2, MemoryError), (719, errors.DeviceError)])
def test_each_call_of_the_driver_may_fail_and_nothing_is_lost(
    driver: FakeDriver, cuda_variables: dict[str, str], status: int, error: type[Exception]
) -> None:
    modules = [
        payload(image_of(STEP, cuda_variables), b"k", (b"blockIdx.x", b"clusterCtaIdx.x"), b"cubin"),
        payload(
            image_of(SHARED, cuda_variables), b"k", (b"blockIdx.x", b"tirx.use_dyn_shared_memory"), b"cubin",
            (BUFFER, INT64),
        ),
    ]  # fmt: skip
    use_everything(modules)
    driver.fail(0, 0)
    use_everything(modules)
    count, before, own, failed = driver.calls(), driver.live(), driver.current(), set()
    for call in range(1, count + 1):
        driver.fail(call, status)
        with contextlib.suppress(error):
            use_everything(modules)
        function = driver.failed()
        failed.add(function)
        driver.fail(0, 0)
        driver.set_current(own)  # which a failed call may not have put back
        assert driver.live() == before, f"after {function}"
    assert failed == FUNCTIONS - FIRST - TEXTS
    assert driver.mistakes() == 0
    use_everything(modules)


def test_each_call_of_the_first_use_may_fail_and_a_later_use_works(cuda_variables: dict[str, str]) -> None:
    program = f"""
import ctypes, portcall
fake = ctypes.CDLL({cuda_variables["PORTCALL_LIBCUDA"]!r})
fake.fake_cuda_failed.restype = ctypes.c_char_p
for call in range(1, 30):
    fake.fake_cuda_fail(ctypes.c_long(call), 1)
    try:
        portcall.empty((4,), "float32", portcall.cuda())
        break
    except portcall.errors.DeviceError as error:
        name = fake.fake_cuda_failed().decode()
        assert name in str(error), (name, error)
        print(name)
"""
    assert set(run(program, cuda_variables).split()) >= FIRST


def test_illegal_address_is_told_by_this_call_and_all_that_follow(driver: FakeDriver) -> None:
    module = load(payload(STEP, form=b"cuda"))
    module["k"](ctypes.c_void_p(1 << 20), 1)
    for _ in range(2):
        with pytest.raises(errors.DeviceError, match=r"ILLEGAL_ADDRESS.*new session"):
            DEVICE.sync()
    with pytest.raises(errors.DeviceError, match="ILLEGAL_ADDRESS"):
        empty(4)


# ---- Streams ---------------------------------------------------------------------------------------------------------


def test_streams_run_at_the_same_time_unless_one_waits(driver: FakeDriver) -> None:
    source = b"""
#include <atomic>
extern "C" __global__ void k(long long* A) { while (!*(volatile long long*)A) std::this_thread::yield(); A[1] = A[0]; }
"""
    wait = load(payload(source, form=b"cuda"))["k"]
    cell = portcall.tensor([0, 0])
    first, second = portcall.Stream(DEVICE), portcall.Stream(DEVICE)
    a = on_device(cell)
    with first:
        wait(a, 1)  # runs until the other stream has written
    with second:
        a.copyfrom(portcall.tensor([5, 0]))
    first.sync()
    assert a.numpy().tolist() == [5, 5]


def test_current_stream_is_put_back(driver: FakeDriver) -> None:
    current = portcall.get_global_func("portcall.DeviceStream")
    outer, inner = portcall.Stream(DEVICE), portcall.Stream(DEVICE)
    with outer:
        with inner, pytest.raises(ZeroDivisionError), outer:
            _ = 1 // 0
        before = current(2, DEVICE, outer.handle, 0)
    assert before == outer.handle
    assert current(2, DEVICE, 0, 0) == 0


@pytest.mark.parametrize("default", [False, True])
def test_tensor_is_handed_over_after_what_was_done_to_it(default: bool) -> None:
    source = b"""
#include <chrono>
extern "C" __global__ void k(long long* A) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); A[0] = 7; }
"""
    slow = load(payload(source, form=b"cuda"))["k"]
    a, b = portcall.empty((1,), "int64", DEVICE), portcall.empty((1,), "int64", DEVICE)
    ours, theirs = portcall.Stream(DEVICE), portcall.Stream(DEVICE)
    with ours:
        slow(a, 1)
        taken = portcall.from_dlpack(a.__dlpack__(stream=None if default else theirs.handle, max_version=(1, 0)))
    with contextlib.nullcontext() if default else theirs:
        b.copyfrom(taken)
        assert b.numpy().tolist() == [7]


def test_stream_of_another_device_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="cuda:1"):
        portcall.Stream(DEVICE).wait(portcall.Stream(OTHER))


def test_stream_of_a_device_without_streams_does_nothing() -> None:
    with portcall.Stream("cpu") as stream:
        stream.sync()
    assert stream.handle == 0


# ---- With the rest ---------------------------------------------------------------------------------------------------


def test_graph_runs_on_the_device(lib: portcall.Module) -> None:
    builder = graph.GraphBuilder(device=DEVICE)
    x, w = builder.input("x", (1000,)), builder.param("w", np.full(1000, 2, "float32"))
    builder.output(builder.call("add", [builder.call("add", [x, w], (1000,)), w], (1000,)))
    model = graph.create(builder.graph(), lib, DEVICE)
    model.set_input("w", np.full(1000, 2, "float32"))
    value = np.arange(1000, dtype="float32")
    model.run(x=value)
    np.testing.assert_array_equal(model.get_output(0).numpy(), value + 4)


def test_session_computes_times_and_has_streams(libraries: dict[str, Path]) -> None:
    x = random(1000)
    with rpc.Server() as server, rpc.connect(server.address) as remote:
        device = remote.device("cuda")
        assert device.exist
        assert device.device_name == DEVICE.device_name
        assert device.compute_version == "9.0"
        lib = remote.load_module(remote.upload(libraries["cuda"]))
        a, out = remote.tensor(x, device), remote.empty((1000,), "float32", device)
        stream, other = portcall.Stream(device), portcall.Stream(device)
        assert stream.handle != other.handle
        with stream:
            lib["add"](a, a, out)
        other.wait(stream)
        with other:
            np.testing.assert_array_equal(out.numpy(), 2 * x)
        stream.close()
        with pytest.raises(errors.PortcallError):
            remote.device("cpu")._stream(3, other.handle)  # of another device
        assert lib.time_evaluator("add", device, number=3)(a, a, out).mean > 0


def test_session_whose_kernel_went_wrong_ends_and_the_next_one_works(libraries: dict[str, Path]) -> None:
    with rpc.Server() as server:
        with rpc.connect(server.address) as remote:
            device = remote.device("cuda")
            kernel = remote.load_module(remote.upload(libraries["cuda"])).get_function("matmul_kernel", True)
            far = remote.empty((64,), "float32", remote.device("cuda", 1))
            kernel(far, far, far, 1, 1, 1, 1)
            with pytest.raises(errors.RemoteError, match=r"DeviceError.*ILLEGAL_ADDRESS.*new session"):
                device.sync()
            with pytest.raises(errors.SessionBrokenError, match="a device failed") as broken:
                remote.tensor([1])
            assert broken.value.reason == "device"
            assert broken.value.hint
        with rpc.connect(server.address) as remote:
            assert remote.tensor([1], device=remote.device("cuda")).numpy().tolist() == [1]
