# SPDX-License-Identifier: Apache-2.0
"""Exceptions for the errors of a session, made of the text, the frames and the notes that a peer sent."""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from portcall import _core, errors
from portcall.rpc.wire._endings import timeout_error

_MOST_FRAMES, _MOST_LINE = 100, 500  # frames; characters of a line
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_KIND = re.compile(
    r"(?!Error:)((?:[A-Za-z_]\w*)?(?:Error|Exception|ExceptionGroup|Warning|Interrupt|Exit|Iteration)): (.*)", re.DOTALL
)
# What each hop of a chain of sessions puts in front, in words of TVM and of portcall.
_HOPS = re.compile(r"(?:RPCError: Error caught from RPC call:\n|RemoteError: )+")
_SIGNAL = re.compile(r"\bSIG[A-Z0-9]+\b")


def without_escapes(text: str) -> str:
    """Return a peer's text without what a terminal would obey; lines stay."""
    return errors.printable(_ESCAPES.sub("", text))


def _class_of(kind: str) -> type[errors.RemoteError]:
    """Return the class for a kind: RemoteError, and the registered or built-in class of that name."""
    base: Any = _registered(kind) or getattr(builtins, kind, None)
    known = isinstance(base, type) and issubclass(base, Exception)
    return _class_over(base) if known else errors.RemoteError


def _registered(kind: str) -> type[Exception] | None:
    """Return the class of that name: the user's, or one of portcall's that a call here raises, too, without its facts.

    What a server says of sessions is of those that it has itself.
    """
    cls: Any = _core.registered_error_class(kind) or (getattr(errors, kind) if kind in errors.__all__ else None)
    return None if cls is None or issubclass(cls, errors.RPCError) else cls


@cache
def _class_over(base: Any) -> type[errors.RemoteError]:
    if issubclass(errors.RemoteError, base):
        return errors.RemoteError
    kind = base.__name__
    with contextlib.suppress(Exception):  # one with another layout, or other arguments
        body = {"__module__": "portcall.errors", "__reduce__": _reduce, "__str__": BaseException.__str__}
        made = type("RemoteError", (errors.RemoteError, base), body)
        made("a message", peer="", kind=kind)
        return made
    return errors.RemoteError


def _reduce(error: errors.RemoteError) -> tuple[Any, ...]:
    return remote_error, (str(error), error.peer), {"remote_traceback": error.remote_traceback}


def remote_error(text: str, peer: str = "", backtrace: str = "") -> errors.RemoteError | errors.RemoteCrashError:
    """Return the exception for the text that a peer sent, without what a terminal would obey.

    A RemoteCrashError is what the peer says of a session that it has with another one: a chain broke further on.
    """
    text = without_escapes(text)
    hops = _HOPS.match(text)
    text = text[hops.end() :] if hops else text
    match = _KIND.fullmatch(text)
    kind, message = match.groups() if match else ("", text)
    head, colon, rest = text.partition(": ")
    if not match and colon and _registered(head):  # a class whose name does not look like an exception's
        kind, message = head, rest
    if kind == errors.RemoteCrashError.__name__:
        signal = _SIGNAL.search(message)
        return errors.RemoteCrashError(f"{peer}: {message}", peer=peer, signal=signal.group() if signal else "")
    error = _class_of(kind)(message, peer=peer, kind=kind)
    if backtrace:
        _add_traceback(error, without_escapes(backtrace))
    return error


def _add_traceback(error: errors.RemoteError, backtrace: str) -> None:
    """Give an error the frames and the notes that a peer sent with it, which is most recent first."""
    lines = [line[:_MOST_LINE] for line in backtrace[: _MOST_FRAMES * _MOST_LINE].splitlines()]
    found = [match.groups() for line in lines if (match := _FRAME.fullmatch(line))]
    frames = [frame for frame in found if not frame[2].startswith("portcall._core.")][:_MOST_FRAMES]
    if frames:
        where = f" on {error.peer}" if error.peer else ""
        own = [f'  File "{file}", line {line}, in {function}' for file, line, function in reversed(frames)]
        error.remote_traceback = "\n".join([f"Traceback{where} (most recent call last):", *own, str(error)])
        named = [f'  File "{error.peer}: {file}", line {line}, in {function}' for file, line, function in frames]
        error.remote_frames = "\n".join(named)
    prefix = _core.OWN_NOTE_PREFIX
    notes = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    if notes:
        error.__notes__ = notes  # Python 3.10 keeps them, and does not print them


def _with_peer(cls: type[errors.RPCError]) -> Callable[..., errors.RPCError]:
    return lambda message, peer="", backtrace="": cls(without_escapes(message), peer=peer)


def _timeout_error(message: str, peer: str = "", backtrace: str = "") -> errors.SessionTimeoutError:
    return timeout_error(without_escapes(message), peer)


def _call_timeout_error(message: str, peer: str = "", reason: str = "", backtrace: str = "") -> errors.CallTimeoutError:
    return errors.CallTimeoutError(without_escapes(message), peer=peer, reason=reason)


def _register_errors() -> None:
    _core.register_error_class(errors.SessionTimeoutError.__name__, _timeout_error)
    for cls in (
        errors.ConnectError,
        errors.AuthenticationError,
        errors.SessionClosedError,
        errors.SessionBrokenError,
        errors.RemoteProtocolError,
    ):
        _core.register_error_class(cls.__name__, _with_peer(cls))
    _core.register_error_class(errors.CallTimeoutError.__name__, _call_timeout_error)
    _core.register_error_class("RemoteError", remote_error)


_register_errors()
