# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers: TCP and Unix sockets, and machines that ssh or adb gets to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from portcall.rpc.wire._facts import PORT

# [user@]host[:port], which cannot be taken for an option of ssh.
_WORD = r"[^\s/@:\[\]-][^\s/@:\[\]]*"
_ADB = re.compile(r"(?P<serial>[^\s/-][^\s/]*)?/?")
_SSH = re.compile(rf"(?P<host>(?:{_WORD}@)?(?:\[[0-9A-Fa-f:.]+\]|{_WORD}))(?::(?P<port>\d+))?/?")


@dataclass(frozen=True)
class Address:
    """Where a server listens: ``host:port``, ``[v6]:port`` or ``unix:/path``; or where ``ssh`` or ``adb`` starts one.

    With ``ssh`` the host is ``[user@]host``, and the port that of ssh; 0 leaves it to ssh's own settings. With ``adb``
    the host is the device's serial number; empty for the only one.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    ssh: bool = False
    adb: bool = False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        if self.adb:
            return f"adb://{self.host}"
        if self.ssh:
            user, at, host = self.host.rpartition("@")
            host = f"[{host}]" if ":" in host else host
            return f"ssh://{user}{at}{host}{f':{self.port}' if self.port else ''}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def to_dict(self) -> dict[str, Any]:
        """Return what a program wants to know: the host (of a path, too), the port, and both as one text."""
        return {"host": self.host or f"unix:{self.path}", "port": self.port, "address": str(self)}


def parse_address(text: str, port: int | None = None, *, default_port: int = PORT, ssh: bool = False) -> Address:
    """Read an address in any of its forms; ``port`` is one that was given apart.

    Raises:
        ValueError: an unknown form, or an invalid port; or one for ssh or adb, which are read only with ``ssh``.
    """
    if ssh and text.startswith("ssh://"):
        return _parse_ssh(text, port)
    if ssh and text.startswith("adb://"):
        found = _ADB.fullmatch(text.removeprefix("adb://"))
        if not found or port is not None:
            raise ValueError(f"the address {text!r} is not of the form adb://[serial number]")
        return Address(found["serial"] or "", adb=True)
    if text.startswith("unix:"):
        return Address(path=text.removeprefix("unix:"))
    scheme, is_url, rest = text.partition("://")
    if is_url:
        tls = "; TLS is an option of its own" if scheme in ("https", "wss") else ""
        raise ValueError(f"the address {text!r} is a URL: write it as {rest.rstrip('/')!r}{tls}")
    host, number = text, "" if port is None else str(port)
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"the address {text!r} is not of the form [v6]:port")
        number = number or rest[1:]
    elif text.count(":") == 1:
        host, _, given = text.partition(":")
        number = number or given
    number = number or str(default_port)
    if number.isdecimal() and not 0 < int(number) < 65536:
        raise ValueError(f"invalid port {number} in the address {text!r} (must be 1-65535)")
    if not number.isdecimal() or not host:
        raise ValueError(f"the address {text!r} is not of the form host:port, [v6]:port or unix:/path")
    return Address(host, int(number))


def _parse_ssh(text: str, port: int | None) -> Address:
    found = _SSH.fullmatch(text.removeprefix("ssh://"))
    if not found:
        raise ValueError(f"the address {text!r} is not of the form ssh://[user@]host[:port]")
    number = port if port is not None else int(found["port"] or 0)
    if not 0 <= number < 65536 or found["port"] == "0":
        raise ValueError(f"invalid port {number} in the address {text!r} (must be 1-65535)")
    return Address(re.sub(r"\[|\]", "", found["host"]), number, ssh=True)
