# SPDX-License-Identifier: Apache-2.0
"""Sessions over a transport of the user's own: both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from portcall import errors
from portcall._function import get_global_func
from portcall.rpc.client._session import Session

_R = TypeVar("_R")


class Transport(Protocol):
    """What carries a session's bytes. Blocking; it raises TimeoutError or OSError where it cannot go on."""

    def send(self, data: bytes) -> int:
        """Send some of the bytes, at least one; return how many."""

    def receive(self, most: int) -> bytes:
        """Return between one byte and ``most``; none once the peer has closed."""

    def close(self) -> None:
        """End the connection; calling this again does nothing. It may come while another thread receives."""


def connect_over(transport: Transport, name: str = "a transport") -> Session:
    """Open a session over a transport, whose other end serves with ``serve_over``.

    How long a request may take is decided by the transport: what it raises ends the session.

    Raises:
        SessionBrokenError: the peer closed, or the transport failed.
        SessionTimeoutError: the transport's time was over.
    """
    root = get_global_func("portcall.rpc.ConnectFunctions")(
        _translated(transport.send, name), _translated(transport.receive, name), transport.close, name, 0.0, []
    )
    return Session(root, name)


def serve_over(transport: Transport, expose: Sequence[str] = ()) -> None:
    """Serve a session over a transport until it ends; ``expose`` names the global functions that it may use."""
    get_global_func("portcall.rpc.ServeFunctions")(
        _translated(transport.send, "the client"), _translated(transport.receive, "the client"), transport.close,
        list(expose), 0,
    )  # fmt: skip


def _translated(method: Callable[..., _R], peer: str) -> Callable[..., _R]:
    """Wrap a method so that its failures are those of a session."""

    def call(*args: Any) -> _R:
        try:
            return method(*args)
        except errors.RPCError:
            raise
        except TimeoutError as error:
            raise errors.SessionTimeoutError(f"the transport to {peer} gave up: {error}", peer=peer) from error
        except OSError as error:
            raise errors.SessionBrokenError(f"the transport to {peer} failed: {error}", peer=peer) from error

    return call
