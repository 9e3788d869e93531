# SPDX-License-Identifier: Apache-2.0
"""Streams, which are orders of work on a device, and events, which are points in that work."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from portcall._device import Device
from portcall._device import device as as_device
from portcall.errors import DeviceError

# Commands of portcall.DeviceStream.
_CREATE, _FREE, _SET_CURRENT, _SYNC, _WAIT = range(5)


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
        import threading  # here: its handlers would cost each fork of a server half of a millisecond

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

    def wait(self, other: Stream | Event) -> None:
        """Have what comes on this stream from now on start after what is on ``other`` now, or after an event.

        Raises:
            ValueError: it is of another device, or the event has not been recorded.
        """
        if other.device != self.device:
            raise ValueError(
                f"a stream of {self.device} cannot wait for one of {other.device}; call sync() of that one"
            )
        if isinstance(other, Event):
            other._delay(self)
        elif type(self.device) is Device:
            self.device._stream(_WAIT, self.handle, other.handle)
        else:
            event = Event(self.device)
            event.record(other)
            event._delay(self)

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


class Event:
    """A point in the work of a device: streams and the host wait for it, and the device's clock measures between two.

    >>> start, end = portcall.Event(dev), portcall.Event(dev)
    >>> start.record()
    >>> lib["add"](x, y, z)
    >>> end.record()
    >>> start.seconds_until(end)

    On a device without events ``record`` waits for the stream, and the clock is the host's. An event of a session is on
    the server; a server that has none, such as TVM's, waits in ``record`` and has no clock.

    Attributes:
        device: the device.

    Raises:
        DeviceError: the process does not support the device.
    """

    def __init__(self, device: Device | str) -> None:
        self.device = as_device(device)
        self._recorded = False
        create = self.device._event_function("Create")
        self._event = None if create is None else create(self.device)

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of what is on a stream now, by default the current one, in place of what was recorded before."""
        if stream is not None and stream.device != self.device:
            raise ValueError(f"an event of {self.device} cannot be recorded on a stream of {stream.device}")
        if self._event is not None:
            with stream or contextlib.nullcontext():
                self._call("Record")
        else:
            (stream or self.device).sync()
        self._recorded = True

    def sync(self) -> None:
        """Wait until the work before the event is done.

        Raises:
            ValueError: the event has not been recorded.
        """
        self._check_recorded()
        if self._event is not None:
            self._call("Sync")

    def seconds_until(self, end: Event) -> float:
        """Return the seconds from this event to a later one, after waiting for both.

        Raises:
            ValueError: one has not been recorded, or is of another device.
            DeviceError: the server of the device has no events.
        """
        if end.device != self.device:
            raise ValueError(f"no time lies between events of {self.device} and of {end.device}")
        self._check_recorded()
        end._check_recorded()
        if self._event is None:
            raise DeviceError(f"{self.device!r} has no clock for events; time_evaluator measures on the server")
        nanoseconds: int = self._call("NanosecondsUntil", end._event)
        return nanoseconds / 1e9

    def _delay(self, stream: Stream) -> None:
        """Have what comes on a stream from now on start after the event."""
        self._check_recorded()
        if self._event is not None:
            with stream:
                self._call("Wait")

    def _call(self, name: str, *others: Any) -> Any:
        function = self.device._event_function(name)
        assert function is not None
        return function(self._event, *others)

    def _check_recorded(self) -> None:
        if not self._recorded:
            raise ValueError("the event has not been recorded; call its record() first")

    def __repr__(self) -> str:
        return f"<portcall.Event of {self.device}{', recorded' if self._recorded else ''}>"

    def __reduce__(self) -> Any:
        raise TypeError("an event cannot be pickled")
