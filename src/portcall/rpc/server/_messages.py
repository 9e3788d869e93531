# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a server: the only list of them, and the only place that reads or writes one.

A message is a JSON object: ``message`` is the name of its class, and each field has its own name. File descriptors
travel beside it. ``_directories`` writes its reports by hand, because it imports the standard library alone; tests
compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_origin, get_type_hints

MAX_BYTES = 160 << 10  # of an encoded message
_MAX_ERROR, _MAX_TRACE = 4000, 16000  # characters


class MessageError(ValueError):
    """Bytes that are not one of the expected messages."""


class Message:
    """The base of all messages.

    Attributes:
        descriptors: how many file descriptors come with it.
    """

    descriptors: ClassVar[int] = 0


# ---- Supervisor and zygote ----


@dataclass(frozen=True)
class Configure(Message):
    """The first message to the zygote: the server's options, and the directory to delete when the supervisor ends."""

    options: dict[str, Any]
    base: str


@dataclass(frozen=True)
class StartSession(Message):
    """Start a worker. Two descriptors come with it: the client's bytes in clear, and the progress.

    Attributes:
        directory: the session's own, empty.
        features: the extensions that the session uses, separated by commas.
        credential: a name for what the client showed: those with one name may see each other's files, if they know
            them.
        user: who the client is, in words.
        reply: what ends the handshake, in hexadecimal digits: the worker sends it, before it answers anything.
    """

    descriptors: ClassVar[int] = 2
    number: int
    directory: str
    features: str
    credential: str
    user: str
    reply: str


@dataclass(frozen=True)
class StartKeptSession(StartSession):
    """The same for one that is kept if it crashes: with the end of a pipe for what the capsule is to say."""

    descriptors: ClassVar[int] = 3


@dataclass(frozen=True)
class StartPump(Message):
    """Start a process for the TLS of a connection.

    Three descriptors come with it: the connection, the end for the bytes in clear, and the link to the supervisor.
    """

    descriptors: ClassVar[int] = 3
    number: int


@dataclass(frozen=True)
class KillSession(Message):
    """Kill the worker of a session, with all its processes."""

    number: int


@dataclass(frozen=True)
class StopZygote(Message):
    """End all sessions, then the zygote."""


@dataclass(frozen=True)
class ZygoteReady(Message):
    """The user's code is loaded. ``spawn_reason`` says why sessions cannot be forked; it is empty when they can."""

    spawn_reason: str


@dataclass(frozen=True)
class ImportFailed(Message):
    """The user's code raised an error; the zygote ends."""

    error: str
    trace: str

    @classmethod
    def of(cls, error: str, trace: str) -> ImportFailed:
        """Make the message, with both texts cut to what a message holds."""
        return cls(error[:_MAX_ERROR], trace[-_MAX_TRACE:])


@dataclass(frozen=True)
class SessionStarted(Message):
    """The answer to StartSession: the worker's process id, which is that of its group, too."""

    number: int
    pid: int


@dataclass(frozen=True)
class PumpStarted(Message):
    """The answer to StartPump. ``error`` says why there is none; it is empty when there is one."""

    number: int
    error: str = ""


@dataclass(frozen=True)
class SessionKilled(Message):
    """The answer to KillSession; SessionEnded follows."""

    number: int


@dataclass(frozen=True)
class SessionEnded(Message):
    """A worker ended with a wait status.

    Attributes:
        error: why it could not be started, if it could not.
        last_words: what it wrote to stderr at the very end, and did not read itself.
    """

    number: int
    status: int
    error: str = ""
    last_words: str = ""


# ---- Pump and supervisor ----


@dataclass(frozen=True)
class PumpReady(Message):
    """The client has managed TLS. ``certificate`` is the SHA-256 of its own; empty for none."""

    certificate: str


@dataclass(frozen=True)
class PumpFailed(Message):
    """The client has not managed TLS; ``reason`` is for the log."""

    reason: str


# ---- Zygote and its processes, where they are spawned ----


@dataclass(frozen=True)
class StartWorker(Message):
    """Everything that a worker needs.

    Attributes:
        number: of the session.
        directory: the session's own, empty. The worker makes ``files`` in it, for what the client sends, and ``tmp``.
        features, credential, user, reply: as in StartSession.
        client: descriptor of the client's bytes in clear.
        progress: descriptor of the shared memory in which the supervisor reads how far the session is.
        parent: process id of the zygote. The worker ends with it.
        stdout, stderr: pipes for what the session prints: the end to read and the end to write of each.
        verdict: as it came with StartKeptSession, alone; empty without one.
    """

    number: int
    directory: str
    features: str
    credential: str
    user: str
    reply: str
    client: int
    progress: int
    parent: int
    stdout: list[int]
    stderr: list[int]
    verdict: list[int]


@dataclass(frozen=True)
class RunPump(Message):
    """Everything that a pump needs.

    Attributes:
        client: descriptor of the connection.
        clear: descriptor of the end for the bytes in clear.
        link: descriptor of the link to the supervisor.
        parent: process id of the zygote. The pump ends with it.
    """

    client: int
    clear: int
    link: int
    parent: int


# ---- Supervisor and directory process ----


@dataclass(frozen=True)
class DeleteDirectory(Message):
    """Delete a directory and everything in it."""

    directory: str


@dataclass(frozen=True)
class CountDirectory(Message):
    """Count the bytes of a directory's files; stop once there are more than ``enough``."""

    directory: str
    enough: int


@dataclass(frozen=True)
class DirectoryDeleted(Message):
    """The answer to DeleteDirectory."""

    directory: str


@dataclass(frozen=True)
class DirectoryCounted(Message):
    """The answer to CountDirectory."""

    directory: str
    nbytes: int


# ---- The agent of a farm, and the supervisor ----


@dataclass(frozen=True)
class AdmitClient(Message):
    """Let in one client with this key, for the lease with this fence, for ``limit`` seconds; 0 means no limit."""

    key: str
    fence: int
    limit: float


@dataclass(frozen=True)
class EndLease(Message):
    """End all sessions of this fence and older ones."""

    fence: int


@dataclass(frozen=True)
class AdoptConnection(Message):
    """Serve a client whose connection the agent has made; it comes with the message."""

    descriptors: ClassVar[int] = 1


@dataclass(frozen=True)
class SessionOpened(Message):
    """A session of a lease began."""

    number: int
    fence: int


@dataclass(frozen=True)
class SessionClosed(Message):
    """A session of a lease ended; ``how`` is for people."""

    number: int
    fence: int
    how: str


@dataclass(frozen=True)
class LeaseEnded(Message):
    """The answer to EndLease: no session of this fence is left."""

    fence: int


# Which messages each process accepts, by sender.
Accepted = tuple[type[Message], ...]
ZYGOTE_CONFIGURATION: Accepted = (Configure,)
ZYGOTE_ORDERS: Accepted = (StartSession, StartKeptSession, StartPump, KillSession, StopZygote)
ZYGOTE_REPORTS: Accepted = (ZygoteReady, ImportFailed, SessionStarted, PumpStarted, SessionKilled, SessionEnded)
PUMP_REPORTS: Accepted = (PumpReady, PumpFailed)
WORKER_ARGUMENTS: Accepted = (Configure, StartWorker)  # of a worker that is spawned
PUMP_ARGUMENTS: Accepted = (Configure, RunPump)  # of a pump that is spawned
DIRECTORY_ORDERS: Accepted = (DeleteDirectory, CountDirectory)
DIRECTORY_REPORTS: Accepted = (DirectoryDeleted, DirectoryCounted)
AGENT_ORDERS: Accepted = (AdmitClient, EndLease, AdoptConnection)
AGENT_REPORTS: Accepted = (SessionOpened, SessionClosed, LeaseEnded)


ALL = {
    cls
    for accepted in (
        ZYGOTE_CONFIGURATION, ZYGOTE_ORDERS, ZYGOTE_REPORTS, PUMP_REPORTS, WORKER_ARGUMENTS, PUMP_ARGUMENTS,
        DIRECTORY_ORDERS, DIRECTORY_REPORTS, AGENT_ORDERS, AGENT_REPORTS,
    )
    for cls in accepted
}  # fmt: skip


def _field_types(cls: Any) -> dict[str, type]:
    hints = get_type_hints(cls)
    return {field.name: get_origin(hints[field.name]) or hints[field.name] for field in fields(cls)}


_FIELDS = {cls.__name__: _field_types(cls) for cls in ALL}


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        MessageError: it is longer than ``MAX_BYTES``.
    """
    values = {name: getattr(message, name) for name in _FIELDS[type(message).__name__]}
    text = json.dumps({"message": type(message).__name__, **values}, ensure_ascii=False)
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        raise MessageError(f"a {type(message).__name__} has {len(data)} bytes (at most {MAX_BYTES})")
    return data


def decode(data: bytes, accepted: Iterable[type[Message]]) -> Message:
    """Return the message that bytes encode.

    Raises:
        MessageError: they encode none of the accepted messages.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise MessageError(f"not a message: {data[:80]!r}") from None
    if not isinstance(values, dict):
        raise MessageError(f"not a message: {data[:80]!r}")
    name = values.pop("message", None)
    cls = next((cls for cls in accepted if cls.__name__ == name), None)
    if cls is None:
        expected = " or ".join(cls.__name__ for cls in accepted)
        raise MessageError(f"unexpected message {str(name)[:40]!r} (expected {expected})")
    types = _FIELDS[cls.__name__]
    if values.keys() != types.keys():
        raise MessageError(f"a {name} has the fields {', '.join(map(str, values))[:200]!r} (expected {list(types)})")
    return cls(**{field: _read(f"{name}.{field}", values[field], kind) for field, kind in types.items()})


def _read(field: str, value: object, kind: type) -> object:
    if type(value) is not kind:
        raise MessageError(f"{field} is {type(value).__name__} (expected {kind.__name__})")
    return value
