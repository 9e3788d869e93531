# SPDX-License-Identifier: Apache-2.0
"""Streams of a device that others have made, by their handles."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from portcall._device import Device
from portcall._device import device as as_device

__all__ = ["StreamContext", "get_raw_stream", "use_raw_stream", "use_torch_stream"]

_SET_CURRENT, _GET_CURRENT = 2, 5


class StreamContext:
    """Makes a stream the device's current one in this thread, while ``with`` lasts.

    Parameters:
        stream: the handle: the address of a ``CUstream``, as a number or a ``ctypes.c_void_p``.
    """

    def __init__(self, device: Device | str, stream: Any) -> None:
        self.device = as_device(device)
        self.stream = int(getattr(stream, "value", stream) or 0)
        self._before: list[int] = []

    def __enter__(self) -> StreamContext:
        self._before.append(self.device._stream(_SET_CURRENT, self.stream))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.device._stream(_SET_CURRENT, self._before.pop())


def use_raw_stream(device: Device | str, stream: Any) -> StreamContext:
    """Return what makes a stream, by its handle, the device's current one: ``with use_raw_stream(device, handle):``."""
    return StreamContext(device, stream)


def get_raw_stream(device: Device | str) -> int:
    """Return the handle of the device's current stream in this thread; 0 is the default one."""
    return as_device(device)._stream(_GET_CURRENT)


def use_torch_stream(context: Any = None) -> StreamContext:
    """Return what makes torch's current stream the current one here.

    Parameters:
        context: a ``torch.cuda.Stream``; None for the current one.
    """
    import torch

    stream = context if context is not None else torch.cuda.current_stream()
    return StreamContext(f"cuda:{stream.device_index}", stream.cuda_stream)
