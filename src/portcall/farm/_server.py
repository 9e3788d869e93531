# SPDX-License-Identifier: Apache-2.0
"""A farm in an event loop: its options, its port, its end."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from portcall.farm import _tracker_wire
from portcall.farm._access import Access
from portcall.farm._api import Api
from portcall.farm._connection import Connection
from portcall.farm._device_page import PAGE
from portcall.farm._guests import Guest, names_of
from portcall.farm._http import start_app
from portcall.farm._hub import Hub
from portcall.farm._log import FarmLog
from portcall.farm._model import Effect, Rules
from portcall.farm._port import Port, listen
from portcall.farm._relay import Relay, TcpEnd
from portcall.farm._shown import host_of, is_shared, shown_store
from portcall.farm._store import Store
from portcall.farm._tracker import Tracker
from portcall.farm._webhooks import Webhooks
from portcall.rpc.server._hooks import run_hook
from portcall.rpc.server._options import is_loopback
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._facts import MAGIC
from portcall.rpc.wire._tls import load_certificate

if TYPE_CHECKING:
    from portcall.farm._redis import RedisStore

POWER_LIMIT = 120.0  # seconds


@dataclass(frozen=True)
class FarmOptions:
    """The options of a farm.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        store: the file that it keeps everything in; ``:memory:`` for none; ``redis://host:port/0``, ``rediss://…`` or
            ``unix:///path`` for a farm of several processes.
        tls_certificate, tls_key: PEM files; portcall's peers and browsers then need TLS.
        insecure: listen beyond this machine without TLS.
        require_tokens: want tokens on this machine, too.
        names: further names under which the farm is reached, such as those of DNS; by default it answers to IP
            addresses, to localhost, and to the name of this machine.
        tvm_networks: from where TVM's servers and clients, which know no tokens, may come.
        power: command of the shell that cycles the power of the place PORTCALL_PLACE, which is away; it is used at most
            ``cycles`` times in a row.
        webhooks: URLs that get what people should know at once.
        rules: what the state machine goes by.
        npm_package: the folder of the npm package, whose page at /device makes tabs devices; empty for no such page.
        silent: log nothing.
    """

    host: str = "127.0.0.1"
    port: int = 9190
    store: str = field(default="farm.db", repr=False)
    tls_certificate: str = ""
    tls_key: str = ""
    insecure: bool = False
    require_tokens: bool = False
    names: tuple[str, ...] = ()
    tvm_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    power: str = ""
    cycles: int = 3
    webhooks: tuple[str, ...] = field(default=(), repr=False)
    rules: Rules = field(default_factory=Rules)
    npm_package: str = ""
    silent: bool = False

    def __post_init__(self) -> None:
        is_shared(self.store)
        for number, url in enumerate(self.webhooks, start=1):
            try:
                host_of(url)
            except ValueError as error:
                raise ValueError(f"invalid webhook (number {number} of {len(self.webhooks)}): {error}") from None
        if not 0 <= self.port <= 65535:
            raise ValueError(f"invalid port {self.port} (must be 0-65535)")
        for network in self.tvm_networks:
            ipaddress.ip_network(network)
        if self.npm_package and not Path(self.npm_package, PAGE).is_file():
            raise ValueError(f"'{self.npm_package}' is not the built npm package: it has no {PAGE}")
        if not (self.local or self.tls_certificate or self.insecure):
            raise ValueError(
                f"tokens would cross the network in clear on {self.host}: give --tls-cert and --tls-key, or say "
                "--insecure in a network that you trust"
            )

    @property
    def shared(self) -> bool:
        """Whether the store is one that several processes use."""
        return is_shared(self.store)

    @property
    def shown_store(self) -> str:
        """The store without its password; a file with its whole path."""
        file = not self.shared and self.store != ":memory:"
        return str(Path(self.store).absolute()) if file else shown_store(self.store)

    @property
    def local(self) -> bool:
        """Whether only processes of this machine can connect."""
        return is_loopback(self.host)


class Server:
    """A farm in the running event loop.

    Parameters:
        options: its settings.
        store, listener, secret: of one of several processes; by default it makes its own store and socket.
        log: where it says what happens; by default nowhere.

    Raises:
        OSError: it cannot listen there, or its store cannot be opened.
    """

    def __init__(
        self, options: FarmOptions, store: RedisStore | None = None, listener: socket.socket | None = None,
        secret: str = "", log: FarmLog | None = None,
    ) -> None:  # fmt: skip
        self.options = options
        self._store, self._listener, self._secret = store, listener, secret
        self.log = log or FarmLog(silent=True)
        self._networks = [ipaddress.ip_network(network) for network in options.tvm_networks]
        self._trackers: set[Tracker] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Address:
        """Listen, and return the address."""
        options = self.options
        tls = None
        if options.tls_certificate:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            load_certificate(tls, options.tls_certificate, options.tls_key)
        rules = dataclasses.replace(options.rules, cycles=options.cycles) if options.power else options.rules
        self.hub = Hub(self._store or Store(options.store), rules, self.log)
        self.hub.power = self._cycle_power
        needed = options.require_tokens or not options.local
        try:
            self.access = Access(self.hub.store, required=needed, note=self.hub.note)
        except BaseException:
            self.hub.close()
            raise
        self.api = Api(self.hub, self.access)
        self.relay = Relay(self.hub, self.may_be_tvm)
        names = names_of(socket.gethostname()) | {"localhost", *map(str.lower, (options.host, *options.names))}
        self._runner = await start_app(self.api, self.relay, names, options.npm_package)
        self._http = self._runner.server
        assert self._http is not None
        try:
            self._port = Port(
                self._listener or listen(options.host, options.port),
                {
                    _tracker_wire.MAGIC: self._tracker,
                    MAGIC.to_bytes(4, "little"): lambda guest: TcpEnd(self.relay, guest),
                    b"HTTP": self._make_http,
                },
                tls=tls,
                secret=self._secret,
                log=self.log,
            )
        except BaseException:
            await self._runner.cleanup()
            self.hub.close()
            raise
        self._webhooks = Webhooks(self.hub, options.webhooks) if options.webhooks else None
        return Address(self._port.host, self._port.port)

    def _cycle_power(self, effect: Effect) -> None:
        assert effect.place is not None
        task = asyncio.get_running_loop().create_task(self._run_power(effect.place.id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_power(self, place: str) -> None:
        why = await asyncio.to_thread(run_hook, self.options.power, POWER_LIMIT, {"PORTCALL_PLACE": place})
        self.log("power", f"cycled the power of {place}" + (f": {why}" if why else ""))

    def may_be_tvm(self, address: str) -> bool:
        """Return whether TVM's ends may come from there."""
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(ip, "ipv4_mapped", None)
        return any((mapped or ip) in network for network in self._networks)

    def _tracker(self, guest: Guest) -> asyncio.BaseProtocol:
        return Tracker(self.hub, self._trackers, self.may_be_tvm, guest)

    def _make_http(self, guest: Guest) -> asyncio.BaseProtocol:
        if self.options.tls_certificate and not guest.secure:
            return _Refusing(guest)
        assert self._http is not None
        return Connection(self._http, guest, self.log)

    async def stop(self) -> None:
        """Close all connections; places, leases and requests stay in the store."""
        self._port.close()
        self.hub.state.draining = True
        for tracker in list(self._trackers):
            tracker.close()
        if self._webhooks is not None:
            await self._webhooks.close()
        self.relay.close()
        await self._runner.cleanup()
        self.hub.close()


class _Refusing(asyncio.Protocol):
    """Tells who speaks HTTP where TLS is needed."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        body = b"this farm speaks TLS: use https\n"
        transport.write(
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._guest.leave()
