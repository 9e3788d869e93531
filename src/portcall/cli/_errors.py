# SPDX-License-Identifier: Apache-2.0
"""Errors of the command line: text, likely cause, next step, exit code."""

from __future__ import annotations

import errno
import os
import re
import shlex
from dataclasses import dataclass

from portcall import errors
from portcall.extras import install_command

OK, USER_ERROR, USAGE, DEVICE, TIMEOUT, CRASH, UNTRUSTED, SLOWER, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130


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


# The command that makes a certificate which signs itself, for the names and addresses of a machine.
MAKE_CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN={host} -addext subjectAltName=DNS:{host} "
    "-keyout farm.key -out farm.crt"
)
# What is known of errors between two processes by their ``reason``: (likely cause, next step).
REASONS: dict[str, tuple[str, str]] = {
    "unknown-host": (
        "the name is misspelled, or your network does not know it",
        "portcall remote list shows the names of your own; on that machine, hostname -I prints its addresses",
    ),
    "unreachable": (
        "the machine is off or unreachable, or a firewall blocks it; a Unix socket may belong to another user",
        "ping {host}",
    ),
    "no-tls": (
        "the server does not speak TLS: it was started without --tls-cert",
        "leave out --tls-ca and --tls-cert",
    ),
    "closed": (
        "the program at that address speaks TLS, or is not an RPC server",
        "--tls-ca FILE, where the server was started with --tls-cert",
    ),
    "not-opened": ("", "try again when the server has fewer sessions"),
    "certificate": (
        "the certificate is signed by an unknown authority",
        "--tls-ca FILE, with the certificate of that authority (or the server's own, if it signed itself)",
    ),
    "certificate-name": (
        "the certificate is for another name or address",
        "connect by the name in the certificate",
    ),
    "certificate-time": (
        "it was not renewed, or the clock of a machine is wrong",
        "on that machine make another one, and start the server again with it: " + MAKE_CERTIFICATE,
    ),
    "no-certificate": ("the server requires a client certificate", "--tls-cert FILE, with your certificate and key"),
    "no-token": ("the server was started with a token, and none was given", "--token-file FILE, or PORTCALL_TOKEN"),
    "wrong-token": ("the token is that of another server, or an old one", "--token-file FILE with the server's token"),
    "farm-token": (
        "the farm needs a token of its own; none was given, or it was revoked or has expired",
        "give --token-file FILE or PORTCALL_FARM_TOKEN; an admin makes one with: portcall farm token NAME",
    ),
    "farm-tls": (
        "the farm speaks TLS, or another program is there",
        "give the certificate of the farm: --tls-ca FILE (portcall serve: --farm-ca FILE), or PORTCALL_FARM_CA",
    ),
    "no-place": ("", "raise --wait; portcall farm status shows who has the places, and which are out of use"),
    "no-farm": (
        "no farm runs there",
        "portcall farm starts one; or name another with --farm HOST:PORT or PORTCALL_FARM",
    ),
    "not-asked": (
        "the server was started without a token, or the address is that of another one",
        "check the address; for a server without a token leave out --token-file and PORTCALL_TOKEN",
    ),
    "queue": ("its sessions are in use", "raise --connect-timeout"),
    "no-session": ("the server is busy, or the program there is not an RPC server", "raise --connect-timeout"),
    "expired": ("the server limits the time of a session", "on the server: a longer --session-timeout"),
    "disk": ("", "on the server: a larger --disk-limit"),
    "stopped": ("it was stopped or restarted", "portcall doctor {peer} says when it is back"),
}
# The same of what a farm refuses; its reasons are also those for which leases end.
FARM_REASONS: dict[str, tuple[str, str]] = {
    "role": (
        "your token is for something else",
        "an admin makes another one, with another --role or --key: portcall farm token NAME --role ROLE",
    ),
    "class": (
        "your token is for requests that are less urgent",
        "--class CLASS, or leave it out; an admin makes another token: portcall farm token NAME --top-class CLASS",
    ),
    "owner": ("", "an operator or an admin takes it back: portcall farm kick LEASE --why WHY"),
    "last-admin": ("", "portcall farm token NAME --role admin"),
    "unknown-user": ("", "portcall farm token --list shows the users"),
    "backup": ("the disk is full, or the farm may not write there", ""),
    "code": ("", "ask an admin for a new one: portcall farm pair NAME"),
    "invalid": ("", "portcall farm COMMAND --help shows the forms"),
    "taken": ("", "--place NAME"),
    "expired": ("its holder was silent for too long", "portcall farm history --last 10 shows what happened"),
}
# Those whose hint is for people at a shell, and no Python.
OF_A_SHELL = ("no-server", "ssh", "no-ssh", "adb", "no-adb")
# Those that blame what was asked for, not the farm.
FARM_WRONG = ("invalid", "unknown", "unknown-user", "no-match", "role", "class", "owner", "code", "last-admin")
# What the core, which has no hints, appends to messages of timeouts.
CORE_HINT = re.compile(r"; raise (call_)?timeout= if it may take longer$")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BUG = ("this is a bug in portcall", "report it, with the trace that --debug shows")
# What a SIGILL, of this process or of a session, mostly is.
OTHER_PROCESSOR = "the library was compiled for another processor, which has instructions that this one lacks"
COMPILE_FOR = "compile it for the processor that runs it: there with --target native, or with --for HOST:PORT"
# The first class that fits is used, so narrow ones come first: (class, exit code, likely cause, next step).
TABLE: tuple[tuple[type[BaseException], int, str, str], ...] = (
    (errors.FarmError, DEVICE, "", "portcall farm status shows what is there, and who has it"),
    (KeyboardInterrupt, INTERRUPTED, "", ""),
    (errors.InternalError, USER_ERROR, *BUG),
    (errors.CompileError, USER_ERROR, "", "portcall doctor shows the compilers"),
    (errors.DeviceError, DEVICE, "the device or its driver is missing", "portcall doctor"),
    (errors.FunctionNotFoundError, USER_ERROR, "", ""),
    (errors.ModuleLoadError, USER_ERROR, "", "give the path of a shared library (.so)"),
    (errors.ArgumentError, USER_ERROR, "an argument has the wrong type or form", "portcall run --help shows the forms"),
    (errors.AuthenticationError, DEVICE, "the address is of another server", "check the address"),
    (errors.KeyMismatchError, DEVICE, "", "--key with the one that the server was started with"),
    (
        errors.VersionMismatchError,
        DEVICE,
        "the two sides have versions that do not understand each other",
        "run portcall version on both machines; install the same version",
    ),
    (errors.SessionTimeoutError, TIMEOUT, "the work takes longer, or the machine is busy", "raise --timeout"),
    (
        errors.RemoteCrashError,
        CRASH,
        "a bug in what was called, or wrong arguments",
        "the same without --rpc, if this machine loads the library: a crash here comes with the line for a debugger",
    ),
    (errors.ConnectError, DEVICE, "", ""),
    (errors.RemoteError, USER_ERROR, "", ""),
    (
        errors.ProtocolError,
        DEVICE,
        "the program at that address is not an RPC server, or has another version",
        "check the address and the port",
    ),
    (errors.RPCError, DEVICE, "the server or the network went away", "portcall doctor {peer}"),
    (errors.PortcallError, USER_ERROR, "", ""),
    (TimeoutError, TIMEOUT, "the work takes longer, or waits for something", "raise --timeout"),
    (ModuleNotFoundError, USER_ERROR, "a Python package is not installed", "{install}"),
    (MemoryError, USER_ERROR, "the arguments do not fit into memory", "use smaller shapes"),
    (OSError, USER_ERROR, "", ""),
    (ValueError, USER_ERROR, "", ""),
)


def explain(error: BaseException, command: str = "") -> Explanation:
    """Return an error in words; one that no command foresaw is called a bug.

    Parameters:
        command: the name of the command that failed, which is not the next step.
    """
    kind = type(error).__name__
    if isinstance(error, CommandError):
        return Explanation(error.kind, str(error), error.cause, error.next_step, error.exit_code)
    for family, code, cause, next_step in TABLE:
        if isinstance(error, family):
            reason = getattr(error, "reason", "")
            if reason == "refused":
                cause, next_step = explain_refused_connection(getattr(error, "peer", ""))
            else:
                known = FARM_REASONS if isinstance(error, errors.FarmError) else REASONS
                hint = getattr(error, "hint", "") if reason in OF_A_SHELL else next_step
                cause, next_step = known.get(reason, (cause, hint))
                if known is FARM_REASONS and reason in FARM_WRONG:
                    code = USER_ERROR
            if getattr(error, "signal", "") == "SIGILL":
                cause, next_step = OTHER_PROCESSOR, COMPILE_FOR
            if getattr(error, "compiler_works", False):
                next_step = ""
            if isinstance(error, FileNotFoundError) and error.filename and not next_step:
                next_step = f"ls {shlex.quote(nearest_folder(os.fsdecode(error.filename)))}"
            if isinstance(error, OSError) and error.errno in FULL:
                next_step = "free some space, or write it elsewhere; df -h shows what is free"
            if command == "doctor" and next_step.startswith(("portcall doctor", "raise --timeout")):
                next_step = ""
            return Explanation(kind, message_of(error), cause, next_step.format_map(facts(error)), code)
    return Explanation(kind, f"{kind}: {error}", *BUG, USER_ERROR)


def nearest_folder(path: str) -> str:
    """Return the last folder of a path that exists."""
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder or "."


def facts(error: BaseException) -> dict[str, str]:
    peer = getattr(error, "peer", "")
    install = install_command(getattr(error, "name", "") or "it")
    return {"peer": peer, "host": peer.rpartition(":")[0].strip("[]"), "install": install}


def explain_refused_connection(peer: str) -> tuple[str, str]:
    """Return the likely cause, and the next step, where no server listens at an address."""
    host, _, port = peer.rpartition(":")
    if host == "unix":
        return "no server runs there", f"portcall serve --unix {port}"
    if host in ("localhost", "[::1]") or host.startswith("127."):
        return "no server runs there", f"portcall serve --port {port}"
    return (
        "no server runs there, or it was started without --host and listens on its own machine only",
        f"on that machine: portcall serve --host 0.0.0.0 --port {port}",
    )


def message_of(error: BaseException) -> str:
    """Return an error's text without what is for Python; of the system's errors the file first, and no number."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and not isinstance(error, errors.PortcallError) and error.strerror:
        return f"'{os.fsdecode(error.filename)}': {error.strerror}" if error.filename else error.strerror
    hint = getattr(error, "hint", "")  # what to do in Python
    return CORE_HINT.sub("", str(error).removesuffix(f"; {hint}")) or type(error).__name__
