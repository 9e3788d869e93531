# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import portcall


@pytest.fixture(scope="session", autouse=True)
def _plugin_is_loaded(opencl_plugin: None) -> None:
    pass


class FakeDriver:
    """The fake driver of tests/native/fake_cuda.cc, of which this process has one."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.fake_cuda_fail.argtypes = [ctypes.c_long, ctypes.c_int]
        for name in ("failed", "attributes"):
            getattr(self._library, f"fake_cuda_{name}").restype = ctypes.c_char_p

    def fail(self, call: int, status: int) -> None:
        """Have the ``call``-th call from now on fail; 0: none, and what failed for good works again."""
        self._library.fake_cuda_fail(call, status)

    def calls(self) -> int:
        """Calls since ``fail``."""
        return int(self._library.fake_cuda_calls())

    def failed(self) -> str:
        """The function that failed since ``fail``."""
        return str(self._library.fake_cuda_failed().decode())

    def attributes(self) -> str:
        """Those of the last launch that had any, each as NUMBER=VALUE."""
        return str(self._library.fake_cuda_attributes().decode().strip())

    def live(self) -> int:
        """What was made and not freed: memory, streams, events, modules."""
        return int(self._library.fake_cuda_live())

    def mistakes(self) -> int:
        """How often a module was unloaded while its kernels ran."""
        return int(self._library.fake_cuda_mistakes())

    def current(self) -> int | None:
        """The context that is current for this thread."""
        context = ctypes.c_void_p()
        assert self._library.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    def set_current(self, context: int | None) -> None:
        assert self._library.cuCtxSetCurrent(ctypes.c_void_p(context)) == 0

    def context(self, device: int) -> int:
        """A device's primary context."""
        context = ctypes.c_void_p()
        assert self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        return context.value or 0


@pytest.fixture(scope="session")
def cuda_variables(build_native: Callable[[str], Path]) -> dict[str, str]:
    """The environment in which the CUDA plug-in uses the fake driver and compiler."""
    names = {"PORTCALL_LIBCUDA": "fake_cuda.cc", "PORTCALL_LIBNVRTC": "fake_nvrtc.cc"}
    return {variable: str(build_native(source)) for variable, source in names.items()}


@pytest.fixture(scope="session")
def _cuda_of_this_process(cuda_variables: dict[str, str]) -> FakeDriver:
    """Open the fake driver, which stays for this process. Its servers get it from the environment, in ``driver``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cuda_variables.items():
            patch.setenv(name, value)
        assert portcall.cuda().exist
    return FakeDriver(Path(cuda_variables["PORTCALL_LIBCUDA"]))


@pytest.fixture
def driver(
    _cuda_of_this_process: FakeDriver, cuda_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDriver]:
    """The fake driver without errors, here and in processes that a test starts."""
    for name, value in cuda_variables.items():
        monkeypatch.setenv(name, value)
    _cuda_of_this_process.fail(0, 0)
    portcall.get_global_func("__tvm_set_device")(2, 0)  # kernels without host code run on the thread's device
    yield _cuda_of_this_process
    _cuda_of_this_process.fail(0, 0)
