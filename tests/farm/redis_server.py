# SPDX-License-Identifier: Apache-2.0
"""A real redis-server on a Unix socket (`make` installs it), ended by its process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator

PROGRAM = os.environ.get("REDIS_SERVER", "/usr/bin/redis-server")


class RedisServer:
    """A server in a folder of its own, which can be killed, stopped and started again without its data."""

    def __init__(self, folder: str, *options: str) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/s"
        self._command = [PROGRAM, "--port", "0", "--unixsocket", f"{folder}/s", "--save", "", "--appendonly", "no",
                         "--dir", folder, *options]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "accept connections" in line:
                break
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(self.url.removeprefix("unix://"))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Let it answer nobody for the time of the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a server with these options of its command line."""
    with tempfile.TemporaryDirectory(prefix="redis") as folder:
        server = RedisServer(folder, *options)
        try:
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def running_redis() -> Iterator[str]:
    """Run a server, and yield its URL."""
    with redis_server() as server:
        yield server.url
