# SPDX-License-Identifier: Apache-2.0
"""OpenCL, by the real driver of Debian's PoCL, which runs kernels on the processor."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from devices.payloads import library_of, payload, text, two
from portcall import errors, graph, rpc, toolchain

DEVICE = portcall.opencl(0)
ALIGNMENT = 128  # bytes, at which a view may begin on PoCL


@pytest.fixture
def lib(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["opencl"])


def on_device(array: Any) -> portcall.Tensor:
    return portcall.tensor(array, device=DEVICE)


def random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).random(shape, "float32")


def empty(*shape: int) -> portcall.Tensor:
    return portcall.empty(shape, "float32", DEVICE)


# ---- Devices ---------------------------------------------------------------------------------------------------------


def test_device_has_the_attributes_of_the_driver() -> None:
    assert DEVICE.exist
    assert not portcall.opencl(99).exist
    assert DEVICE.device_name
    assert (DEVICE.multi_processor_count or 0) >= 1
    assert (DEVICE.max_threads_per_block or 0) >= 64
    assert DEVICE.warp_size == 1
    assert (DEVICE.total_global_memory or 0) > 1 << 20
    assert DEVICE.compute_version is None
    assert DEVICE.image_pitch_alignment is not None


def test_empty_on_a_device_that_does_not_exist_is_a_device_error() -> None:
    with pytest.raises(errors.DeviceError, match="opencl:99"):
        portcall.empty((4,), "float32", portcall.opencl(99))


def test_empty_of_more_than_the_device_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        portcall.empty((1 << 45,), "uint8", DEVICE)


def test_opencl_without_a_driver_is_a_device_error_that_names_packages() -> None:
    program = """
import portcall
assert not portcall.opencl().exist
try:
    portcall.empty((4,), "float32", portcall.opencl())
except portcall.errors.DeviceError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PORTCALL_LIBOPENCL": "/nowhere/libOpenCL.so"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "/nowhere/libOpenCL.so" in done.stdout
    assert "pocl-opencl-icd" in done.stdout


# ---- Memory ----------------------------------------------------------------------------------------------------------


def test_copies_go_to_the_device_within_it_and_back() -> None:
    array = np.arange(1000, dtype="int32")
    tensor = on_device(array)
    other = portcall.empty((1000,), "int32", DEVICE)
    other.copyfrom(tensor)
    np.testing.assert_array_equal(other.numpy(), array)


def test_view_of_aligned_memory_is_a_kernels_argument_and_keeps_its_base(lib: portcall.Module) -> None:
    array = random(256)
    base = on_device(array)
    view, out = base[64:128], empty(64)
    assert 64 * 4 % ALIGNMENT == 0
    del base
    lib["add"](view, view, out)
    np.testing.assert_array_equal(out.numpy(), 2 * array[64:128])


def test_view_that_begins_where_the_device_cannot_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=f"byte 4: .* multiples of {ALIGNMENT}"):
        empty(256)[1:65]


# ---- Kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 63, 64, 1000, 1 << 18])
def test_add_of_any_length_is_right(lib: portcall.Module, n: int) -> None:
    x, y, out = random(n), random(n)[::-1].copy(), empty(n)
    lib["add"](on_device(x), on_device(y), out)
    np.testing.assert_array_equal(out.numpy(), x + y)


def test_matmul_over_two_axes_is_right(lib: portcall.Module) -> None:
    x, y, out = random(64, 128), random(128, 96), empty(64, 96)
    lib["matmul"](on_device(x), on_device(y), out)
    np.testing.assert_allclose(out.numpy(), x @ y, rtol=1e-5)


def test_workspace_local_memory_and_scalars_of_each_type_are_right(libraries: dict[str, Path]) -> None:
    x, out = random(256), empty(256)
    portcall.load_module(libraries["opencl_two"])["two"](on_device(x), out, 3, 2.5, 7)
    np.testing.assert_allclose(out.numpy(), two(x, 3, 7), rtol=1e-6)


def test_one_kernel_is_called_from_several_threads(libraries: dict[str, Path]) -> None:
    func = portcall.load_module(libraries["opencl_two"])["two"]
    x, wrong = random(256), list[int]()

    def work(first: int) -> None:
        source, out = on_device(x), empty(256)
        for k in range(first, first + 50):
            func(source, out, k, 2.5, 7)
            if not np.allclose(out.numpy(), two(x, k, 7)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kernel_with_dynamic_shared_memory_is_refused(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["opencl_dynamic"])
    with pytest.raises(errors.ModuleLoadError, match=r"shared\.dyn"):
        lib["two"](empty(256), empty(256), 3, 2.5, 7)


def test_tensor_of_the_host_is_refused_by_the_compiled_check(lib: portcall.Module) -> None:
    with pytest.raises(ValueError, match="expected opencl"):
        lib["add"](np.ones(16, "float32"), empty(16), empty(16))


def test_time_evaluator_asks_the_device(lib: portcall.Module) -> None:
    x, out = on_device(random(64, 128)), empty(64, 96)
    result = lib.time_evaluator("matmul", DEVICE, number=3, repeat=2)(x, on_device(random(128, 96)), out)
    assert len(result.results) == 2
    assert all(0 < seconds < 10 for seconds in result.results)


TWO_DEVICES = """
import sys, numpy, portcall
first, second = portcall.opencl(0), portcall.opencl(1)
assert second.exist and not portcall.opencl(2).exist
lib = portcall.load_module(sys.argv[1])
x = portcall.tensor(numpy.arange(1000, dtype="float32"), device=first)
out, there = portcall.empty((1000,), "float32", first), portcall.empty((1000,), "float32", second)
with portcall.Stream(first), portcall.Stream(second):
    lib["add"](x, x, out)
    there.copyfrom(out)
    lib["add"](there, there, there)
    assert (there.numpy() == 4 * x.numpy()).all()
try:
    lib["add"](x, x, there)
except ValueError as error:
    print(error)
"""


def test_two_devices_have_streams_kernels_and_copies_between_them(libraries: dict[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, libraries["opencl"]], env={**os.environ, "POCL_DEVICES": "pthread basic"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "device_id" in done.stdout


# ---- Modules ---------------------------------------------------------------------------------------------------------


def load(data: bytes) -> portcall.Module:
    assert DEVICE.exist  # which loads the plug-in
    module = portcall.get_global_func("ffi.Module.load_from_bytes.opencl")(data)
    assert isinstance(module, portcall.Module)
    return module


def test_source_that_the_driver_cannot_build_is_a_compile_error_with_its_log() -> None:
    module = load(payload(b"__kernel void k(__global float* a) { nonsense; }"))
    assert module.list_function_names() == ["k"]
    with pytest.raises(errors.CompileError, match="nonsense"):
        module["k"](None, 1)


def test_launch_with_too_few_values_is_an_argument_error() -> None:
    module = load(payload(b"__kernel void k(__global float* a) {}"))
    with pytest.raises(errors.ArgumentError):
        module["k"](None)


def test_source_of_the_kernels_is_shown(lib: portcall.Module) -> None:
    [kernels] = lib.imported_modules
    assert kernels.type_key == "opencl"
    assert sorted(kernels.list_function_names()) == ["add_kernel", "matmul_kernel"]
    assert "__kernel void add_kernel" in kernels.get_source()


def test_classic_library_brings_its_kernels(tmp_path: Path) -> None:
    source = b"__kernel void k(__global float* a) { a[get_global_id(0)] = 7; }"
    items = text(b"_lib"), text(b"opencl") + payload(source, tensor_maps=None), text(b"_import_tree")
    body = struct.pack("<Q", 3) + b"".join(items) + struct.pack("<6Q", 3, 0, 1, 1, 1, 1)
    blob = ",".join(map(str, struct.pack("<Q", len(body)) + body))
    code = f"const unsigned char __tvm_dev_mblob[] = {{{blob}}}; void* __tvm_module_ctx; int f(void) {{ return 0; }}"
    (tmp_path / "k.c").write_text(code)
    lib = portcall.load_module(toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so"))
    [kernels] = lib.imported_modules
    assert kernels.list_function_names() == ["k"]
    out = empty(4)
    kernels["k"](out, 4)
    assert out.numpy().tolist() == [7] * 4


# ---- With the rest ---------------------------------------------------------------------------------------------------


def test_graph_runs_on_the_device(lib: portcall.Module) -> None:
    builder = graph.GraphBuilder(device=DEVICE)
    x, w = builder.input("x", (1000,)), builder.param("w", np.full(1000, 2, "float32"))
    y = builder.call("add", [builder.call("add", [x, w], (1000,)), w], (1000,))
    builder.output(builder.call("add", [y, x], (1000,)))
    model = graph.create(builder.graph(), lib, DEVICE)
    model.set_input("w", np.full(1000, 2, "float32"))
    value = np.arange(1000, dtype="float32")
    model.run(x=value)
    np.testing.assert_array_equal(model.get_output(0).numpy(), 2 * value + 4)


def test_session_computes_and_times_on_the_servers_device(libraries: dict[str, Path]) -> None:
    x = random(1000)
    with rpc.Server() as server, rpc.connect(server.address) as remote:
        device = remote.device("opencl")
        assert device.exist
        assert device.device_name == DEVICE.device_name
        assert device.image_pitch_alignment == DEVICE.image_pitch_alignment
        lib = remote.load_module(remote.upload(libraries["opencl"]))
        a, b, out = remote.tensor(x, device), remote.tensor(x, device), remote.empty((1000,), "float32", device)
        lib["add"](a, b, out)
        np.testing.assert_array_equal(out.numpy(), 2 * x)
        assert lib.time_evaluator("add", device, number=3)(a, b, out).mean > 0
    with rpc.Server() as server, rpc.connect(server.address) as remote:  # the zygote has not touched the driver
        assert remote.device("opencl").exist


CRASH = b"__kernel void k(__global int* a) { a[(size_t)get_global_id(0) + ((size_t)1 << 45)] = 1; }"


def test_kernel_that_crashes_ends_its_session_alone(tmp_path: Path) -> None:
    blob = ",".join(map(str, library_of(payload(CRASH), b"opencl")))
    (tmp_path / "k.c").write_text(f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    path = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so")
    with rpc.Server() as server, rpc.connect(server.address) as bystander:
        kept = bystander.tensor([1, 2], device=bystander.device("opencl"))
        with rpc.connect(server.address) as remote:
            kernel = remote.load_module(remote.upload(path)).get_function("k", True)
            memory = remote.empty((4,), "int32", remote.device("opencl"))
            with pytest.raises(errors.RemoteCrashError):
                _ = kernel(memory, 1), memory.numpy()
        assert kept.numpy().tolist() == [1, 2]
