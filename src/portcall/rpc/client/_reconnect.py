# SPDX-License-Identifier: Apache-2.0
"""How a session ended, and another in its place."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from portcall import errors
from portcall._function import get_global_func
from portcall._module import Module
from portcall.rpc.client._capsule import Capsule

PAUSES = (0.1, 0.3, 1.0, 3.0)  # seconds between attempts; the last one again and again
_FINAL = (errors.AuthenticationError, errors.KeyMismatchError, errors.VersionMismatchError)


class Explanation:
    """How a session ended, asked once. The core calls it with the error that a use of the session would raise.

    Parameters:
        name: of the session.
        ask: returns what is to be raised; None where no more is known than that it is broken.
    """

    def __init__(self, name: str, ask: Callable[[], errors.RPCError | None]) -> None:
        self._name = name
        self._ask = ask
        self._known: errors.RPCError | None = None
        self._since = ""
        self.replaced = False  # whether another session takes the place of this one

    def find(self) -> errors.RPCError | None:
        """Return what is to be raised; None where no more is known."""
        self._known = self._known or self._ask()
        return self._known

    def __call__(self, kind: str, text: str, ended_before: bool) -> None:
        reason = self.find() if kind == errors.SessionBrokenError.__name__ else None
        self._since = self._since or time.strftime("%H:%M:%S")
        if self.replaced and ended_before:
            why = str(reason or text)
            raise errors.SessionLostError(
                f"was lost at {self._since}, with the session that it is of: {why}; look functions up, load modules "
                "and make tensors again", peer=self._name, why=why,
            )  # fmt: skip
        if reason is not None:
            raise copy.copy(reason)


def name_lost(error: errors.SessionLostError, function: object) -> None:
    """Say what was lost, from the function whose call raised the error, unless the error says it."""
    if error.lost:
        return
    name = str(getattr(function, "name", ""))
    root = get_global_func("portcall.rpc.FunctionSession")(function)
    if root is not None:
        over = get_global_func("portcall.rpc.IsClosed")(root)
        error.lost = f"the function {name!r}" if over else f"an argument of {name!r}"
    elif name.startswith("ffi.Module"):
        error.lost = "a module"
    elif name in ("portcall.rpc.CopyTo", "portcall.rpc.CopyFrom", "portcall.rpc.CopyAmong"):
        error.lost = "a tensor"
    else:
        error.lost = "what was used"


@dataclass
class Opened:
    """A session that was opened.

    Attributes:
        module: the session as a Module.
        ask: asks the server how it ended; None for a server that cannot tell.
        pump: the thread that does TLS, or records.
        peer_kind, features: as of Session.
        clocks: seconds that opening it took, by name.
        capsule: what keeps the session if it crashes.
        server_capsule: whether the server may keep it, too.
    """

    module: Module
    ask: Callable[[], errors.RPCError | None] | None = None
    pump: threading.Thread | None = None
    peer_kind: str = ""
    features: frozenset[str] = frozenset()
    clocks: dict[str, float] = field(default_factory=dict)
    capsule: Capsule | None = None
    server_capsule: bool = False


class Reconnection:
    """Opens a session in place of a lost one, again and again for some seconds.

    Parameters:
        name: of the session.
        seconds: until it gives up, for good.
        open_session: opens one, within the seconds that it is called with.
        on_wait: called with what is waited for.
    """

    def __init__(
        self, name: str, seconds: float, open_session: Callable[[float], Opened],
        on_wait: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        self._name = name
        self._seconds = seconds
        self._open = open_session
        self._on_wait = on_wait
        self.lock = threading.Lock()
        self.failure: errors.RPCError | None = None  # it has given up

    def open(self) -> Opened:
        """Open a session.

        Raises:
            ConnectError, SessionTimeoutError, FarmError: there is none within the time, or the server refuses for good.
        """
        if self.failure is not None:
            raise copy.copy(self.failure)
        until = time.monotonic() + self._seconds
        for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
            try:
                return self._open(max(until - time.monotonic(), 0.1))
            except (errors.ConnectError, errors.SessionTimeoutError, errors.SessionBrokenError) as error:
                if isinstance(error, _FINAL) or time.monotonic() + pause > until:
                    self._give_up(error)
                if self._on_wait is not None:
                    self._on_wait(f"{self._name} again: {error}")
            except errors.RPCError as error:
                self._give_up(error)
            time.sleep(pause)
        raise AssertionError

    def _give_up(self, error: errors.RPCError) -> None:
        text = f"the session with {self._name} was lost, and no other opened within {self._seconds:g} s: {error}"
        self.failure = type(error)(text, peer=self._name, reason=error.reason, hint="connect again")
        raise self.failure from error
