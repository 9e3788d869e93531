# SPDX-License-Identifier: Apache-2.0
"""Every exception that portcall raises on its own account::

    PortcallError
    ├── FunctionNotFoundError (LookupError, ValueError)   .name .near     nothing has that name
    ├── AlreadyRegisteredError (ValueError)               .name           something has that name already
    ├── ArgumentError (TypeError)                         .function .position .expected .got
    ├── ModuleLoadError (OSError)                         .path .problems a library cannot be loaded
    ├── DeviceError (RuntimeError)                        .device         a device is missing or refused
    ├── CompileError (RuntimeError)                       .command .output .compiler_works   of a compiler
    ├── ModelError (ValueError)                           .problems .hint a model cannot be compiled
    │   └── WrongResultsError                             .made           it gives other values than onnxruntime
    ├── GraphError (ValueError)                           .path .node     a graph, or a plan made of one, is wrong
    ├── StartError (RuntimeError)                                         a server cannot start
    ├── InternalError (RuntimeError)                                      our bug, please report it
    └── RPCError (RuntimeError)                   .peer .reason .hint     something between two processes
        ├── ConnectError (ConnectionError)                                no session could be opened
        │   ├── KeyMismatchError                                          the server has another key
        │   ├── VersionMismatchError                                      the two sides speak different versions
        │   └── AuthenticationError                                       a token or certificate is wrong or missing
        ├── SessionClosedError                                            we closed it
        ├── SessionBrokenError (ConnectionError)                          the peer or the network went away
        │   └── SessionLostError                      .lost .why          what was used was lost with a session
        ├── SessionTimeoutError (TimeoutError)                            no answer in time, or its time is over
        ├── CallTimeoutError (TimeoutError)                               a call took too long; the session goes on
        ├── ProtocolError                                                 somebody broke the protocol
        │   └── RemoteProtocolError                                       the peer did
        ├── FarmError                                                     a farm refused
        ├── RemoteError                                   .kind .message  a remote function raised
        └── RemoteCrashError                              .signal         the remote session crashed

Rules: an error is the narrowest one that fits and is also the built-in exception a Python programmer would expect.
Its message names the wrong value and the remedy; its facts are attributes, never to be parsed from
the text. Every error pickles and copies with its facts, so each constructor takes the message alone and facts by
keyword, all with a default.

An error raised *inside* a called function is not wrapped: it arrives as the built-in (or registered) class of its
kind, or as the very exception object that Python code raised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

__all__ = [
    "AlreadyRegisteredError",
    "ArgumentError",
    "AuthenticationError",
    "CallTimeoutError",
    "CompileError",
    "ConnectError",
    "DeviceError",
    "FarmError",
    "FunctionNotFoundError",
    "GraphError",
    "InternalError",
    "KeyMismatchError",
    "ModelError",
    "ModuleLoadError",
    "PortcallError",
    "ProtocolError",
    "RPCError",
    "RemoteCrashError",
    "RemoteError",
    "RemoteProtocolError",
    "SessionBrokenError",
    "SessionClosedError",
    "SessionLostError",
    "SessionTimeoutError",
    "StartError",
    "VersionMismatchError",
    "WrongResultsError",
]


class PortcallError(Exception):
    """Base of every error that portcall raises on its own account."""


class FunctionNotFoundError(PortcallError, LookupError, ValueError):
    """No function has the name asked for.

    Attributes:
        name: the name asked for.
        near: existing names that resemble it, best first; empty when none does.
    """

    def __init__(self, message: str, *, name: str = "", near: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.near = tuple(near)


class AlreadyRegisteredError(PortcallError, ValueError):
    """A function or type of that name exists and the caller did not allow it to be replaced.

    Attributes:
        name: the name that is taken.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class ArgumentError(PortcallError, TypeError):
    """An argument has a type or a form that the function cannot take.

    Attributes:
        function: the name of the function called; empty when it has none.
        position: the argument's place, counted from 0; None when the error is about all of them.
        expected: what would have been accepted, in words.
        got: what was given, in words.
    """

    def __init__(
        self,
        message: str,
        *,
        function: str = "",
        position: int | None = None,
        expected: str = "",
        got: str = "",
    ) -> None:
        super().__init__(message)
        self.function = function
        self.position = position
        self.expected = expected
        self.got = got


class ModuleLoadError(PortcallError, OSError):
    """A library cannot be loaded: missing, built for another machine, or with unmet needs.

    Attributes:
        path: the library's file; empty for one that has no file.
        problems: where the file was read before it is loaded, all that is wrong with it, each a sentence with a remedy.
    """

    def __init__(self, message: str, *, path: str | os.PathLike[str] = "", problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path = os.fspath(path)
        self.problems = tuple(problems)


class DeviceError(PortcallError, RuntimeError):
    """A device does not exist in this process, or refused what was asked of it.

    Attributes:
        device: the device as text, such as ``cuda:0``.
    """

    def __init__(self, message: str, *, device: str = "") -> None:
        super().__init__(message)
        self.device = device


_LACKS_PARTS = re.compile(
    r"cannot execute|unable to execute|cannot find (\S*crt\w*\.o|-l(stdc\+\+|gcc|gcc_s|c|m)(?!\w)|.?ld\b)|"
    r"while loading shared libraries"
)


class CompileError(PortcallError, RuntimeError):
    """A compiler failed, or none was found.

    Attributes:
        command: the command that failed; empty when no compiler was found.
        output: everything that the compiler wrote, unshortened.
        compiler_works: whether it is a source or an option that is wrong; otherwise the compiler is missing, does not
            start, does not end, or lacks a part of itself.
    """

    def __init__(self, message: str, *, command: Sequence[str] = (), output: str = "") -> None:
        super().__init__(message)
        self.command = tuple(command)
        self.output = output
        self.compiler_works = bool(output) and not _LACKS_PARTS.search(output)


class ModelError(PortcallError, ValueError):
    """A model cannot be compiled: its file is damaged, or it has what no kernel can be made for.

    Attributes:
        problems: all that is wrong, each a sentence that begins with the node.
        hint: what to do, which is the end of the message.
    """

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.problems, self.hint = tuple(problems), hint


class WrongResultsError(ModelError):
    """A model that was just compiled gives other values than onnxruntime: a bug of the compiler.

    Attributes:
        made: what was compiled, for a report.
    """

    def __init__(self, message: str, made: object = None, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.made = made


class GraphError(PortcallError, ValueError):
    """A graph, or a plan made of one, is invalid.

    Attributes:
        path: the place in the JSON of a graph, such as ``nodes[3].inputs[0]``; empty when the error is about all of it,
            or about a plan, whose place is in the message.
        node: the name of the node concerned; empty when there is none.
    """

    def __init__(self, message: str, *, path: str = "", node: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.node = node


class StartError(PortcallError, RuntimeError):
    """A server cannot start: the user's code that it imports, or a file that it needs, is at fault."""


class InternalError(PortcallError, RuntimeError):
    """portcall broke one of its promises: a bug, worth a report."""


class RPCError(PortcallError, RuntimeError):
    """Something went wrong between two processes.

    Attributes:
        peer: the other side, such as ``board.local:9090``; empty when it is not known.
        reason: a word for programs, where one class has several: ``unknown-host``, ``refused``, ``wrong-token``, …
        hint: what to do in Python, which is the end of the message.
    """

    def __init__(self, message: str, *, peer: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.peer = peer
        self.reason = reason
        self.hint = hint


class ConnectError(RPCError, ConnectionError):
    """No session could be opened."""


class KeyMismatchError(ConnectError):
    """The server has another key than the one asked for."""


class VersionMismatchError(ConnectError):
    """The two sides speak different versions of the protocol."""


class AuthenticationError(ConnectError):
    """A token or a certificate was wrong, or is missing."""


class SessionClosedError(RPCError):
    """The session was closed on this side, and something of it was used afterwards."""


class SessionBrokenError(RPCError, ConnectionError):
    """The peer or the network went away in the middle of a session."""


class SessionLostError(SessionBrokenError):
    """What was used belongs to a session that was lost; ``ConnectOptions(reconnect=)`` opens another at its next use.

    Attributes:
        lost: what was used, such as ``the function 'add'`` or ``a tensor``; empty where that is not known.
        why: how the session ended.
    """

    def __init__(self, message: str, *, peer: str = "", lost: str = "", why: str = "") -> None:
        super().__init__(message, peer=peer, reason="lost")
        self.lost = lost
        self.why = why

    def __str__(self) -> str:
        return f"{self.lost} {super().__str__()}".lstrip()


class SessionTimeoutError(RPCError, TimeoutError):
    """No answer came in time, or the time of the session is over."""


class CallTimeoutError(RPCError, TimeoutError):
    """A call took longer than ``with_timeout`` allows. The session goes on.

    ``reason`` is ``stopped``, ``not-begun``, or ``goes-on``: the server cannot stop it, and later requests wait for it.
    """


class ProtocolError(RPCError):
    """Somebody broke the protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""


class FarmError(RPCError):
    """A farm refused: no place could ever match, the lease is over, …"""


class RemoteError(RPCError):
    """A remote function raised an exception.

    Attributes:
        kind: the name of the exception's class on the server; empty when unknown.
        message: its text.
        remote_traceback: where it was raised on the server, as text; empty when the server does not say.
        remote_frames: the lines of it, most recent first, with the peer in front of each file.
    """

    def __init__(self, message: str, *, peer: str = "", kind: str = "") -> None:
        super().__init__(f"{kind}: {message}" if kind else message, peer=peer)
        self.kind = kind
        self.message = message
        self.remote_traceback = ""
        self.remote_frames = ""


class RemoteCrashError(RPCError):
    """The remote session crashed.

    Attributes:
        signal: the signal's name, such as ``SIGSEGV``; empty when it exited by itself.
        call: the function that ran, with the types of its arguments, such as ``add(float32[3, 4], int)``; empty where
            that is not known.
        stderr: the last lines that it printed on stderr.
    """

    def __init__(self, message: str, *, peer: str = "", signal: str = "", call: str = "", stderr: str = "") -> None:
        if stderr:
            message += "\nThe last lines of its stderr:\n" + "\n".join(f"  {line}" for line in stderr.splitlines())
        super().__init__(message, peer=peer)
        self.signal = signal
        self.call = call
        self.stderr = stderr


def printable(text: str) -> str:
    """Return the text with control and unprintable characters as Python's escapes.

    That are control characters, marks that change the direction of the text, and halves of surrogate pairs; the ends
    of lines and tabs stay. Whatever a file, a library or a peer has written goes through here before it is shown.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
