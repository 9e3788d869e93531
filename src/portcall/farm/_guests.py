# SPDX-License-Identifier: Apache-2.0
"""Connections that have not shown yet that they may be here: how many of them there may be.

A peer shows it by a whole request with a token that counts, by a hello that the proxy takes, or by a message of the
tracker's protocol. Until then it is a guest. Where guests are too many, the one that came first goes: who has a token
shows it at once, and half a request becomes no better by waiting.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

_MOST = 1024
_MOST_EACH = 256
_RESERVE = 64  # descriptors for what is known already: files of the store, pipes of sessions


class Guests:
    """All guests of a farm. Their numbers depend on how many descriptors the process may have."""

    def __init__(self) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            descriptors = 1 << 20
        self.most = max(1, min(_MOST, descriptors // 4))
        self.most_each = max(1, min(_MOST_EACH, descriptors // 8))
        self._last = descriptors - min(_RESERVE, descriptors // 8)
        self._of: dict[str, dict[Guest, None]] = {}  # guests by where they come from, the oldest first
        self._idle: dict[Guest, None] = {}  # guests that want nothing now
        self._count = 0
        self._going = 0  # guests that were told to go, whose descriptors are not free yet

    def add(self, guest: Guest) -> None:
        """Let one more in; another one may have to go for it."""
        mine = self._of.setdefault(guest.origin, {})
        if guest not in mine:
            mine[guest] = None
            self._count += 1
        if len(mine) > self.most_each:
            next(iter(mine)).dismiss("too many connections of your address have shown no token yet")
        elif self._count > self.most:
            self.dismiss_one()

    def remove(self, guest: Guest, idle: bool = False) -> None:
        """Let one stay, as long as there are descriptors where it is idle."""
        self._idle.pop(guest, None)
        if idle:
            self._idle[guest] = None
        mine = self._of.get(guest.origin, {})
        if guest in mine:
            del mine[guest]
            self._count -= 1
            if not mine:
                del self._of[guest.origin]

    def dismiss_one(self) -> bool:
        """Have one go, of the address that has the most, or an idle one if those are more; return whether one did."""
        most = max((*self._of.values(), self._idle), key=len)
        if not most:
            return False
        next(iter(most)).dismiss("the farm has too many connections")
        return True

    def make_room(self, descriptor: int) -> bool:
        """Let a new connection in, and one go for each descriptor that is in use beyond those that may be.

        The system gives the lowest descriptor, so all below a new one are in use. Return whether there is room.
        """
        while descriptor - self._going >= self._last:
            if not self.dismiss_one():
                return False
        return True

    def count_going(self, step: int) -> None:
        self._going += step


class Guest:
    """Who a connection is of, from its beginning to its end.

    Attributes:
        secure: TLS is around it.
        names: those of the machine whose process has passed the connection on, which the peer may have used.
        left: bytes that it may still send until it has shown that it may be here; None: others look after that.
        end: ends the connection, with a reason for the peer.
    """

    def __init__(self, guests: Guests, address: str, end: Callable[[str], object]) -> None:
        self._guests = guests
        self.address = address
        self.origin = origin_of(address)
        self.secure = False
        self.names: frozenset[str] = frozenset()
        self.left: int | None = None
        self.end = end
        self._going = False
        guests.add(self)

    def move(self, address: str) -> None:
        """Say where it really comes from."""
        self._guests.remove(self)
        self.address, self.origin = address, origin_of(address)
        self._guests.add(self)

    def show(self, known: bool = True, idle: bool = False) -> None:
        """Say whether it has shown that it may be here, which may count no more; an idle one goes if none else can."""
        if known:
            self._guests.remove(self, idle)
            self.left = None
        else:
            self._guests.add(self)

    def may_send(self, nbytes: int) -> bool:
        """Return whether so many bytes that have come are not too many."""
        if self.left is not None:
            self.left -= nbytes
        return self.left is None or self.left >= 0

    def leave(self) -> None:
        """The connection has ended. What was made for it is freed now: it refers to its guest, which did to it."""
        self.end = _nothing
        self._guests.remove(self)
        self._guests.count_going(-self._going)
        self._going = False

    def dismiss(self, why: str) -> None:
        """Have it go: its connection ends."""
        self._guests.remove(self)
        self._guests.count_going(1 - self._going)
        self._going = True
        self.end(why)


def _nothing(why: str) -> None:
    """End what has ended."""


def origin_of(address: str) -> str:
    """Return what counts as one place to come from: an IPv4 address, or the first half of one of IPv6."""
    address = address.removeprefix("::ffff:")
    return ":".join(address.split(":")[:4]) if ":" in address else address


def names_of(machine: str) -> frozenset[str]:
    """Return the names by which peers in its network call a machine, in lower case."""
    name = machine.lower().rstrip(".")
    short = name.partition(".")[0]
    return frozenset({name, short, f"{short}.local"})
