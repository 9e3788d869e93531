# SPDX-License-Identifier: Apache-2.0
"""The agent of a farm's place: runs a server that lets in only clients that the farm sends, and reports to the farm.

The agent asks the farm for orders again and again; a question is answered when there is something to do. Sessions do
not depend on it: while the farm is away, or answers nonsense, they go on, and the agent tries again forever, after
growing pauses. Only a token that the farm refuses ends it; and at its start a name that another one keeps.

An offer is accepted once the server knows the key of its client. When a lease ends, all its sessions do, and the farm
hears when nothing of it is left.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import secrets
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from portcall._core import __version__
from portcall.errors import AuthenticationError, ConnectError, FarmError, RPCError
from portcall.rpc.client._farm_channel import FarmChannel
from portcall.rpc.client._socket import as_descriptor, open_socket
from portcall.rpc.server._hooks import run_hook
from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import (
    AGENT_REPORTS,
    AdmitClient,
    AdoptConnection,
    EndLease,
    LeaseEnded,
    Message,
    SessionClosed,
    SessionOpened,
)
from portcall.rpc.server._options import FARM_TOKEN, ServerOptions, is_loopback
from portcall.rpc.server._server import Server
from portcall.rpc.server._worker import protect_memory, take_variable
from portcall.rpc.wire._address import Address, parse_address
from portcall.rpc.wire._facts import FIRST_PAUSE, HOLD, HOOK_LIMIT, LEAST_DISK, LONGEST_PAUSE, TAKEN
from portcall.rpc.wire._farm import (
    Accepted,
    Admitted,
    Cleaned,
    ClientOrder,
    Closed,
    Declined,
    End,
    Ended,
    FarmMessageError,
    Offer,
    Opened,
    Order,
    Report,
    read_order,
    write,
)
from portcall.rpc.wire._handshake import server_reply

RELAY_TIMEOUT = 10.0
LINK_TIMEOUT = 15.0  # seconds until the end of a server is noticed at the latest

OnReady = Callable[[Address], None]
Log = Callable[[str], None]


@dataclass(frozen=True)
class PlaceOptions:
    """What an agent tells the farm about its place.

    Attributes:
        id: the name of the place, the same after each start.
        keys: what it is asked for by.
        tags: labels beside the facts that are measured.
        relay: clients come through the farm, over connections that the agent makes. By default they do unless the
            server listens where they can reach it.
        address: where clients reach the server, if not at its own address, as behind a router; a port may be left out.
        check, prepare: commands of the shell that run before a lease; where one fails, the request goes elsewhere.
        clean: one that runs after it. They see PORTCALL_PLACE, PORTCALL_USER and PORTCALL_LEASE_ID.
        hook_limit: seconds for each of them.
    """

    id: str
    keys: tuple[str, ...]
    tags: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    relay: bool | None = None
    address: str = ""
    check: str = ""
    prepare: str = ""
    clean: str = ""
    hook_limit: float = HOOK_LIMIT

    @property
    def patience(self) -> float:
        """Seconds that the hooks on one side of a lease may take."""
        return self.hook_limit * max(bool(self.check) + bool(self.prepare), bool(self.clean))

    def __post_init__(self) -> None:
        for key in self.keys:
            if not key or key != "".join(key.split()):
                raise ValueError(f"invalid key {key!r} (must be text without whitespace)")
        if self.address and self.relay:
            raise ValueError(f"clients cannot come to {self.address!r} and through the farm only: leave one out")
        if self.address and parse_address(self.address).path:
            raise ValueError(f"invalid address {self.address!r} (must be host[:port], where clients connect)")


def facts() -> dict[str, str | int | float | bool]:
    """Return what this machine is, as tags: cores, memory in bytes, architecture, system."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "ram": pages * size,
        "arch": platform.machine(),
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "libc": " ".join(filter(None, platform.libc_ver())),
        "host": socket.gethostname(),
        "portcall": __version__,
    }


class ServerEnded(RPCError):
    """The server of a place is gone."""


class Agent:
    """Serves one place until ``stop`` is called, or its server ends.

    Parameters:
        channel: to the farm.
        place: what the farm is informed of.
        options: of the server.
        log: called with a line when something happens to the farm's connection.
    """

    def __init__(
        self, channel: FarmChannel, place: PlaceOptions, options: ServerOptions, log: Log = lambda text: None
    ) -> None:
        self._channel = channel
        self._place = place
        self._options = options
        self._log = log
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._hooks = threading.Lock()  # held while hooks of this place run: one after the other
        self._fence = 0
        self._over = 0  # the farm has ended the leases up to this fence
        self._sessions: dict[str, int] = {}  # fences
        self._waiting: dict[socket.socket, int] = {}  # relayed connections without a client, and their fences
        self._registered = ""
        self._cleaned = 0  # the fence of the last lease after which ``clean`` was run
        self._leases: dict[int, Order] = {}  # what the farm said of each lease that is here, by fence
        self._instance = secrets.token_hex(16)
        self._server: Server | None = None
        self._ready = False
        self._said = ""  # the last trouble with the farm that was logged, and when
        self._said_at = 0.0

    @staticmethod
    def take_token() -> str:
        """Return the token of PORTCALL_FARM_TOKEN, and keep it from sessions: they run as the same user.

        From now on the kernel keeps the memory of this process from other processes of this user, and the variable is
        gone from its environment. Call it before anything else has the token.
        """
        protect_memory()
        return take_variable(FARM_TOKEN)

    def run(self, on_ready: OnReady) -> None:
        """Serve the place. ``on_ready`` is called with the server's address once the farm knows the place.

        A server that ends is started again, after growing pauses.

        Raises:
            RPCError: the server does not start, the farm refuses our token, or has given our name to somebody else.
        """
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            begin = time.monotonic()
            try:
                self._run_server(on_ready)
            except ServerEnded as error:
                if time.monotonic() - begin > LONGEST_PAUSE:
                    pause = FIRST_PAUSE
                self._log(f"{error}; starting it again in {pause:.1f} s")
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                self._channel = self._channel.clone()
                self._sessions.clear()
                self._registered = ""

    def _run_server(self, on_ready: OnReady) -> None:
        """Serve the place until ``stop`` is called, or the server has ended."""
        ours, theirs = Link.pair()
        with ours:
            with theirs:
                options = replace(self._options, gate=theirs.fileno(), stop_with_stdin=True, key=self._place.keys[0])
                self._server = self._start_server(options)
            self._link = ours
            follower = threading.Thread(target=self._follow_server, name="portcall-agent", daemon=True)
            follower.start()
            comes_back = False
            try:
                self._ask_for_orders(on_ready)
            except ServerEnded:
                comes_back = True
                raise
            finally:
                self._channel.close()
                if self._registered and not comes_back:
                    with contextlib.suppress(RPCError), contextlib.closing(self._channel.clone()) as channel:
                        channel.call("leave", place=self._place.id, agent=self._registered)
                self._server.terminate()
                if comes_back:
                    self._registered = ""
                else:
                    self._stopping.set()
                follower.join(LINK_TIMEOUT)  # it ends with the server

    def _start_server(self, options: ServerOptions) -> Server:
        try:
            return Server(**options.to_dict())
        except ConnectError as error:
            if self._ready:  # it did start before
                raise ServerEnded(str(error), reason="server") from None
            raise

    def stop(self) -> None:
        """Let ``run`` return; may be called from a handler of a signal."""
        self._stopping.set()
        self._channel.close()

    # ---- The farm ----

    def _ask_for_orders(self, on_ready: OnReady) -> None:
        begin, pause = time.monotonic(), FIRST_PAUSE
        done: list[Report] = []
        assert self._server is not None
        while not self._stopping.is_set():
            if not self._server.running:
                raise ServerEnded("the server of this place has ended", reason="server")
            try:
                if not self._registered:
                    self._register()
                    done = []
                    self._log(f"registered with the farm {self._channel.address} as {self._place.id}")
                if not self._ready:
                    self._ready = True
                    on_ready(Address(self._server.host, self._server.port))
                orders = self._next(done)
                done = list(filter(None, map(self._obey, orders)))
                pause = FIRST_PAUSE
            except (RPCError, OSError, ValueError) as error:
                if self._stopping.is_set():
                    return
                if self._is_verdict(error, time.monotonic() - begin):
                    raise
                self._registered = ""
                if pause > FIRST_PAUSE or getattr(error, "reason", "") != "register":
                    self._complain(f"{_words(error)}; trying again")
                    self._stopping.wait(pause * random.uniform(0.8, 1.2))
                # else the farm started again, or had given us up
                pause = min(pause * 2, LONGEST_PAUSE)

    def _is_verdict(self, error: Exception, since: float) -> bool:
        """Return whether this farm will not have us, ``since`` so many seconds; anything else may pass."""
        reason = getattr(error, "reason", "")
        if isinstance(error, AuthenticationError):
            return bool(reason == "farm-token")
        return isinstance(error, FarmError) and (
            reason == "role" or (reason == "taken" and not self._ready and since > TAKEN)
        )

    def _complain(self, text: str) -> None:
        """Log trouble with the farm, unless it is the same as before."""
        if text != self._said:
            self._said, self._said_at = text, time.monotonic()
            self._log(text)

    def _next(self, done: list[Report]) -> list[Any]:
        """Return the farm's orders.

        Raises:
            RPCError: it does not answer, or answers nonsense.
        """
        asked = time.monotonic()
        answer = self._channel.call(
            "next", hold=HOLD, place=self._place.id, agent=self._registered, done=[write(report) for report in done]
        )
        orders = answer.get("orders")
        if not isinstance(orders, list):
            raise self._nonsense()
        if not orders and time.monotonic() < asked + FIRST_PAUSE:
            self._stopping.wait(FIRST_PAUSE)  # a farm that does not hold its answers back
        if time.monotonic() > self._said_at + LONGEST_PAUSE:
            self._said = ""
        return orders

    def _nonsense(self) -> ConnectError:
        peer = str(self._channel.address)
        return ConnectError(f"{peer} is not a farm: it answered nonsense", peer=peer, reason="farm")

    def _register(self) -> None:
        host, port = self._route()
        with self._lock:
            fence, sessions = self._fence, list(self._sessions)
        answer = self._channel.call(
            "register", place=self._place.id, keys=list(self._place.keys), tags={**facts(), **self._place.tags},
            host=host, port=port, fence=fence, sessions=sessions, instance=self._instance,
            patience=self._place.patience,
        )  # fmt: skip
        agent = answer.get("agent")
        if not agent or not isinstance(agent, str):
            raise self._nonsense()
        self._registered = agent

    def _route(self) -> tuple[str, int]:
        """Return where clients reach the server; port 0: through the farm only."""
        assert self._server is not None
        host, port = self._server.host, self._server.port
        if self._place.address:
            there = parse_address(self._place.address, default_port=port)
            return there.host, there.port
        local = is_loopback(host) and not is_loopback(self._channel.address.host)
        if self._place.relay or (self._place.relay is None and (local or not port)):
            return "", 0
        if host in ("0.0.0.0", "::", ""):
            with socket.socket(socket.AF_INET6 if host == "::" else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((self._channel.address.host, self._channel.address.port))  # nothing is sent
                host = probe.getsockname()[0]
        return host, port

    def _obey(self, said: Any) -> Report | None:
        """Do what the farm wants; return the immediate answer. What cannot be done is declined."""
        try:
            order = read_order(said)
        except FarmMessageError as error:
            why = f"an order of the farm cannot be carried out: {error}"
            self._complain(why)
            return Declined(error.fence, why) if error.name == "offer" and error.fence is not None else None
        if order.lease:
            with self._lock:
                self._leases[order.fence] = order
        try:
            if isinstance(order, Offer) and (self._place.check or self._place.prepare):
                threading.Thread(target=self._prepare, args=(order,), name="portcall-prepare", daemon=True).start()
                return None
            if isinstance(order, ClientOrder):
                return self._admit(order)
            self._over = max(self._over, order.fence)
            for sock in [sock for sock, of in list(self._waiting.items()) if of <= order.fence]:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            self._link.send(EndLease(order.fence))
        except (OSError, RPCError, ValueError, RuntimeError) as error:  # such as no more threads
            return Declined(order.fence, str(error)) if isinstance(order, Offer) else None
        return None

    def _admit(self, order: ClientOrder) -> Report:
        """Let the client of an order in, unless the place is not fit for a new lease; return the answer.

        Raises:
            OSError, RPCError: the server, or the farm, is not there.
        """
        offered = isinstance(order, Offer)
        trouble = self._trouble() if offered else ""
        if trouble:
            return Declined(order.fence, trouble)
        with self._lock:
            self._fence = max(self._fence, order.fence)
        self._link.send(AdmitClient(order.key, order.fence, order.limit))
        if order.relay or self._route()[1] == 0:
            self._connect_relay(order.key, order.fence)
        return (Accepted if offered else Admitted)(order.fence, order.key)

    def _trouble(self) -> str:
        """Return why this place cannot be used, as far as it is known at once."""
        if self._server is None or not self._server.running:
            return "its server has ended"
        folder = self._options.work_dir or tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        return f"only {free} bytes are free in {folder}" if free < LEAST_DISK else ""

    def _prepare(self, order: Offer) -> None:
        """Run what comes before a lease, and answer the offer, unless it is over by then."""
        why = ""
        with self._hooks:
            for hook in filter(None, (self._place.check, self._place.prepare)):
                if not why and order.fence > self._over:
                    why = run_hook(hook, self._place.hook_limit, self._variables(order))
            if order.fence <= self._over:
                return
            try:
                report = Declined(order.fence, why) if why else self._admit(order)
            except (OSError, RPCError, ValueError, RuntimeError) as error:
                report = Declined(order.fence, str(error))
        self._report(report)

    def _variables(self, order: Order) -> dict[str, str]:
        return {"PORTCALL_PLACE": self._place.id, "PORTCALL_USER": order.user, "PORTCALL_LEASE_ID": order.lease}

    def _ended(self, fence: int) -> Order:
        """Return what the farm said of the lease that ended, and forget it and those before it."""
        over = sorted(known for known in self._leases if known <= fence)
        orders = [self._leases.pop(known) for known in over]
        return orders[-1] if orders else End(fence)

    # ---- Connections through the farm ----

    def _connect_relay(self, key: str, fence: int) -> None:
        """Make a connection over which the farm passes the client of this key."""
        sock = open_socket(self._channel.address, RELAY_TIMEOUT, self._channel.tls)
        sock.sendall(server_reply(key, {"portcall": "1", "relay": "1"}))
        if isinstance(sock, ssl.SSLSocket):
            sock = socket.socket(fileno=as_descriptor(sock)[0])
        self._waiting[sock] = fence
        try:
            threading.Thread(target=self._await_client, args=(sock,), name="portcall-relay", daemon=True).start()
        except RuntimeError:
            del self._waiting[sock]
            sock.close()
            raise

    def _await_client(self, sock: socket.socket) -> None:
        """Hand a connection to the server as soon as its client says something."""
        try:
            sock.settimeout(None)
            if sock.recv(1, socket.MSG_PEEK):
                self._link.send(AdoptConnection(), [sock.fileno()])
        except OSError:
            pass
        finally:
            self._waiting.pop(sock, None)
            sock.close()

    # ---- The server ----

    def _follow_server(self) -> None:
        """Tell the farm of sessions that begin and end."""
        while (received := self._receive()) is not None:
            message = received[0]
            with self._lock:
                report = self._note(message)
                over = self._ended(message.fence) if isinstance(message, LeaseEnded) else None
            if over is not None and report is not None and self._place.patience:
                self._report(Ended(report.fence))
                with self._hooks:  # once nothing of before the lease runs any more
                    if self._place.clean and report.fence > self._cleaned:
                        self._cleaned = report.fence
                        why = run_hook(self._place.clean, self._place.hook_limit, self._variables(over))
                        report = Cleaned(report.fence, why)
            if report is not None:
                self._report(report)
        self._channel.close()

    def _report(self, report: Report) -> None:
        """Tell the farm; where it is away, until it is back."""
        pause = FIRST_PAUSE
        while (agent := self._registered) and not self._stopping.is_set():
            try:
                self._channel.call("report", place=self._place.id, agent=agent, done=[write(report)])
                return
            except FarmError as error:  # it does not take this one: it hears all when we register
                if error.reason != "register":
                    self._complain(f"the farm refused a report: {error}")
                if self._registered == agent:
                    self._registered = ""
                return
            except (RPCError, OSError, ValueError):
                self._stopping.wait(pause * random.uniform(0.8, 1.2))
                pause = min(pause * 2, LONGEST_PAUSE)

    def _receive(self) -> tuple[Message, list[int]] | None:
        try:
            return self._link.receive(AGENT_REPORTS)
        except OSError:
            return None

    def _note(self, message: Message) -> Report | None:
        if isinstance(message, SessionOpened):
            self._sessions[str(message.number)] = message.fence
            return Opened(message.fence, str(message.number))
        if isinstance(message, SessionClosed):
            self._sessions.pop(str(message.number), None)
            return Closed(message.fence, str(message.number), message.how)
        if isinstance(message, LeaseEnded):
            return Cleaned(message.fence)
        return None


def _words(error: Exception) -> str:
    """Return an error for the log; of certificates it names the option of the command, which is no part of Python."""
    hint = getattr(error, "hint", "")
    if getattr(error, "reason", "") not in ("farm-tls", "certificate"):
        return str(error)
    return f"{str(error).removesuffix(f'; {hint}')}; give the certificate of the farm: --farm-ca FILE"
