# SPDX-License-Identifier: Apache-2.0
"""The first bytes of a connection: who is there, on what terms, and can both prove it. No I/O here.

    client                                          server
    hello   magic, length, key and options   ->
                                             <-     reply   code, and on success length, key and words
    proof   32 bytes                         ->                                       only where the reply asks for it
                                             <-     reply   the same, with the server's proof

Before the last reply come notices (0xFF274, length, text) while a portcall client waits in the queue.

A TVM client's hello has no ``-portcall`` option, and a TVM server ignores ours; then hello and reply are all there is.
Two portcall peers that share a token prove it to each other: each sends HMAC-SHA256 of the token over its role and over
all that was said before, which has a nonce of either side in it. The token itself is never sent.

Any bytes give a message or RemoteProtocolError.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from portcall.errors import AuthenticationError, KeyMismatchError, RemoteProtocolError, VersionMismatchError
from portcall.rpc.wire._facts import (
    BLANKS,
    DUPLICATE,
    EXTENSION_VERSION,
    FEATURES,
    MAGIC,
    MAX_KEY_BYTES,
    MISMATCH,
    MOST_SECONDS,
    NOTICE,
    OLDEST_EXTENSION,
)

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEAD = struct.Struct("<ii")
_CODE = struct.Struct("<i")


@dataclass(frozen=True)
class Hello:
    """What a peer says of itself: its key, and options as ``-name=value`` words."""

    key: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def is_portcall(self) -> bool:
        return "portcall" in self.options

    @property
    def timeout(self) -> float:
        """The session time that a client asks for, in seconds; 0 when it does not."""
        text = self.options.get("seconds") or self.options.get("timeout", "0")
        if not _SECONDS.fullmatch(text):
            raise RemoteProtocolError(f"the option -timeout={text!r} is not a number of seconds")
        seconds = float(text)
        if not 0 <= seconds <= MOST_SECONDS:
            raise RemoteProtocolError(f"the option -timeout={text} is out of range")
        return seconds

    @property
    def features(self) -> frozenset[str]:
        """The extensions that a peer has, of those that are known here."""
        return frozenset(self.options.get("features", "").split(",")).intersection(FEATURES)

    def check_version(self, peer: str) -> None:
        """Raise VersionMismatchError unless a portcall peer has a version of the extensions that is known here.

        Raises:
            RemoteProtocolError: it says no version.
        """
        newest, oldest = self.options.get("portcall", ""), self.options.get("oldest", "1")
        if not (newest.isdecimal() and oldest.isdecimal() and len(newest + oldest) < 10):
            raise RemoteProtocolError(f"the option -portcall={newest[:40]!r} is not a version")
        if int(newest) < OLDEST_EXTENSION or int(oldest) > EXTENSION_VERSION:
            theirs, ours = _span(int(oldest), int(newest)), _span(OLDEST_EXTENSION, EXTENSION_VERSION)
            raise VersionMismatchError(
                f"{peer} speaks version {theirs} of portcall's extensions, this side version {ours}; "
                "install the same portcall on both"
            )

    @property
    def proof(self) -> bytes:
        """The proof that a server's reply carries; empty when it has none, or one that cannot be read."""
        try:
            return bytes.fromhex(self.options.get("proof", ""))
        except ValueError:
            return b""

    def words(self, role: str) -> str:
        return " ".join([f"{role}:{self.key}", *(f"-{name}={value}" for name, value in self.options.items())])


def _span(first: int, last: int) -> str:
    return str(last) if first >= last else f"{first} to {last}"


def extension_options(features: Iterable[str] = (), **more: str) -> dict[str, str]:
    """Return the options by which a portcall peer says its versions and features, and ``more``."""
    options = {"portcall": str(EXTENSION_VERSION)}
    if OLDEST_EXTENSION > 1:
        options["oldest"] = str(OLDEST_EXTENSION)
    if features:
        options["features"] = ",".join(sorted(features))
    return {**options, **more}


def new_nonce() -> str:
    """Return a value that was never used before."""
    return os.urandom(16).hex()


def check_key(key: str) -> str:
    """Return a key that can travel.

    Raises:
        ValueError: it contains whitespace.
    """
    if not set(key).isdisjoint(BLANKS):
        raise ValueError(f"the key {key!r} contains whitespace, which the protocol cannot carry")
    return key


def client_hello(
    key: str,
    *,
    session_timeout: float = 0,
    extended: bool = True,
    nonce: str = "",
    features: Iterable[str] = FEATURES,
    capsule: bool = False,
) -> bytes:
    """Return the bytes that a client opens with.

    Raises:
        ValueError: the key contains whitespace, which the protocol cannot carry; a time out of range.
    """
    check_key(key)
    if not 0 <= session_timeout <= MOST_SECONDS:
        raise ValueError(f"invalid session_timeout {session_timeout!r} (must be 0 to {MOST_SECONDS:g} seconds)")
    options: dict[str, str] = {}
    whole = math.ceil(session_timeout)
    if extended:
        options.update(extension_options(features))
        if nonce:
            options["nonce"] = nonce
        if capsule:
            options["capsule"] = "1"
        if whole != session_timeout:
            options["seconds"] = repr(session_timeout)
    if whole:  # digits alone, and last: TVM's servers in C++ and Java read no other form
        options["timeout"] = str(whole)
    text = Hello(key, options).words("client").encode()
    return _HEAD.pack(MAGIC, len(text)) + text


def reason_hello(session_id: str, secret: str) -> bytes:
    """Return the bytes that ask, instead of a session, why an earlier one ended."""
    text = Hello("", extension_options(reason=f"{session_id}.{secret}")).words("client").encode()
    return _HEAD.pack(MAGIC, len(text)) + text


def server_reply(key: str, options: dict[str, str] | None = None) -> bytes:
    """Return the bytes that accept a client; ``options`` only for one that offered the extension."""
    text = Hello(key, options or {}).words("server").encode()
    return _HEAD.pack(MAGIC, len(text)) + text


def refusal(code: int) -> bytes:
    """Return the bytes that refuse a client."""
    return _CODE.pack(code)


def notice(text: str) -> bytes:
    """Return the bytes that say to a portcall client why it waits."""
    data = text.encode()[:MAX_KEY_BYTES]
    return _HEAD.pack(NOTICE, len(data)) + data


def check_token(token: str) -> str:
    """Return a token, or an empty text for none.

    Raises:
        ValueError: it is nothing but blanks, as a variable that was not filled in may be.
    """
    if token and not token.strip():
        raise ValueError("the token is blank; one that cannot be guessed is made by: openssl rand -hex 32")
    return token


def proof(token: str, role: str, transcript: bytes) -> bytes:
    """Return the proof that this side knows the token; ``role`` is "client" or "server"."""
    return hmac.new(token.encode(), role.encode() + b"\0" + transcript, hashlib.sha256).digest()


def check_proof(received: bytes, token: str, role: str, transcript: bytes) -> None:
    """Raise AuthenticationError unless ``received`` is the proof of that role."""
    if not hmac.compare_digest(received, proof(token, role, transcript)):
        raise AuthenticationError(f"the {role} does not know the token of this server")


def parse_words(text: bytes, role: str) -> Hello:
    """Read a key and its options.

    Raises:
        RemoteProtocolError: not UTF-8, or not of that role.
    """
    try:
        words = [word for word in re.split(f"[{BLANKS}]", text.decode()) if word]
    except UnicodeDecodeError:
        raise RemoteProtocolError("the peer's key is not UTF-8") from None
    found, colon, key = (words[0] if words else "").partition(":")
    if found != role or not colon:
        raise RemoteProtocolError(f"the peer is not a {role}: it sent {' '.join(words)[:80]!r}")
    options = {}
    for word in words[1:]:
        name, _, value = word.removeprefix("-").partition("=")
        options[name] = value
    return Hello(key, options)


def _missing(rest: bytes) -> int:
    if len(rest) < _CODE.size:
        return _CODE.size - len(rest)
    if len(rest) < _HEAD.size:
        return _HEAD.size - len(rest)
    return max(1, _HEAD.size + int(_HEAD.unpack_from(rest)[1]) - len(rest))


class HelloReader:
    """Reads what a client opens with, in any split. ``transcript`` is what was read; the rest stays in ``rest``."""

    def __init__(self) -> None:
        self.rest = b""
        self.transcript = b""

    def missing(self) -> int:
        """Return the least number of missing bytes: a reader that takes no more never reads into the session."""
        return _missing(self.rest)

    def feed(self, data: bytes) -> Hello | None:
        """Return the hello once it is complete.

        Raises:
            RemoteProtocolError: the peer does not speak this protocol.
        """
        self.rest += data
        if len(self.rest) >= _CODE.size and _CODE.unpack_from(self.rest)[0] != MAGIC:
            raise RemoteProtocolError("the peer does not speak the RPC protocol (wrong magic number)")
        if len(self.rest) < _HEAD.size:
            return None
        _, size = _HEAD.unpack_from(self.rest)
        if not 0 < size <= MAX_KEY_BYTES:
            raise RemoteProtocolError(f"the peer's key has a length of {size}")
        end = _HEAD.size + size
        if len(self.rest) < end:
            return None
        self.transcript, self.rest = self.rest[:end], self.rest[end:]
        return parse_words(self.transcript[_HEAD.size :], "client")


@dataclass(frozen=True)
class Notice:
    """Why a client waits, in the server's words."""

    text: str


class ReplyReader:
    """Reads a server's answer to a hello, in any split."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.rest = b""
        self.transcript = b""

    def missing(self) -> int:
        """Return the least number of missing bytes: a reader that takes no more never reads into the session."""
        return _missing(self.rest)

    def feed(self, data: bytes) -> Hello | Notice | None:
        """Return the next message once it is complete; notices may come before the reply.

        Raises:
            KeyMismatchError: the server has another key, or another client waits for a server of that key already.
            RemoteProtocolError: the peer is not an RPC server.
        """
        self.rest += data
        if len(self.rest) < _CODE.size:
            return None
        (code,) = _CODE.unpack_from(self.rest)
        if code == MISMATCH:
            asked = f"does not have the key {self._key!r}" if self._key else "has a key, and none was given"
            raise KeyMismatchError(f"the server {asked}")
        if code == DUPLICATE:
            raise KeyMismatchError(f"another client waits for a server with the key {self._key!r} already")
        if code not in (MAGIC, NOTICE):
            raise RemoteProtocolError("the peer is not an RPC server (wrong magic number)")
        if len(self.rest) < _HEAD.size:
            return None
        _, size = _HEAD.unpack_from(self.rest)
        if not 0 <= size <= MAX_KEY_BYTES:
            raise RemoteProtocolError(f"the server's key has a length of {size}")
        end = _HEAD.size + size
        if len(self.rest) < end:
            return None
        message, self.rest = self.rest[:end], self.rest[end:]
        text = message[_HEAD.size :]
        if code == NOTICE:
            return Notice(text.decode(errors="replace"))
        self.transcript = message
        if text.startswith(b"client:"):  # TVM's server in Java answers with the client's own words
            return Hello(parse_words(text, "client").key)
        return parse_words(text, "server")
