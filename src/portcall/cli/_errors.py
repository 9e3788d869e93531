# SPDX-License-Identifier: Apache-2.0
"""What the command line says about an error, and the code with which it exits."""

from __future__ import annotations

import os
from dataclasses import dataclass

from portcall import errors

OK, USER_ERROR, USAGE, DEVICE, TIMEOUT, CRASH, UNTRUSTED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130


class CommandError(Exception):
    """An error that a command explains itself.

    Attributes:
        cause: the likely cause; may be empty.
        next_step: what to do or type next; may be empty.
        exit_code: one of the codes above.
        kind: the class of what happened, for programs.
    """

    def __init__(
        self, what: str, cause: str = "", next_step: str = "", exit_code: int = USER_ERROR, kind: str = "CommandError"
    ) -> None:
        super().__init__(what)
        self.cause = cause
        self.next_step = next_step
        self.exit_code = exit_code
        self.kind = kind


@dataclass(frozen=True)
class Explanation:
    """An error in words: what happened, why, what to do."""

    kind: str
    what: str
    cause: str
    next_step: str
    exit_code: int

    def to_dict(self) -> dict[str, object]:
        return {
            "error": {"kind": self.kind, "message": self.what, "cause": self.cause, "next": self.next_step},
            "exit_code": self.exit_code,
        }


# The first class that fits is used, so narrow ones come first: (class, exit code, likely cause, next step).
TABLE: tuple[tuple[type[BaseException], int, str, str], ...] = (
    (KeyboardInterrupt, INTERRUPTED, "", ""),
    (errors.InternalError, USER_ERROR, "this is a bug in portcall", "report it, with the trace that --debug shows"),
    (
        errors.CompileError,
        USER_ERROR,
        "the compiler does not accept the source, or there is no compiler",
        "portcall doctor",
    ),
    (errors.DeviceError, DEVICE, "the device is not here, or its driver is not", "portcall doctor"),
    (errors.FunctionNotFoundError, USER_ERROR, "the name is wrong", "portcall inspect LIBRARY lists the functions"),
    (errors.ModuleLoadError, USER_ERROR, "", "give the path of a shared library (.so)"),
    (errors.ArgumentError, USER_ERROR, "an argument has the wrong type or form", "see: portcall run --help"),
    (
        errors.AuthenticationError,
        DEVICE,
        "the token or the certificate is missing or wrong",
        "give --token-file, --tls-ca or --tls-cert",
    ),
    (errors.KeyMismatchError, DEVICE, "the key is wrong", "give --key"),
    (
        errors.SessionTimeoutError,
        TIMEOUT,
        "the work takes longer, or the server is busy",
        "raise --timeout or --connect-timeout",
    ),
    (errors.RemoteCrashError, CRASH, "a bug in what was called, or wrong arguments", "look into the server's log"),
    (
        errors.ConnectError,
        DEVICE,
        "no server runs there, it has no --host and so listens to its own machine only, or a firewall is between",
        "there: portcall serve --host ADDRESS --port PORT --token-file FILE",
    ),
    (errors.RemoteError, USER_ERROR, "", ""),
    (errors.RPCError, DEVICE, "the server or the network went away", "portcall doctor {peer}"),
    (errors.PortcallError, USER_ERROR, "", ""),
    (TimeoutError, TIMEOUT, "the work takes longer, or waits for something", "raise --timeout"),
    (ModuleNotFoundError, USER_ERROR, "a Python package is not installed", "pip install it"),
    (MemoryError, USER_ERROR, "the arguments do not fit into memory", "use smaller shapes"),
    (OSError, USER_ERROR, "", ""),
    (ValueError, USER_ERROR, "", ""),
)


def explain(error: BaseException) -> Explanation:
    """Return an error in words; one that no command foresaw is called a bug."""
    kind = type(error).__name__
    if isinstance(error, CommandError):
        return Explanation(error.kind, str(error), error.cause, error.next_step, error.exit_code)
    for family, code, cause, next_step in TABLE:
        if isinstance(error, family):
            return Explanation(kind, in_words(error), cause, next_step.format(peer=getattr(error, "peer", "")), code)
    return Explanation(
        kind,
        f"{kind}: {error}",
        "this is a bug in portcall",
        "report it, with the trace that --debug shows",
        USER_ERROR,
    )


def in_words(error: BaseException) -> str:
    """Return an error's text; an error of the system is said without its number, the file first."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and not isinstance(error, errors.PortcallError) and error.strerror:
        return f"'{os.fsdecode(error.filename)}': {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
