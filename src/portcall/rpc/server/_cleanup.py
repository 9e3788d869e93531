# SPDX-License-Identifier: Apache-2.0
"""The end of a connection: say how it ended, close everything that it had, delete its files; and watch their size."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from portcall.rpc.server._connections import Connection, Connections, State
from portcall.rpc.server._directory_process import DirectoryProcess
from portcall.rpc.server._ended_sessions import EndedSessions
from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import Loop, run_all
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.wire._endings import Ending, Progress, ending_of, last_message, told_by
from portcall.rpc.wire._facts import LINGER, NOT_OPENED, PROGRESS_BYTES, SEE_LOG
from portcall.rpc.wire._handshake import notice

DISK_INTERVAL = 1.0


class Cleanup:
    """Ends connections that have no process, or whose process has ended.

    Parameters:
        connections: all of them; one that is cleaned up has been removed.
        ended: gets the endings that clients may ask for.
        on_disk_limit: called with a connection whose files take too much.
    """

    def __init__(
        self, options: ServerOptions, connections: Connections, ended: EndedSessions, loop: Loop, log: Log,
        on_disk_limit: Callable[[Connection], None],
    ) -> None:  # fmt: skip
        self._options = options
        self._connections = connections
        self._ended = ended
        self._loop = loop
        self._log = log
        self._on_disk_limit = on_disk_limit
        self._lingering: dict[int, socket.socket] = {}
        self._directories = DirectoryProcess(
            lambda descriptor, action: loop.watch(descriptor, lambda: action(descriptor)), loop.forget, self._on_counted
        )

    def finish(self, connection: Connection, status: int) -> None:
        """Note how a session ended, tell its client where that is possible, and release everything that it had.

        Parameters:
            status: the wait status of its process; any where it had none.
        """
        progress = Progress()
        with contextlib.suppress(OSError):  # there is none, too
            progress = Progress.from_bytes(os.pread(connection.progress, PROGRESS_BYTES, 0))
        ending = ending_of(status, progress, connection.kill_reason)
        ending = connection.ending = told_by(ending, progress, connection.last_words)
        if connection.verdict >= 0:
            ending = connection.ending = self._keep_capsule(connection, ending)
        if connection.serving:
            self._ended.add(connection.number, connection.secret, ending)
        self._log_end(connection, ending, progress)
        message = b""
        if connection.serving and progress.at_boundary:
            message = last_message(ending, connection.peer_kind, connection.limit)
        elif not connection.pid and connection.peer_kind == "portcall" and ending.how in ("failed", "unstarted"):
            known = connection.state not in (State.GREETING, State.PROVING)
            message = notice(NOT_OPENED + (ending.detail if known else SEE_LOG))  # it was not let in
        stream, link = connection.stream, connection.link
        steps = [
            lambda: self._loop.forget(stream.fileno()),
            lambda: self._linger(stream, message) if message else stream.close(),
        ]
        if link is not None:
            steps += [lambda: self._loop.forget(link.fileno()), link.close]
        if connection.clear is not None:
            steps += [lambda: self._loop.forget(connection.sock.fileno()), lambda: self._end_pump(connection)]
        if connection.progress >= 0:
            steps += [lambda: os.close(connection.progress)]
        if connection.directory:
            steps += [lambda: self._remove(connection.directory)]
        run_all(*steps)

    def _keep_capsule(self, connection: Connection, ending: Ending) -> Ending:
        """Have a session kept that crashed, and say so in its ending."""
        from portcall.rpc.server._capsules import capsule_folder, send_verdict  # few sessions are kept

        facts = {"peer": connection.peer, "session": connection.number, "features": sorted(connection.features)}
        name = send_verdict(connection.verdict, ending, facts)
        os.close(connection.verdict)
        connection.verdict = -1
        if name:
            self._log.write("kept", f"kept in {capsule_folder() / name}", connection.number)
        return replace(ending, capsule=name)

    def close(self, base: str) -> None:
        """Close connections that still linger, and have all directories deleted, as far as that goes soon.

        Parameters:
            base: the server's directory, which those of the sessions are in.
        """

        def delete() -> None:
            if not self._directories.finish(base):
                self._log.write("left", f"files are left in {base}; the next server in this place deletes them")

        run_all(*(sock.close for sock in self._lingering.values()), delete)

    def _log_end(self, connection: Connection, ending: Ending, progress: Progress) -> None:
        if connection.serving:
            seconds = time.monotonic() - connection.since
            self._log.write(
                "ended", f"ended after {seconds:.1f} s: {ending.text}", connection.number, peer=connection.peer,
                how=ending.how, signal=ending.signal, code=ending.code, seconds=round(seconds, 3),
                received=progress.received, sent=progress.sent,
            )  # fmt: skip
        elif connection.kill_reason is not None or connection.state is State.STARTING:  # the others were answered
            self._log.write(
                "dropped", f"{connection.peer} {ending.text}", connection.number, peer=connection.peer, how=ending.how
            )

    # ---- The last message ----

    def _linger(self, sock: socket.socket, data: bytes) -> None:
        """Send a last message and give the client time to read it, taking what it still sends."""
        try:
            sock.send(data, socket.MSG_DONTWAIT)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        self._keep(sock, select.EPOLLIN)

    def _keep(self, sock: socket.socket, events: int) -> None:
        """Keep a connection until its client has gone, or ``LINGER`` is over."""
        try:
            self._loop.watch(
                sock.fileno(), lambda: self._on_linger(sock), events=events, failed=lambda _: self._end_linger(sock)
            )
        except OSError:
            sock.close()
            return
        self._lingering[sock.fileno()] = sock
        self._loop.call_after(LINGER, lambda: self._end_linger(sock))

    def _end_pump(self, connection: Connection) -> None:
        """Let the pump of TLS pass on what was sent, within a limit; it ends with either of its connections."""
        sock = connection.sock
        if connection.link is not None:  # still in the handshake of TLS
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if connection.serving:
            self._keep(sock, select.EPOLLRDHUP)
        else:  # it has little to pass on
            sock.close()

    def _on_linger(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            if not sock.recv(1 << 16, socket.MSG_DONTWAIT):
                self._end_linger(sock)

    def _end_linger(self, sock: socket.socket) -> None:
        if self._lingering.get(sock.fileno()) is sock:
            del self._lingering[sock.fileno()]
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # the pump of TLS has a copy
            run_all(lambda: self._loop.forget(sock.fileno()), sock.close)

    # ---- Directories ----

    def delete(self, directory: str) -> None:
        """Have a directory deleted by a separate process: it may hold a million files."""
        self._directories.delete(directory)

    def _remove(self, directory: str) -> None:
        try:
            for name in ("files", "tmp", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(os.path.join(directory, name))
        except OSError:
            self.delete(directory)

    def check_disk(self) -> None:
        """Have the files of all sessions counted, now and regularly from now on."""
        self._loop.call_after(DISK_INTERVAL, self.check_disk)
        for connection in self._connections.in_state(State.SERVING):
            self._directories.count(connection.directory, self._options.disk_limit)

    def _on_counted(self, directory: str, nbytes: int) -> None:
        for connection in self._connections.in_state(State.SERVING):
            if connection.directory == directory and nbytes > self._options.disk_limit:
                self._on_disk_limit(connection)
