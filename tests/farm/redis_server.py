# SPDX-License-Identifier: Apache-2.0
"""A real redis-server on a Unix socket (`make` installs it), ended by its process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator

PROGRAM = os.environ.get("REDIS_SERVER", "/usr/bin/redis-server")


@contextlib.contextmanager
def running_redis() -> Iterator[str]:
    """Run a server in a folder of its own, and yield its URL."""
    with tempfile.TemporaryDirectory(prefix="redis") as folder:
        path = f"{folder}/s"
        command = [PROGRAM, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if "accept connections" in line:
                        break
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(path)
                yield f"unix://{path}"
            finally:
                process.terminate()
