# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a server: accepts, decides, counts, ends, cleans up. One thread, none of the user's code.

    client ── connection ──> supervisor ── descriptor ──> zygote ── fork ──> worker ── serves ──> client
                                 └───────────── link: hello, orders, proof ─────┘  until it serves

Rules:

* It never waits for a client, a worker or a disk: whatever takes time is an event with a deadline.
* It keeps a copy of each connection: the client sees its session's end only after the reason has been noted.
* A session costs its own client at most; the server goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from portcall.errors import AuthenticationError, RemoteProtocolError
from portcall.rpc import _endings, _handshake
from portcall.rpc._control import Link
from portcall.rpc._directories import delete_tree
from portcall.rpc._directory_process import DirectoryProcess
from portcall.rpc._endings import Ending, Progress
from portcall.rpc._listen import listen, peer_name
from portcall.rpc._log import Log
from portcall.rpc._options import ServerOptions
from portcall.rpc._transport import Address
from portcall.rpc._worker import tls_context

LINGER = 5.0  # seconds for a client to read what was said to it at the end
ZYGOTE_PATIENCE = 5.0  # seconds for the zygote to take an order, or to stop
STALE_HANDSHAKE = 1.0  # seconds after which a silent connection makes room for others, where there are too many
LEAVING = 1.0  # seconds for a worker to notice that its client left in the hand-shake
DISK_INTERVAL = 1.0
_ZYGOTE = "from portcall.rpc._zygote import main; main()"

GREETING, WAITING, PROVING, SERVING, ENDING = "greeting", "waiting", "proving", "serving", "ending"


class StartError(Exception):
    """The server cannot start: the user's code, or a file that it needs, is at fault."""


@dataclass
class _Client:
    """A connection and the process that serves it."""

    number: int
    sock: socket.socket
    peer: str
    link: Link
    progress: int
    directory: str
    since: float
    state: str = GREETING
    deadline: float | None = None
    limit: float = 0  # seconds the session may last
    speaks: str = ""  # portcall or TVM, once it has said hello
    secret: str = field(default="", repr=False)
    transcript: bytes = b""
    verdict: Ending | None = None  # why it was killed
    place: int = 0  # in the queue, as last told


class Supervisor:
    """Runs a server until it is told to stop.

    Args:
        options: what it is told.
        log: where it tells what happens.
        on_ready: called with the address once clients can connect.
    """

    def __init__(self, options: ServerOptions, log: Log, on_ready: Callable[[Address], None]) -> None:
        self._options = options
        self._log = log
        self._on_ready = on_ready
        self._events: dict[int, Callable[[int], None]] = {}
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._queue: deque[_Client] = deque()
        self._endings = _endings.Endings()
        self._lingering: dict[int, tuple[socket.socket, float]] = {}
        self._directories: DirectoryProcess | None = None
        self._last_number = 0
        self._stop_signal = 0
        self._next_disk_check = 0.0
        self._accepting = False
        self._base = ""
        self._zygote: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or SIGHUP; return which of them it was, 0 where standard input ended.

        Raises:
            ValueError, OSError: it cannot listen there; the message says what to do.
            StartError: the user's code fails.
        """
        if self._options.tls_certificate:
            tls_context(self._options)  # a missing file is told now, not to the first client
        self._listener, self._address = listen(self._options)
        self._base = tempfile.mkdtemp(prefix="portcall-serve-", dir=self._options.work_dir or None)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        if before[signal.SIGHUP] == signal.SIG_IGN:  # as nohup has it
            del before[signal.SIGHUP]
        try:
            self._catch_signals(before)
            self._directories = DirectoryProcess(
                lambda descriptor, action: self._watch(descriptor, select.EPOLLIN, action),
                self._forget,
                self._on_counted,
            )
            self._start_zygote()
            self._watch(self._listener.fileno(), select.EPOLLIN, self._accept)
            self._accepting = True
            self._announce()
            while not self._stop_signal:
                self._step()
            return max(self._stop_signal, 0)
        finally:
            self._shut_down()
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- Beginning and end ----

    def _announce(self) -> None:
        if not (self._options.local or self._options.authenticated):
            text = f"--insecure: whoever reaches {self._address} can run any code as this user"
            self._log.write("insecure", text)
        self._log.write("listening", f"serving on {self._address}, key {self._options.key!r}")
        self._on_ready(self._address)

    def _catch_signals(self, numbers: Iterable[int]) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._signals = reader, writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._on_signal)
        self._watch(reader.fileno(), select.EPOLLIN, self._on_wakeup)
        if self._options.stop_with_stdin:
            self._watch(sys.stdin.fileno(), select.EPOLLIN, self._on_stdin)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop_signal = number

    def _on_wakeup(self, _: int) -> None:
        self._signals[0].recv(64)  # the handler has noted which

    def _on_stdin(self, _: int) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._stop_signal = -1

    def _start_zygote(self) -> None:
        """Start the process that sessions come from, in a fresh Python: it must not share memory that has secrets."""
        ours, theirs = Link.pair()
        environment = {name: value for name, value in os.environ.items() if name != "PORTCALL_TOKEN"}
        with theirs:
            self._zygote = subprocess.Popen(
                [sys.executable, "-c", _ZYGOTE, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), start_new_session=True,
            )  # fmt: skip
        self._link = ours
        ours.send({"options": self._options.without_secrets().to_dict(), "base": self._base})
        received = ours.receive()
        if received is None:
            raise StartError("the process that runs the imported code ended: see what it wrote")
        if "failed" in received[0]:
            raise StartError(f"the imported code failed: {received[0]['failed']}\n{received[0]['trace']}".rstrip())
        ours.set_timeout(ZYGOTE_PATIENCE)
        self._watch(ours.fileno(), select.EPOLLIN, self._on_report)
        if received[0]["why"]:
            self._log.write("spawning", f"each session starts a fresh Python, because {received[0]['why']}")
        if self._last_number == 0:  # the first time; what the sessions inherit stays as it was
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    def _shut_down(self) -> None:
        """End all sessions, wait for their processes, and delete what they left."""
        signal.set_wakeup_fd(-1)
        self._listener.close()
        if self._options.unix:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._options.unix)
        if self._clients:
            self._log.write("stopping", f"ending {count(len(self._clients), 'session')}")
        self._stop_zygote()
        for client in list(self._clients.values()):
            client.verdict = client.verdict or Ending("stopped")
            self._finish(client, signal.SIGKILL)
        for sock, _ in self._lingering.values():
            sock.close()
        if self._directories is not None:
            self._directories.finish()
        delete_tree(self._base)
        for sock in getattr(self, "_signals", ()):
            sock.close()
        self._poll.close()
        self._log.write("stopped", "stopped")

    def _stop_zygote(self) -> None:
        if self._zygote is None:
            return
        with contextlib.suppress(OSError):
            self._link.send({"stop": True})
        try:
            self._zygote.wait(ZYGOTE_PATIENCE)
        except subprocess.TimeoutExpired:  # its sessions end with it
            self._zygote.kill()
            self._zygote.wait()
        self._link.close()
        self._zygote = None

    # ---- Events ----

    def _watch(self, descriptor: int, events: int, action: Callable[[int], None]) -> None:
        self._events[descriptor] = action
        self._poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        if self._events.pop(descriptor, None):
            self._poll.unregister(descriptor)

    def _step(self) -> None:
        for descriptor, events in self._poll.poll(self._time_left()):
            if descriptor in self._events:  # an earlier one of these events may have ended it
                self._events[descriptor](events)
        now = time.monotonic()
        for client in [c for c in self._clients.values() if c.deadline is not None and c.deadline <= now]:
            self._on_deadline(client)
        for sock, until in list(self._lingering.values()):
            if until <= now:
                self._end_linger(sock)
        if self._options.disk_limit and now >= self._next_disk_check:
            self._check_disk(now)
        self._resume_accepting(now)

    def _time_left(self) -> float:
        times = [client.deadline for client in self._clients.values() if client.deadline is not None]
        times += [until for _, until in self._lingering.values()]
        if self._options.disk_limit and self._clients:
            times.append(self._next_disk_check)
        if not self._accepting:
            times.append(time.monotonic() + STALE_HANDSHAKE)
        return max(0.0, min(times) - time.monotonic()) if times else -1

    def _on_deadline(self, client: _Client) -> None:
        if client.state == SERVING:
            why = Ending("expired", detail=f"{client.limit:g} s")
        else:
            why = Ending("silent", detail=f"{self._options.handshake_timeout:g} s")
        self._kill(client, client.verdict or why)

    # ---- Accepting ----

    def _accept(self, _: int) -> None:
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            self._log.write("overload", f"cannot accept: {error.strerror}; waiting for a session to end")
            return self._pause_accepting()
        try:
            self._begin(sock, peer_name(sock, address))
        except OSError as error:
            self._log.write("overload", f"cannot serve a client: {error}")
            sock.close()
        shaking = sum(c.state in (GREETING, WAITING, PROVING) for c in self._clients.values())
        if shaking >= self._options.max_handshakes:
            self._pause_accepting()
        return None

    def _pause_accepting(self) -> None:
        if self._accepting:
            self._forget(self._listener.fileno())
            self._accepting = False

    def _resume_accepting(self, now: float) -> None:
        """Accept again once there is room; where silent connections take it all, the oldest of them goes."""
        if self._accepting:
            return
        shaking = [c for c in self._clients.values() if c.state in (GREETING, PROVING)]
        waiting = sum(c.state == WAITING for c in self._clients.values())
        if len(shaking) + waiting >= self._options.max_handshakes:
            if shaking and now - shaking[0].since > STALE_HANDSHAKE and shaking[0].verdict is None:
                self._kill(shaking[0], Ending("crowded"))
            return
        self._watch(self._listener.fileno(), select.EPOLLIN, self._accept)
        self._accepting = True

    def _begin(self, sock: socket.socket, peer: str) -> None:
        """Give a connection to a process of its own."""
        self._last_number += 1
        number = self._last_number
        directory = os.path.join(self._base, f"session-{number}")
        ours, theirs = Link.pair()
        progress = os.memfd_create("portcall-progress")
        try:
            os.ftruncate(progress, _endings.PROGRESS_BYTES)
            os.mkdir(directory, 0o700)
        except OSError:
            os.close(progress)
            raise
        now = time.monotonic()
        client = _Client(number, sock, peer, ours, progress, directory, now)
        client.deadline = now + self._options.handshake_timeout
        client.secret = secrets.token_hex(16)
        self._clients[number] = client
        with theirs:
            self._order({"start": number, "directory": directory}, [sock.fileno(), theirs.fileno(), progress])
        self._watch(ours.fileno(), select.EPOLLIN, lambda _: self._on_word(client))
        gone = select.EPOLLRDHUP | select.EPOLLONESHOT
        self._watch(sock.fileno(), gone, lambda _: self._on_gone(client))

    def _order(self, message: dict[str, object], descriptors: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # if it is gone, that is an event of its own
            self._link.send(message, descriptors or [])

    # ---- The hand-shake ----

    def _on_word(self, client: _Client) -> None:
        """Take a message of a worker, which speaks for its client; silence from it means that it ended."""
        received = client.link.receive()
        if received is None:
            self._forget(client.link.fileno())
        elif client.state in (ENDING, SERVING):
            pass
        elif "hello" in received[0]:
            self._on_hello(client, bytes.fromhex(received[0]["hello"]))
        elif "proof" in received[0]:
            self._on_proof(client, bytes.fromhex(received[0]["proof"]))
        elif "failed" in received[0]:
            self._refuse(client, received[0]["failed"])

    def _on_hello(self, client: _Client, data: bytes) -> None:
        reader = _handshake.HelloReader()
        hello = reader.feed(data)
        assert hello is not None
        client.transcript = reader.transcript
        client.speaks = "portcall" if hello.is_portcall else "TVM"
        if hello.is_portcall and "reason" in hello.options:
            words = self._endings.ask(hello.options["reason"])
            return self._answer(client, _handshake.server_reply(self._options.key, words), "end")
        try:
            limits = [seconds for seconds in (hello.timeout, self._options.session_timeout) if seconds]
        except RemoteProtocolError as error:
            return self._refuse(client, str(error))
        if hello.key != self._options.key:
            return self._refuse(client, f"asked for the key {hello.key[:80]!r}; this server has {self._options.key!r}")
        if self._options.token and not hello.is_portcall:
            return self._refuse(client, "is a TVM client, which cannot prove that it knows the token")
        client.limit = min(limits, default=0)
        client.deadline = None
        client.state = WAITING
        self._queue.append(client)
        return self._serve_queue()

    def _serve_queue(self) -> None:
        """Let in as many as there is room for, in order, and tell the others where they stand."""
        limit = self._options.max_sessions
        while self._queue and (not limit or self._serving() < limit):
            self._let_in(self._queue.popleft())
        for place, client in enumerate(self._queue, start=1):
            if client.place == place:
                continue
            client.place = place
            if place == len(self._queue):
                self._log.write("waiting", f"{client.peer} waits in place {place}", client.number, place=place)
            if client.speaks == "portcall":
                text = f"the server is full ({count(limit, 'session')}); you are number {place} in its queue"
                self._answer(client, _handshake.notice(text), "wait")

    def _serving(self) -> int:
        return sum(client.state in (PROVING, SERVING) for client in self._clients.values())

    def _let_in(self, client: _Client) -> None:
        options: dict[str, str] = {}
        if client.speaks == "portcall":
            options["portcall"] = _handshake.EXTENSION_VERSION
            options["session"] = str(client.number)
            options["secret"] = client.secret
        if self._options.token:
            options["auth"] = "token"
            options["nonce"] = _handshake.new_nonce()
        reply = _handshake.server_reply(self._options.key, options)
        if not self._options.token:
            return self._open(client, reply)
        client.transcript += reply
        client.state = PROVING
        client.deadline = time.monotonic() + self._options.handshake_timeout
        return self._answer(client, reply, "proof")

    def _on_proof(self, client: _Client, data: bytes) -> None:
        if client.state != PROVING:
            return self._refuse(client, "sent a proof that nobody asked for")
        try:
            _handshake.check_proof(data, self._options.token, "client", client.transcript)
        except AuthenticationError:
            return self._refuse(client, "does not know the token", b"")
        return self._open(client, _handshake.proof(self._options.token, "server", client.transcript))

    def _open(self, client: _Client, last_words: bytes) -> None:
        """Let a session begin."""
        client.state = SERVING
        client.deadline = time.monotonic() + client.limit if client.limit else None
        self._answer(client, last_words, "serve")
        limit = f", for at most {client.limit:g} s" if client.limit else ""
        text = f"opened for {client.peer}, a {client.speaks} client{limit}"
        self._log.write("opened", text, client.number, peer=client.peer, client=client.speaks)

    def _refuse(self, client: _Client, why: str, words: bytes | None = None) -> None:
        self._log.write("refused", f"refused: {client.peer} {why}", client.number, peer=client.peer)
        refusal = _handshake.refusal(_handshake.MISMATCH) if words is None else words
        self._answer(client, refusal, "end")

    def _answer(self, client: _Client, data: bytes, then: str) -> None:
        if then == "end":
            client.state = ENDING
        with contextlib.suppress(OSError):  # if the worker is gone, its end is an event of its own
            client.link.send({"send": data.hex(), "then": then})

    # ---- Ends ----

    def _on_gone(self, client: _Client) -> None:
        """The client has closed its side: its session may finish what it does, within limits."""
        serving = client.state == SERVING
        until = time.monotonic() + (self._options.lost_client_grace if serving else LEAVING)
        if client.deadline is None or until < client.deadline:
            client.deadline = until
            client.verdict = Ending("abandoned" if serving else "left")

    def _kill(self, client: _Client, why: Ending) -> None:
        client.verdict = why
        client.deadline = None
        self._order({"kill": client.number})

    def _on_report(self, _: int) -> None:
        try:
            received = self._link.receive()
        except TimeoutError:
            return None
        if received is None:
            return self._on_zygote_lost()
        report = received[0]
        client = self._clients.get(report["ended"])
        if client is None:
            return None
        if "error" in report:
            client.verdict = Ending("unstarted", detail=report["error"])
        self._finish(client, report["status"])
        self._serve_queue()
        return None

    def _on_zygote_lost(self) -> None:
        """Without the zygote there are no sessions: the kernel has ended them with it. Begin again."""
        self._forget(self._link.fileno())
        self._link.close()
        assert self._zygote is not None
        self._zygote.kill()
        status = self._zygote.wait()
        self._zygote = None
        self._log.write("restart", f"the process that sessions start from ended ({status}), and all sessions with it")
        for client in list(self._clients.values()):
            client.verdict = client.verdict or Ending("orphaned")
            self._finish(client, signal.SIGKILL)
        self._start_zygote()

    def _finish(self, client: _Client, status: int) -> None:
        """Note how a session ended, say so where that is possible, and clean up after it."""
        self._hear_out(client)
        del self._clients[client.number]
        if client in self._queue:
            self._queue.remove(client)
        served = client.state == SERVING
        progress = Progress.from_bytes(os.pread(client.progress, _endings.PROGRESS_BYTES, 0))
        ending = _endings.ending_of(status, progress, client.verdict)
        if served:
            self._endings.add(client.number, client.secret, ending)
        self._log_end(client, ending, progress)
        self._forget(client.link.fileno())
        client.link.close()
        os.close(client.progress)
        self._forget(client.sock.fileno())
        last_words = self._last_words(client, ending)
        if served and last_words and progress.at_boundary and not self._options.tls_certificate:
            self._linger(client.sock, last_words)
        else:
            client.sock.close()
        self._remove(client.directory)

    def _hear_out(self, client: _Client) -> None:
        """Take the last word of a worker that the report of its end has overtaken: why the client was refused."""
        if client.state in (SERVING, ENDING) or not select.select([client.link], [], [], 0)[0]:
            return
        received = client.link.receive()
        if received and "failed" in received[0]:
            self._refuse(client, received[0]["failed"])

    def _log_end(self, client: _Client, ending: Ending, progress: Progress) -> None:
        if client.state == SERVING:
            seconds = time.monotonic() - client.since
            self._log.write(
                "ended", f"ended after {seconds:.1f} s: {ending.text}", client.number, peer=client.peer,
                how=ending.how, signal=ending.signal, code=ending.code, seconds=round(seconds, 3),
                received=progress.received, sent=progress.sent,
            )  # fmt: skip
        elif client.state != ENDING:
            gone = Ending("left") if ending == Ending("exit") else ending
            self._log.write("dropped", f"{client.peer} {gone.text}", client.number, peer=client.peer, how=gone.how)

    def _last_words(self, client: _Client, ending: Ending) -> bytes:
        """Return the message for the client's connection. A portcall client asks for all but the end of its time."""
        if ending.how == "expired":
            return _endings.exception_frame(_endings.expiry_text(client.limit))
        if client.speaks == "TVM" and ending.failed and ending.how not in ("lost", "abandoned"):
            return _endings.exception_frame(f"the session over there ended: {ending.text}")
        return b""

    def _linger(self, sock: socket.socket, data: bytes) -> None:
        """Send last words and give the client time to read them, taking what it still sends."""
        try:
            sock.setblocking(False)
            sock.send(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        self._lingering[sock.fileno()] = sock, time.monotonic() + LINGER
        self._watch(sock.fileno(), select.EPOLLIN, lambda _: self._on_linger(sock))

    def _on_linger(self, sock: socket.socket) -> None:
        try:
            if sock.recv(1 << 16):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._end_linger(sock)

    def _end_linger(self, sock: socket.socket) -> None:
        self._forget(sock.fileno())
        del self._lingering[sock.fileno()]
        sock.close()

    # ---- Directories ----

    def _remove(self, directory: str) -> None:
        """Delete a directory; one that is not empty by a process of its own, for it may hold a million files."""
        try:
            for name in ("files", "tmp", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(os.path.join(directory, name))
        except OSError:
            assert self._directories is not None
            self._directories.delete(directory)

    def _check_disk(self, now: float) -> None:
        """Have the files of all sessions counted."""
        assert self._directories is not None
        for client in self._clients.values():
            if client.state == SERVING:
                self._directories.count(client.directory, self._options.disk_limit)
        self._next_disk_check = now + DISK_INTERVAL

    def _on_counted(self, directory: str, nbytes: int) -> None:
        """End a session whose files take too much."""
        for client in self._clients.values():
            if client.directory == directory and nbytes > self._options.disk_limit and client.state == SERVING:
                self._kill(client, Ending("disk", detail=f"{self._options.disk_limit} bytes"))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s'[: number != 1]}"
