# SPDX-License-Identifier: Apache-2.0
"""Leases of a farm's places, and sessions in them."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from portcall.errors import (
    ConnectError,
    FarmError,
    KeyMismatchError,
    RemoteCrashError,
    RPCError,
    SessionBrokenError,
    SessionTimeoutError,
)
from portcall.rpc.client._connect import Opening, open_session
from portcall.rpc.client._farm_channel import FarmChannel
from portcall.rpc.client._output import OnOutput
from portcall.rpc.client._session import Session
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._tls import TLSOptions

HOLD = 15.0  # seconds for which a farm may hold back the answer to a waiting client
RETRY_PAUSES = (0.1, 0.3, 1.0, 3.0)  # seconds between attempts to reach a farm that was there
TOO_LATE = "waited too long"  # as the farm says why a request ended
_BEATS = 3  # heartbeats within a lease's ttl

OnWait = Callable[[str], None]
T = TypeVar("T")


def connect(address: str = "", *, token: str | None = None, tls: TLSOptions | None = None, user: str = "") -> Farm:
    """Return a farm, whose places can be leased::

        farm = portcall.farm.connect("lab:9190")
        with farm.lease("rasp4 & ram>=4GiB", on_wait=print) as lease, lease.session() as session:
            session.upload("kernels.so")

    Parameters:
        address: ``host:port``; several of one farm with commas between them. By default that of the environment
            variable PORTCALL_FARM, else of TVM_TRACKER_HOST and TVM_TRACKER_PORT.
        token: by default that of PORTCALL_FARM_TOKEN.
        tls: speak TLS; by default where PORTCALL_FARM_CA names the file of an authority to trust.
        user: the name to give where the farm needs no token; by default that of this user.
    """
    return Farm(FarmChannel(address, token, tls, user))


class Farm:
    """A farm client. It connects on first use; a context manager."""

    def __init__(self, channel: FarmChannel) -> None:
        self._channel = channel
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """Have no leases."""
        self._owner = os.getpid()
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where the farm is, as ``host:port``."""
        return str(self._channel.address)

    @property
    def speaks_tls(self) -> bool:
        """Whether the connections to it speak TLS."""
        return self._channel.tls is not None

    def lease(
        self,
        want: str = "",
        *,
        ttl: float = 60,
        wait: float | None = None,
        limit: float = 0,
        priority: float = 0,
        class_: str = "",
        wait_for_new: bool = False,
        on_wait: OnWait | None = None,
    ) -> Lease:
        """Wait for a place, and lease it.

        Parameters:
            want: a key, or a constraint such as ``rasp4 & ram>=4GiB & !flaky``; by default that of the environment
                variable PORTCALL_KEY, else TVM_TRACKER_KEY.
            ttl: seconds after which the farm takes the place back when this process is gone.
            wait: seconds to wait at most; None forever.
            limit: seconds that the lease may last; 0 for any time.
            priority: -10 to 10; a step is worth a minute of waiting.
            class_: ``urgent``, ``normal`` or ``batch``; by default normal, or the most urgent that the token may have.
            wait_for_new: wait even where no place that the farm knows could ever match.
            on_wait: called with the place in the queue and what is waited for, whenever that changes.

        Raises:
            FarmError: no place could ever match (``reason`` is ``no-match``), or the farm refuses for another reason.
            SessionTimeoutError: no place within ``wait`` seconds.
            ConnectError: the farm does not answer.
        """
        want = want or os.environ.get("PORTCALL_KEY", "") or os.environ.get("TVM_TRACKER_KEY", "")
        secret = secrets.token_hex(32)
        until = None if wait is None else time.monotonic() + wait
        fields: dict[str, Any] = {
            "want": want, "secret": secret, "ttl": ttl, "limit": limit, "priority": priority,
            "hopeless": wait_for_new, "wait": 0 if wait is None else max(wait, 0.001),
            **({"class": class_} if class_ else {}),
        }  # fmt: skip
        view: dict[str, Any] = {}
        why = ""
        try:
            view = self._channel.call("request", hold=_hold(until), **fields)
            while view["state"] not in ("active", "ended"):
                why = str(view.get("why") or why)
                if on_wait is not None and "position" in view:
                    on_wait(f"number {view['position']} in the queue: {view['why']}")
                try:
                    view = self._again("wait", hold=_hold(until), lease=view["lease"], secret=secret,
                                       seen=view.get("position", 0))  # fmt: skip
                except FarmError as error:
                    if error.reason != "ended" or TOO_LATE not in str(error):
                        raise
                    view = {**view, "state": "ended", "reason": TOO_LATE}  # between two questions
        except BaseException as error:  # also the one of a signal's handler
            with contextlib.suppress(RPCError), contextlib.closing(self._channel.clone()) as channel:
                if not view and not (isinstance(error, RPCError) and not self._channel.closed):
                    view = channel.call("request", hold=0.001, **fields)  # the same secret: the same request
                if view:
                    channel.call("release", lease=view["lease"], secret=secret)
            raise
        if view["state"] == "ended":
            if view["reason"] == TOO_LATE:
                text = f"the farm {self.address} had no place for {want!r} within {wait:g} s{': ' if why else ''}{why}"
                raise SessionTimeoutError(text, peer=self.address, reason="no-place")
            text = f"the farm {self.address} ended the lease for {want!r}: {said(view)}"
            raise FarmError(text, peer=self.address, reason=view["reason"])
        lease = Lease(self, view, secret)
        self._keep(lease)
        return lease

    def check(self, place: str, ttl: float = 60) -> Lease:
        """Lease an idle place for a check, whatever its health; ``Lease.checked`` takes the result.

        Raises:
            FarmError: it is not idle (``reason`` is ``busy``), does not take the lease, or is not there.
        """
        secret = secrets.token_hex(32)
        view = self._again("check", hold=HOLD, place=place, secret=secret, ttl=ttl)
        while view["state"] not in ("active", "ended"):
            view = self._again("wait", hold=HOLD, lease=view["lease"], secret=secret)
        if view["state"] == "ended":
            raise FarmError(f"{place} does not take a check: {said(view)}", peer=self.address, reason=view["reason"])
        lease = Lease(self, view, secret)
        self._keep(lease)
        return lease

    # ---- The API of TVM's tracker clients ----

    def request(
        self, key: str, priority: float = 1, session_timeout: float = 0, max_retry: int = 5,
        session_constructor_args: Sequence[Any] | None = None,
    ) -> Session:  # fmt: skip
        """Wait for a place, and return a session with it; the lease ends with the session.

        Parameters:
            key: what ``lease`` takes.
            priority: the larger is served earlier; 1 is usual.
            session_timeout: seconds that the session may last; 0 for any time.
            max_retry: how often to ask again where the place does not answer.
            session_constructor_args: as of ``portcall.rpc.connect``.
        """
        for attempt in range(max_retry + 1):
            lease = self.lease(key, priority=max(-10.0, min(10.0, priority - 1)), limit=session_timeout)
            try:
                session = lease.session(constructor_args=session_constructor_args)
            except (ConnectError, SessionTimeoutError):
                lease.release()
                if attempt == max_retry:
                    raise
            except BaseException:
                lease.release()
                raise
            else:
                session._at_close = weakref.finalize(session, lease.release)
                return session
        raise ValueError(f"invalid max_retry {max_retry} (must be 0 or more)")

    def request_and_run(
        self, key: str, func: Callable[[Session], T], priority: float = 1, session_timeout: float = 0,
        max_retry: int = 2,
    ) -> T:  # fmt: skip
        """Return ``func(session)``, called with its own session; another place is tried when that is lost."""
        for attempt in range(max_retry + 1):
            try:
                with self.request(key, priority, session_timeout) as session:
                    return func(session)
            except (SessionBrokenError, SessionTimeoutError, ConnectError, RemoteCrashError):
                if attempt == max_retry:
                    raise
        raise ValueError(f"invalid max_retry {max_retry} (must be 0 or more)")

    def summary(self) -> dict[str, Any]:
        """Return how many places of each key are free, how many requests wait, and the servers, as TVM's API does."""
        status = self.status()
        queues: dict[str, dict[str, int]] = {}
        servers = []
        for place in status["places"]:
            host, _, port = place["address"].rpartition(":")
            for key in place["keys"]:
                queues.setdefault(key, {"free": 0, "pending": 0})["free"] += place["free"]
                servers.append({"key": f"server:{key}", "addr": [host, int(port or 0)], "place": place["place"]})
        for want, count in status["waiting_for"].items():
            queues.setdefault(want, {"free": 0, "pending": 0})["pending"] += count
        return {"queue_info": queues, "server_info": servers}

    def text_summary(self) -> str:
        """Return the summary as lines of text."""
        summary = self.summary()
        rows = [
            f"{info['key']}  {info['addr'][0]}:{info['addr'][1]}  {info['place']}" for info in summary["server_info"]
        ]
        rows += [f"{key}: {q['free']} free, {q['pending']} waiting" for key, q in sorted(summary["queue_info"].items())]
        return "\n".join(rows)

    def resume(self, ticket: str) -> Lease:
        """Return a lease that another process holds, from its ``ticket``. The other one releases it.

        Raises:
            FarmError: it is over, or the ticket is wrong.
        """
        id, _, secret = ticket.partition(":")
        return Lease(self, self._channel.call("renew", lease=id, secret=secret), secret, own=False)

    def status(self) -> dict[str, Any]:
        """Return all places, leases and waiting requests, as ``portcall farm status --json`` prints them."""
        return self._channel.call("status")

    def command(self, what: str, **fields: Any) -> dict[str, Any]:
        """Give any other command, such as ``drain``, and return the answer.

        Raises:
            FarmError, ConnectError, AuthenticationError: it is refused, or no farm answers.
        """
        return self._channel.call(what, **fields)

    def close(self) -> None:
        """Release all leases, but those of the process of which this one is a copy."""
        if os.getpid() != self._owner:
            self._begin()
        with self._lock:
            self._closed = True
            leases = list(self._leases.values())
            self._lock.notify()
        for lease in leases:
            lease.release()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._channel.close()

    def use_token(self, token: str) -> None:
        """Show this token from now on."""
        self._channel.token = token

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<portcall.farm.Farm {self.address}>"

    def _again(self, what: str, **fields: Any) -> dict[str, Any]:
        """Give a command that may be repeated, also while the farm starts again."""
        for pause in RETRY_PAUSES:
            try:
                return self._channel.call(what, **fields)
            except ConnectError as error:
                if error.reason == "farm-token":
                    raise
                time.sleep(pause)
        return self._channel.call(what, **fields)

    # ---- Heartbeats ----

    def _keep(self, lease: Lease) -> None:
        if os.getpid() != self._owner:
            self._begin()
        with self._lock:
            self._leases[lease.id] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="portcall-farm", daemon=True)
                self._thread.start()
            self._lock.notify()

    def _forget(self, lease: Lease) -> None:
        with self._lock:
            self._leases.pop(lease.id, None)

    def _beat(self) -> None:
        """Tell the farm that the leases of this process are in use."""
        while True:
            with self._lock:
                now = time.monotonic()
                due = min((lease.next_beat for lease in self._leases.values()), default=now + HOLD)
                if self._closed:
                    return
                if due > now:
                    self._lock.wait(due - now)
                    continue
                leases = [lease for lease in self._leases.values() if lease.next_beat <= now]
            for lease in leases:
                lease.next_beat = time.monotonic() + lease.beat()


class Lease:
    """The right to use a place; a context manager that gives it back.

    Attributes:
        id, user, want: as the farm has them.
        place: id of the place.
        next_beat: when to send the next heartbeat, by the monotonic clock.
    """

    next_beat = 0.0

    def __init__(self, farm: Farm, view: dict[str, Any], secret: str, own: bool = True) -> None:
        self._own = own
        self._owner = os.getpid()
        self._farm = farm
        self._secret = secret
        self._view = view
        self._over = ""
        self._unused_key = str(view.get("key", ""))
        self._lock = threading.Lock()
        self.id = str(view["lease"])
        self.user = str(view["user"])
        self.want = str(view["want"])
        self.place = str(view["place"])

    @property
    def ticket(self) -> str:
        """A text with which another process may use the lease: ``Farm.resume``. It is a secret."""
        return f"{self.id}:{self._secret}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which the commands of another process use the lease; they have secrets."""
        channel = self._farm._channel
        ca = os.path.abspath(channel.tls.ca) if channel.tls is not None and channel.tls.ca else ""
        variables = {"PORTCALL_FARM": self._farm.address, "PORTCALL_LEASE": self.ticket, "PORTCALL_FARM_CA": ca,
                     "PORTCALL_FARM_TOKEN": channel.token}  # fmt: skip
        return {name: value for name, value in variables.items() if value}

    @property
    def over(self) -> str:
        """Why the lease has ended; empty while it lasts."""
        return self._over

    def session(
        self, *, timeout: float | None = 10.0, call_timeout: float = 0, on_wait: OnWait | None = None,
        on_output: OnOutput | None = None, constructor_args: Sequence[Any] | None = None, heartbeat: float = 0,
        reconnect: float = 0, parallel: int = 1,
    ) -> Session:  # fmt: skip
        """Open a session with the place; a lease may have several, one after the other or at the same time.

        Parameters:
            timeout, call_timeout, on_wait, on_output, heartbeat, parallel: as of ``portcall.rpc.connect``.
            constructor_args: its ``session_constructor_args``.
            reconnect: as of ``connect``: another session with the same place, as long as the lease lasts.

        Raises:
            FarmError: the lease is over.
            ConnectError: the place, or the farm, does not answer.
        """
        how = Opening(self._route, self.place, constructor_args=constructor_args or (), on_wait=on_wait,
                      heartbeat=heartbeat)  # fmt: skip
        while True:
            may_be_old = bool(self._unused_key)
            try:
                return open_session(how, timeout, call_timeout, on_output, reconnect, parallel)
            except KeyMismatchError:
                if not may_be_old:
                    raise  # the key of the grant may be from before a restart of the farm; another one is not

    def _route(self, timeout: float | None) -> tuple[Address, str, TLSOptions | None]:
        with self._lock:
            view, key, self._unused_key = self._view, self._unused_key, ""
            if not key:
                try:
                    view = self._ask("session", hold=HOLD if timeout is None else min(HOLD, timeout))
                except FarmError as error:
                    if error.reason != "agent":
                        raise
                    raise ConnectError(str(error), peer=self.place, reason="agent") from None
                key = view["key"]
        if view["port"]:
            return Address(view["host"], view["port"]), key, None
        return self._farm._channel.address, key, self._farm._channel.tls

    def extend(self, seconds: float) -> None:
        """Let the lease last that many seconds from now on, within the limit that it was asked for with."""
        self._ask("extend", seconds=seconds)

    def release(self) -> None:
        """Give the place back; its sessions end. A second time, when the lease is over already, and in a process that
        is a copy of the one that has it, nothing happens."""
        if os.getpid() != self._owner:
            return
        self._farm._forget(self)
        if not self._over:
            self._over = "released"
            if not self._own:
                return
            with contextlib.suppress(RPCError):
                self._farm._again("release", lease=self.id, secret=self._secret)

    def leave(self) -> None:
        """Leave the lease to those who have its ``ticket``: this process neither keeps nor releases it."""
        self._own = False
        self._farm._forget(self)

    def wait_for_end(self) -> str:
        """Wait until the lease ends, and return why."""
        while not self._over and not self._farm._closed:
            try:
                view = self._farm._channel.call("wait", hold=HOLD, lease=self.id, secret=self._secret, end=True)
                why = said(view) if view["state"] == "ended" else ""
            except FarmError as error:
                why = str(error)
            except RPCError:  # the farm is away
                time.sleep(RETRY_PAUSES[-2])
                continue
            if why:
                self._over = why
        return self._over

    def beat(self) -> float:
        """Tell the farm that the lease is in use; return the seconds until the next time."""
        try:
            view = self._farm._channel.call("renew", lease=self.id, secret=self._secret)
        except FarmError as error:
            if not self._over:
                self._over = str(error)
            self._farm._forget(self)
        except RPCError:  # the farm is away; it gives us time when it comes back
            return 1.0
        else:
            return float(view["ttl"]) / _BEATS
        return HOLD

    def checked(self, job: str, seconds: float = 0, why: str = "", tolerance: float = 1.5) -> str:
        """Say how the check of ``Farm.check`` went; return why the place failed it, or an empty text.

        Args:
            job: what was done.
            seconds: that it took, which are compared with its first time on this place; 0: not timed.
            why: it failed.
            tolerance: by which factor the seconds may be longer.
        """
        return str(self._ask("checked", job=job, seconds=seconds, why=why, tolerance=tolerance)["failed"])

    def keep(self, job: str, seconds: float, interval: tuple[float, float], ok: bool) -> None:
        """Keep a figure in the farm's history, which its page draws as a curve.

        Args:
            job: what was measured; figures of the same words are one curve.
            seconds: of a call; ``interval``: where that lies.
            ok: it can be trusted.

        Raises:
            FarmError: the lease is over, or the farm is older than this command.
        """
        self._ask("keep", job=job, seconds=seconds, low=interval[0], high=interval[1], ok=int(ok))

    def _ask(self, what: str, **fields: Any) -> dict[str, Any]:
        if self._over:
            raise FarmError(f"the lease of {self.place} is over: {self._over}", peer=self._farm.address, reason="ended")
        return self._farm._again(what, lease=self.id, secret=self._secret, **fields)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<portcall.farm.Lease {self.id} of {self.place}{f', over: {self._over}' if self._over else ''}>"


def said(view: dict[str, Any]) -> str:
    """Return the reason of an ended lease in words."""
    by = f" by {view['by']}" if view.get("by") else ""
    return f"{view['reason']}{by}{': ' + view['detail'] if view.get('detail') else ''}"


def _hold(until: float | None) -> float:
    return HOLD if until is None else max(0.05, min(HOLD, until - time.monotonic() + 0.5))
