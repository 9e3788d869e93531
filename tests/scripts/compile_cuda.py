# SPDX-License-Identifier: Apache-2.0
"""CUDA source through NVIDIA's own compiler, up to the launch, which the fake driver refuses (``make test-nvrtc``).

    PYTHONPATH=FOLDER_OF_PACKAGES python tests/scripts/compile_cuda.py

NVRTC and its headers are found in their packages, as a user's are. No GPU is needed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "kernels")]

import libraries as kernel_libraries  # noqa: E402
import pytest  # noqa: E402

import portcall  # noqa: E402
from devices.payloads import payload  # noqa: E402
from portcall import errors, toolchain  # noqa: E402

HALF = b"""
#include <cuda_fp16.h>
extern "C" __global__ void k(half* A) { A[threadIdx.x] = __hadd(A[threadIdx.x], __float2half(1.0f)); }
"""
MISSING = b'#include <no_such_header.h>\nextern "C" __global__ void k(float* A) {}'


def load(source: bytes) -> portcall.Module:
    module: portcall.Module = portcall.get_global_func("ffi.Module.load_from_bytes.cuda")(payload(source, form=b"cuda"))
    return module


def launch(module: portcall.Module, name: str, device: portcall.Device, arguments: int) -> None:
    """Compile for the device: the launch must fail because the fake driver has no GPU, and for no other reason."""
    portcall.get_global_func("__tvm_set_device")(device.device_type, device.device_id)
    begin = time.perf_counter()
    with pytest.raises(errors.DeviceError, match="NO_BINARY_FOR_GPU"):
        module[name](*[None] * arguments, 1)
    print(f"{name} for {device} ({device.compute_version}): compiled in {time.perf_counter() - begin:.2f} s")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = toolchain.create_shared(ROOT / "tests" / "native" / "fake_cuda.cc", Path(folder) / "fake_cuda.so")
        os.environ["PORTCALL_LIBCUDA"] = str(fake)
        os.environ["XDG_CACHE_HOME"] = folder  # nothing is kept from the last time
        devices = [portcall.cuda(0), portcall.cuda(1)]
        assert all(device.exist for device in devices)
        built = kernel_libraries.build_group("devices", ROOT / "build" / "test-libraries")
        for device in devices:
            for name in ("cuda", "cuda_two", "cuda_dynamic"):
                [module] = portcall.load_module(built[name]).imported_modules
                source = load(module.get_source().encode() + b'\nextern "C" __global__ void k(float* A) {}')
                launch(source, "k", device, 1)
            launch(load(HALF), "k", device, 1)
        with pytest.raises(errors.CompileError, match=r"no_such_header\.h(.|\n)*pip install"):
            load(MISSING)["k"](None, 1)


if __name__ == "__main__":
    main()
