# SPDX-License-Identifier: Apache-2.0
"""Images of OpenCL, which TVM calls textures: memory of a scope, copies, kernels that read and write them. By PoCL."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from devices.payloads import BUFFER, payload
from portcall import errors, rpc

DEVICE = portcall.opencl(0)
SCOPES = ["global.texture", "global.texture-nhwc", "global.texture-weight"]
WRITE = b"""
__kernel void k(__write_only image2d_array_t image) {
  int x = get_group_id(0), y = get_group_id(1), layer = get_group_id(2);
  write_imagef(image, (int4)(x, y, layer, 0), (float4)(x, y, layer, 7));
}
"""
READ = b"""
__kernel void k(__read_only image2d_array_t image, __global float* out) {
  int x = get_group_id(0), y = get_group_id(1), layer = get_group_id(2);
  int at = (layer * get_num_groups(1) + y) * get_num_groups(0) + x;
  vstore4(read_imagef(image, (int4)(x, y, layer, 0)), at, out);
}
"""
GRID = (b"blockIdx.x", b"blockIdx.y", b"blockIdx.z")


def image(*shape: int, scope: str = SCOPES[0], dtype: str = "float32") -> portcall.Tensor:
    return portcall.empty(shape, dtype, DEVICE, scope=scope)


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return np.arange(np.prod(shape), dtype="float32").astype(dtype).reshape(shape)


def kernel(source: bytes, arguments: int) -> portcall.PackedFunc:
    module: portcall.Module = portcall.get_global_func("ffi.Module.load_from_bytes.opencl")(
        payload(source, parameters=GRID, arguments=(BUFFER,) * arguments)
    )
    return module.get_function("k")


# ---- Memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3, 5, 4), "float32"), ((2, 3, 5, 8), "float16"), ((3, 5, 4), "float16"), ((3, 5, 4), "int32")],
)
def test_copies_go_to_an_image_to_another_to_a_buffer_and_back(scope: str, shape: tuple[int, ...], dtype: str) -> None:
    array = numbers(*shape, dtype=dtype)
    first = image(*shape, scope=scope, dtype=dtype).copyfrom(array)
    np.testing.assert_array_equal(first.numpy(), array)
    second = image(*shape, scope=scope, dtype=dtype).copyfrom(first)
    buffer = portcall.empty(shape, dtype, DEVICE).copyfrom(second)
    np.testing.assert_array_equal(buffer.numpy(), array)
    third = image(*shape, scope=scope, dtype=dtype).copyfrom(buffer)
    np.testing.assert_array_equal(third.numpy(), array)


@pytest.mark.parametrize(
    ("shape", "scope", "match"),
    [
        ((8, 16, 3), SCOPES[0], "96 bits"),
        ((16, 4), SCOPES[0], "2 axes"),
        ((4,), SCOPES[2], "1 axes"),
        ((8, 16, 4), "global.vtcm", "vtcm"),
        ((1 << 20, 16, 4), SCOPES[0], "1048576 x 16"),
    ],
)
def test_memory_that_is_no_image_is_a_value_error(shape: tuple[int, ...], scope: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        image(*shape, scope=scope)


def test_scope_global_is_the_devices_own_memory_and_the_host_has_no_other() -> None:
    assert portcall.empty((4,), "int64", DEVICE, scope="global").copyfrom(np.arange(4)).numpy().tolist() == [0, 1, 2, 3]
    assert portcall.empty((4,), scope="global").shape == (4,)
    with pytest.raises(ValueError, match=r"global\.texture.*cpu:0"):
        portcall.empty((8, 16, 4), scope="global.texture")


def test_part_of_an_image_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="view of an image"):
        image(8, 16, 4)[4:]


# ---- Kernels ---------------------------------------------------------------------------------------------------------


def test_library_reads_textures_of_each_layout(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["opencl_texture"])
    array, out = numbers(2, 8, 16, 4), portcall.empty((2, 8, 16, 4), "float32", DEVICE)
    lib["from_texture"](image(2, 8, 16, 4).copyfrom(array), out)
    np.testing.assert_array_equal(out.numpy(), array[::-1, ::-1, ::-1])
    array, out = numbers(5, 3, 2, 4), portcall.empty((5, 3, 2, 4), "float32", DEVICE)
    lib["from_weight"](image(5, 3, 2, 4, scope="global.texture-weight").copyfrom(array), out)
    np.testing.assert_array_equal(out.numpy(), array[::-1, :, ::-1])


def test_kernel_writes_an_image_and_another_reads_it() -> None:
    made, out = image(2, 3, 5, 4), portcall.empty((2, 3, 5, 4), "float32", DEVICE)
    kernel(WRITE, 1)(made, 5, 3, 2)
    kernel(READ, 2)(made, out, 5, 3, 2)
    layer, y, x = np.indices((2, 3, 5))
    np.testing.assert_array_equal(out.numpy(), np.stack([x, y, layer, np.full_like(x, 7)], axis=-1))
    np.testing.assert_array_equal(made.numpy(), out.numpy())


def test_half_precision_is_read_as_numbers() -> None:
    array, out = numbers(3, 5, 4, dtype="float16"), portcall.empty((3, 5, 4), "float32", DEVICE)
    kernel(READ, 2)(image(3, 5, 4, dtype="float16").copyfrom(array), out, 5, 3, 1)
    np.testing.assert_array_equal(out.numpy(), array)


def test_buffer_for_an_image_and_the_reverse_are_value_errors() -> None:
    picture, buffer = image(8, 16, 4), portcall.empty((8, 16, 4), "float32", DEVICE)
    read = kernel(READ, 2)
    for arguments, wrong in (((buffer, buffer), 0), ((picture, picture), 1)):
        with pytest.raises(ValueError, match=f"#{wrong} must be"):
            read(*arguments, 16, 8, 1)


def test_kernel_with_images_without_layers_is_refused() -> None:
    with pytest.raises(errors.ModuleLoadError, match="image2d_t"):
        kernel(b"__kernel void k(__read_only image2d_t image) {}", 1)


@pytest.mark.parametrize("pixel_bits", [(), (128,)])
def test_compiled_code_makes_and_frees_images_by_name(pixel_bits: tuple[int, ...]) -> None:
    make, free = (portcall.get_global_func(f"device_api.opencl.{name}_nd") for name in ("alloc", "free"))
    extents, out = (ctypes.c_int64 * 3)(5, 3, 2), portcall.empty((2, 3, 5, 4), "float32", DEVICE)
    rank = 3 if pixel_bits else 2
    made = make(4, 0, 2, 32, "global.texture", rank, ctypes.cast(extents, ctypes.c_void_p), *pixel_bits)
    kernel(WRITE, 1)(made, 5, 3, 2)
    kernel(READ, 2)(made, out, 5, 3, 2)
    assert free(4, 0, "global.texture", made) == 0
    assert out.numpy()[1, 2, 4].tolist() == [4, 2, 1, 7]


# ---- Sessions --------------------------------------------------------------------------------------------------------


def test_session_has_images(libraries: dict[str, Path]) -> None:
    array = numbers(2, 8, 16, 4)
    with rpc.Server() as server, rpc.connect(server.address) as remote:
        device = remote.device("opencl")
        lib = remote.load_module(remote.upload(libraries["opencl_texture"]))
        picture = remote.empty(array.shape, "float32", device, scope="global.texture").copyfrom(array)
        np.testing.assert_array_equal(picture.numpy(), array)
        out = portcall.empty(array.shape, "float32", device=device)
        lib["from_texture"](picture, out)
        np.testing.assert_array_equal(out.numpy(), array[::-1, ::-1, ::-1])
        for scope in ("global.vtcm", "global.texture-weight"):
            with pytest.raises(ValueError, match=scope):
                remote.empty((4,), "float32", device, scope=scope)
