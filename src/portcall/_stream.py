# SPDX-License-Identifier: Apache-2.0
"""Streams: orders of work on a device."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any

from portcall._device import Device
from portcall._device import device as as_device
from portcall.errors import DeviceError

_CREATE, _FREE, _SET_CURRENT, _SYNC, _WAIT = range(5)  # commands of portcall.DeviceStream


class Stream:
    """An order of work on a device, of this process or of a session: kernels and copies on it run one after the other.

    >>> stream = portcall.Stream(portcall.cuda(0))
    >>> with stream:  # for this thread
    ...     lib["add"](x, y, z)
    >>> stream.sync()

    What is on different streams runs in any order, and at the same time if the device can, unless one waits for the
    other. A device without streams does all work in one order. Copies from and to the host wait for their stream.

    Attributes:
        device: the device.
        handle: what the device calls the stream, such as the address of a ``CUstream``; a number of a session's own.

    Raises:
        DeviceError: this process does not support the device.
    """

    def __init__(self, device: Device | str) -> None:
        self.handle = 0
        self.device = as_device(device)
        self.handle = self.device._stream(_CREATE)
        self._before = threading.local()

    def __enter__(self) -> Stream:
        """Make it the device's current stream in this thread."""
        before: list[int] = vars(self._before).setdefault("handles", [])
        before.append(self.device._stream(_SET_CURRENT, self.handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.device._stream(_SET_CURRENT, vars(self._before)["handles"].pop())

    def sync(self) -> None:
        """Wait until the work on the stream is done."""
        self.device._stream(_SYNC, self.handle)

    def wait(self, other: Stream) -> None:
        """Have what comes on this stream from now on start after what is on ``other`` now.

        Raises:
            ValueError: a stream of another device.
        """
        if other.device != self.device:
            raise ValueError(
                f"a stream of {self.device} cannot wait for one of {other.device}; call sync() of that one"
            )
        self.device._stream(_WAIT, self.handle, other.handle)

    def close(self) -> None:
        """Free the stream, after its work. It must not be current. What is not closed goes with its last reference, and
        with its session.
        """
        handle, self.handle = self.handle, 0
        if handle:
            self.device._stream(_FREE, handle)

    def __del__(self) -> None:
        if self.handle and type(self.device) is Device:  # a session frees its own: that takes a request
            with contextlib.suppress(DeviceError, MemoryError):  # the device may have failed for good
                self.close()

    def __repr__(self) -> str:
        return f"<portcall.Stream {self.handle:#x} of {self.device}>"

    def __reduce__(self) -> Any:
        raise TypeError("a stream cannot be pickled")
