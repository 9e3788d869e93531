# SPDX-License-Identifier: Apache-2.0
"""The options of a server: where it listens, which clients it admits, what they may use, and how much of it."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from portcall.rpc.wire._facts import HANDSHAKE_TIMEOUT, LOST_CLIENT_GRACE, MAX_FRAME, MAX_HANDSHAKES, MOST_SECONDS, PORT
from portcall.rpc.wire._handshake import check_key, check_token

LogStyle = Literal["text", "json", "none"]
FARM_TOKEN = "PORTCALL_FARM_TOKEN"  # the variable that has it

_PLAIN: dict[str, Any] = {"str": str, "LogStyle": str, "bool": bool, "int": int, "float": (int, float)}
_PATHS = ("unix", "tls_certificate", "tls_key", "tls_ca", "work_dir", "audit")
_MOST_BYTES = (1 << 63) - 1
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "port_end": (0, 65536),
    "max_sessions": (0, 1_000_000),
    "session_timeout": (0.0, MOST_SECONDS),
    "handshake_timeout": (0.001, MOST_SECONDS),
    "max_handshakes": (1, 1_000_000),
    "lost_client_grace": (0.0, MOST_SECONDS),
    "cpu_limit": (0.0, MOST_SECONDS),
    "memory_limit": (0, _MOST_BYTES),
    "disk_limit": (0, _MOST_BYTES),
    "max_frame": (1, _MOST_BYTES),
    "capsules": (0, 1_000_000),
}


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server. Durations are seconds, sizes bytes; 0 means no limit unless said otherwise.

    Relative paths are made absolute: each session has its own directory.

    Attributes:
        host: the address to bind.
        port: the TCP port; 0 takes a free one.
        port_end: take the first free port below this one, from ``port`` on; 0 tries ``port`` alone.
        unix: path of a Unix socket to listen on instead, for this user alone.
        key: what clients must ask for.
        imports: Python files to run, or functions to call (``package.module:function``), before the first session;
            sessions may use what they register.
        libraries: shared libraries to load likewise.
        expose: patterns, such as ``demo.*``, of further global functions that sessions may use.
        no_fork: start a fresh Python for each session.
        allow_connect: a session may go on to another server (``rpc.Connect``); without a token and on loopback it may.
        token: what clients must prove to know; TVM clients cannot.
        insecure: listen beyond this machine without token or mutual TLS.
        tls_certificate, tls_key: PEM files; the server then speaks TLS only.
        tls_ca: PEM file of the authority whose clients are admitted (mutual TLS).
        max_sessions: how many sessions at once; further clients wait in line.
        session_timeout: how long a session may last, whatever its client asks for.
        handshake_timeout: how long a client may take to say who it is.
        max_handshakes: how many connections may be on their way to a session.
        lost_client_grace: how long a session may go on with its work after its client has gone.
        memory_limit: private memory (RLIMIT_DATA) of each process of a session; shared memory is not counted.
        disk_limit: bytes of files in a session's directory.
        cpu_limit: processor time of each process of a session.
        sandbox: "best" or "require": keep sessions to their own directory, with what this kernel has for that, or with
            all of it (docs/security.md); empty for not.
        sandbox_paths: what sessions in a sandbox may read, too, and devices that they may use.
        max_frame: length of a message; the contents of tensors are not counted.
        work_dir: where the sessions' directories are made; the system's place for such when empty.
        audit: a file to which each call adds a line of JSON.
        capsules: how many of the last sessions that crashed are kept, of clients that agree (``server_capsule``), in
            ``~/.cache/portcall/capsules``.
        stop_with_stdin: stop when standard input ends.
        gate: descriptor of a link to the agent of a farm, which names the clients to let in; -1 for none.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    port_end: int = 0
    unix: str = ""
    key: str = ""
    imports: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    expose: tuple[str, ...] = ()
    no_fork: bool = False
    allow_connect: bool = False
    token: str = field(default="", repr=False)
    insecure: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    max_sessions: int = 0
    session_timeout: float = 0
    handshake_timeout: float = HANDSHAKE_TIMEOUT
    max_handshakes: int = MAX_HANDSHAKES
    lost_client_grace: float = LOST_CLIENT_GRACE
    memory_limit: int = 0
    disk_limit: int = 0
    cpu_limit: float = 0
    sandbox: str = ""
    sandbox_paths: tuple[str, ...] = ()
    max_frame: int = MAX_FRAME
    work_dir: str = ""
    audit: str = ""
    capsules: int = 0
    log: LogStyle = "text"
    stop_with_stdin: bool = False
    gate: int = -1

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            _check_type(each.name, str(each.type), getattr(self, each.name))
        check_token(self.token)
        check_key(self.key)
        for name, (low, high) in _RANGES.items():
            value, whole = getattr(self, name), isinstance(low, int)
            if not low <= value <= high or (whole and not isinstance(value, int)):
                span = f"{low}-{high}" if whole else f"{low:g}-{high:g} seconds"
                raise ValueError(f"invalid {name} {value!r} (must be {span})")
        if self.port_end and not self.port < self.port_end:
            raise ValueError(
                f"invalid port_end {self.port_end} (must be above the port, {self.port}, and at most 65536)"
            )
        if self.tls_ca and not self.tls_certificate:
            raise ValueError("mutual TLS needs a certificate of the server too: --tls-cert and --tls-key")
        if self.tls_key and not self.tls_certificate:
            raise ValueError("the TLS key has no certificate: --tls-cert")
        if self.sandbox not in ("", "best", "require"):
            raise ValueError(f"invalid sandbox {self.sandbox!r} (must be best or require)")
        if self.sandbox_paths and not self.sandbox:
            raise ValueError("--sandbox-path is for sessions in a sandbox: it needs --sandbox")
        if self.sandbox and self.allow_connect:
            raise ValueError("--allow-connect lets sessions use the network, which --sandbox takes from them")
        for name in ("imports", "libraries", "sandbox_paths"):
            object.__setattr__(self, name, tuple(map(_absolute, getattr(self, name))))
        for name in ("tls_certificate", "tls_key", "tls_ca", "work_dir", "audit"):
            object.__setattr__(self, name, getattr(self, name) and os.path.abspath(getattr(self, name)))

    @property
    def authenticated(self) -> bool:
        """Whether clients must prove who they are."""
        return bool(self.token or self.tls_ca or self.gate >= 0)

    @property
    def local(self) -> bool:
        """Whether only processes of this machine can connect."""
        return bool(self.unix) or is_loopback(self.host)

    @property
    def may_connect(self) -> bool:
        """Whether sessions may go on to other servers."""
        return not self.sandbox and (self.allow_connect or (self.local and not self.authenticated))

    def check_exposure(self) -> None:
        """Refuse to listen beyond this machine without anything that keeps strangers out.

        Raises:
            ValueError: says what to add.
        """
        if not (self.local or self.authenticated or self.insecure):
            raise ValueError(
                f"anyone who reaches {self.host or 'this machine'} could run any code here: give --token-file FILE (or "
                "PORTCALL_TOKEN), or --tls-cert, --tls-key and --tls-ca; or say --insecure in a network that you trust"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads: only values that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ServerOptions:
        """Make options of what ``to_dict`` returned, before or after JSON."""
        read: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**read)

    def without_secrets(self) -> ServerOptions:
        """Return what processes that run sessions may know; what follows from the secrets is decided here."""
        return dataclasses.replace(self, token="", gate=-1, allow_connect=self.may_connect)


def is_python_function(name: str) -> bool:
    """Return whether ``name`` is ``package.module:function``, and no file."""
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _check_type(name: str, kind: str, value: Any) -> None:
    """Refuse a value that an option of that annotation cannot have.

    Raises:
        TypeError: the message says how options are given.
    """
    is_path = isinstance(value, os.PathLike)
    if kind in _PLAIN:
        fits = isinstance(value, _PLAIN[kind]) or (is_path and name in _PATHS)
    else:
        fits = not isinstance(value, (str, bytes, Mapping)) and isinstance(value, Iterable)
    if not fits:
        wanted = {"float": "a number", "int": "an int", "bool": "a bool"}.get(
            kind, "a list" if "tuple" in kind else "a str"
        )
        raise TypeError(
            f"{name} of a server is {wanted}, got {type(value).__name__}; options go by name: "
            "Server(host=..., port=...), or Server(**options)"
        )


def _absolute(name: str | os.PathLike[str]) -> str:
    """Return a path that other processes find, too; the name of a function as it is."""
    text = os.fspath(name)
    return text if is_python_function(text) else os.path.abspath(text)


def public_environment() -> dict[str, str]:
    """Return the environment of this process without tokens: so sessions may see it."""
    return {name: value for name, value in os.environ.items() if name not in ("PORTCALL_TOKEN", FARM_TOKEN)}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; names other than localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
