# SPDX-License-Identifier: Apache-2.0
"""Ask a portcall server, on a new connection, why a session ended."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from portcall import errors
from portcall.rpc.client._deadline import Deadline, read_some
from portcall.rpc.client._socket import open_socket
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._endings import error_of
from portcall.rpc.wire._facts import UNKNOWN
from portcall.rpc.wire._tls import TLSOptions

_TIMEOUT = 5.0  # seconds for a server to answer
_RETRY_DELAYS = (0.02, 0.05, 0.1, 0.3)  # seconds after which it is asked again, if it has not noticed the end yet


@dataclass(frozen=True)
class SessionCredential:
    """Allows its holder to ask a portcall server, later, why a session ended."""

    session_id: str
    secret: str


class EndReasonQuery:
    """Asks a portcall server, on a new connection, why a session ended."""

    def __init__(
        self, address: Address, name: str, tls: TLSOptions | None, credential: SessionCredential, patience: float = 0
    ) -> None:
        self._address = address
        self._name = name
        self._tls = tls
        self._credential = credential
        self._timeout = min(patience or _TIMEOUT, _TIMEOUT)

    def __call__(self) -> errors.RPCError | None:
        """Return what is to be raised; None where the server does not know, or cannot be asked."""
        with contextlib.suppress(errors.RPCError, OSError, EOFError):
            for pause in (*_RETRY_DELAYS, None):
                words = self._ask()
                if words.get("ended") != UNKNOWN or pause is None:
                    return error_of(words, self._name)
                time.sleep(pause)
        return None

    def _ask(self) -> dict[str, str]:
        deadline = Deadline(self._name, self._timeout, None)
        with open_socket(self._address, self._timeout, self._tls) as sock:
            sock.sendall(_handshake.reason_hello(self._credential.session_id, self._credential.secret))
            reader = _handshake.ReplyReader("")
            while not isinstance(message := reader.feed(read_some(sock, reader.missing(), deadline)), _handshake.Hello):
                pass
        return message.options
