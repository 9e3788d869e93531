# SPDX-License-Identifier: Apache-2.0
"""``serve --announce``, ``farm --announce`` and ``remote scan``: servers that are found in the local network (mDNS).

An announcement has a name, an address, the key, and whether a token and TLS are asked for. It never has a token, and
is no proof: anyone in the network can announce anything. Who connects gives the token of a server that they know, which
the server proves to have as well.

A program, too: the announcement is withdrawn when its standard input ends.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from portcall.errors import printable
from portcall.extras import needed

KINDS = {"server": "_portcall._tcp.local.", "farm": "_portcall-farm._tcp.local."}
EXTRA = "scan"
MOST_TEXT = 63  # characters of what others say, as many as a name has bytes
MOST_FOUND = 256
MOST_NAMES = 4096  # that are looked at: most of those of a flood have no address
LEAVING = 3.0  # seconds to withdraw an announcement
ALL = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class Announcement:
    """What is told of a server, or of a farm."""

    kind: str
    host: str
    port: int
    key: str = ""
    token: bool = False
    tls: bool = False


@dataclass(frozen=True)
class Found:
    """What somebody in the network announces; none of it need be true. Texts can be printed."""

    name: str
    kind: str
    address: str
    addresses: tuple[str, ...]
    key: str
    token: bool
    tls: bool
    portcall: str


@contextlib.contextmanager
def announcing(what: Announcement) -> Iterator[None]:
    """Announce a server as long as the block runs, from a process of its own.

    Raises:
        ModuleNotFoundError: python-zeroconf is missing.
    """
    check_installed()
    words = [sys.executable, "-m", __name__, json.dumps(asdict(what))]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PORTCALL_")}  # no secrets
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, env=plain
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(LEAVING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_installed() -> None:
    """Raise ModuleNotFoundError, which says what to install, where python-zeroconf is missing."""
    with needed(EXTRA, "finding servers in the network"):
        import zeroconf  # noqa: F401


def _interfaces(host: str) -> dict[str, Any]:
    """Return on which of this machine's addresses to speak, as zeroconf wants it."""
    from zeroconf import InterfaceChoice, IPVersion

    if host in ALL:
        return {"interfaces": InterfaceChoice.All}
    number = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0][4][0]
    return {"interfaces": [number], "ip_version": IPVersion.V6Only if ":" in str(number) else IPVersion.V4Only}


def announce(what: Announcement) -> None:
    """Announce until standard input ends.

    Raises:
        OSError: there is no network for it.
    """
    import ifaddr  # zeroconf's own
    from zeroconf import ServiceInfo, Zeroconf

    from portcall import __version__

    chosen = _interfaces(what.host)
    everywhere = [str(each.ip) for adapter in ifaddr.get_adapters() for each in adapter.ips if each.is_IPv4]
    given = everywhere if what.host in ALL else chosen["interfaces"]
    addresses = [each for each in given if not each.startswith("127.")] or list(given)
    machine = socket.gethostname().partition(".")[0] or "portcall"
    kind = KINDS[what.kind]
    facts = {"key": what.key, "token": "1" if what.token else "0", "tls": "1" if what.tls else "0",
             "portcall": __version__}  # fmt: skip
    name = (
        f"{machine}-{what.key or what.kind}-{what.port}".replace(".", "-").encode()[:MOST_TEXT].decode(errors="ignore")
    )
    info = ServiceInfo(kind, f"{name}.{kind}", port=what.port, properties=facts, parsed_addresses=addresses,
                       server=f"{machine}-portcall-{what.port}.local.")  # fmt: skip
    network = Zeroconf(**chosen)
    try:
        network.register_service(info, allow_name_change=True)
        sys.stdin.buffer.read()
    finally:
        network.close()  # says that it is gone


def scan(seconds: float, interface: str = "") -> tuple[list[Found], int]:
    """Ask the network who announces servers and farms, and wait for answers; also return how many were left out.

    However many there are, it takes the time that was given.

    Raises:
        ModuleNotFoundError: python-zeroconf is missing.
        OSError: there is no such interface.
    """
    check_installed()
    import asyncio  # here: every server imports this file

    found = asyncio.run(_scan(seconds, interface))
    shown_ones = sorted(found[:MOST_FOUND], key=lambda one: (one.kind, one.name, one.address))
    return shown_ones, len(found) - len(shown_ones)


async def _scan(seconds: float, interface: str) -> list[Found]:
    import asyncio

    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    names: dict[tuple[str, str], None] = {}

    def note(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed:
            names.pop((service_type, name), None)
        elif len(names) < MOST_NAMES:
            names[service_type, name] = None

    network = AsyncZeroconf(**_interfaces(interface))
    try:
        browser = AsyncServiceBrowser(network.zeroconf, list(KINDS.values()), handlers=[note])
        await asyncio.sleep(seconds * 0.75)
        await browser.async_cancel()
        infos = []
        for service_type, name in names:
            with contextlib.suppress(Exception):  # whatever somebody may announce
                infos.append((service_type, name, AsyncServiceInfo(service_type, name)))
        silent = [info for *_, info in infos if not info.load_from_cache(network.zeroconf)][:MOST_FOUND]
        asked = (info.async_request(network.zeroconf, seconds * 250) for info in silent)
        await asyncio.gather(*asked, return_exceptions=True)
        return [one for each in infos if (one := read(*each)) is not None]
    finally:
        await network.async_close()


def read(service_type: str, name: str, info: Any) -> Found | None:
    """Return what was announced, in texts that can be printed; None where there is no address in it."""
    kind = next(kind for kind, each in KINDS.items() if each == service_type)
    addresses = tuple(each for each in info.parsed_scoped_addresses() if _is_of_a_machine(each))
    if not addresses or not 0 < (info.port or 0) < 1 << 16:
        return None
    facts = {bytes(key): bytes(value or b"") for key, value in info.properties.items()}
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return Found(
        shown(name.removesuffix(f".{service_type}")),
        kind,
        f"{host}:{info.port}",
        addresses,
        shown(facts.get(b"key", b"").decode(errors="replace")),
        facts.get(b"token") == b"1",
        facts.get(b"tls") == b"1",
        shown(facts.get(b"portcall", b"").decode(errors="replace")),
    )


def _is_of_a_machine(address: str) -> bool:
    number = ipaddress.ip_address(address)
    return not (number.is_multicast or number.is_unspecified)


def shown(text: str) -> str:
    """Return a text of somebody else's in one line, without what drives a terminal."""
    line = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= MOST_TEXT else f"{line[: MOST_TEXT - 1]}…"


def main() -> None:
    """Announce what the argument says."""
    what = Announcement(**json.loads(sys.argv[1]))
    try:
        announce(what)
    except Exception as error:  # zeroconf has classes of its own
        sys.exit(f"--announce: this {what.kind} is not announced: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
