# SPDX-License-Identifier: Apache-2.0
"""Debian's sshd on a free port of this machine, with keys of its own, and a home of its own for whom it lets in."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SSHD = "/usr/sbin/sshd"
# Fails at the call whose number is in the file; counts the calls in another one.
_FAILING = """\
import os, sys
count = int(open({count!r}).read()) + 1
open({count!r}, "w").write(str(count))
if count == int(open({fails!r}).read()):
    sys.exit("the connection is cut")
os.execvp({ssh[0]!r}, [*{ssh!r}, *sys.argv[1:]])
"""


class Machine:
    """A machine that ssh gets to, as ``board``, and as ``behind`` through a jump host.

    Attributes:
        home: the home of whom it lets in.
        ssh: the value of PORTCALL_SSH.
        process: sshd.
    """

    def __init__(self, folder: Path, with_paths: str = "") -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.program = self.home / ".local" / "share" / "portcall" / "portcall-server"
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        self.port = _free_port()
        paths = ":".join(filter(None, (with_paths, "/usr/bin:/bin")))
        self._config = folder / "sshd_config"
        self._config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"UsePAM no\nSetEnv HOME={self.home} PATH={paths}\n"
        )
        if os.geteuid() == 0:  # where it keeps what runs without rights; the service makes it
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._log = (folder / "sshd.log").open("wb")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self._config], stderr=self._log)
        _wait_for_port(self.port, self.process)
        common = f"HostName 127.0.0.1\nPort {self.port}\nUser {getpass.getuser()}\n"
        client = folder / "ssh_config"
        client.write_text(
            f"Host board\n{common}Host behind\n{common}ProxyCommand ssh -F {client} -W %h:%p board\n"
            f"Host *\nIdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
            "StrictHostKeyChecking accept-new\n"
        )
        self.ssh = f"ssh -F {client}"

    def deploy(self, script: str) -> None:
        """Put a shell script where `portcall deploy` puts its server."""
        self.program.parent.mkdir(parents=True, exist_ok=True)
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o755)

    @contextlib.contextmanager
    def server(self, script: str) -> Iterator[None]:
        """Have another script there during the block."""
        with self.without_server():
            self.deploy(script)
            yield

    @contextlib.contextmanager
    def without_server(self) -> Iterator[None]:
        """Have none there during the block."""
        aside = self.program.with_name("aside")
        self.program.rename(aside)
        try:
            yield
        finally:
            aside.rename(self.program)

    def failing_ssh(self) -> FailingSsh:
        """Return an ssh that fails at one of its calls."""
        return FailingSsh(self.folder, shlex.split(self.ssh))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._log.close()


class FailingSsh:
    """A command for PORTCALL_SSH that is cut at its n-th call."""

    def __init__(self, folder: Path, ssh: list[str]) -> None:
        self._count, self._fails = folder / "count", folder / "fails"
        script = folder / "failing_ssh.py"
        script.write_text(_FAILING.format(count=str(self._count), fails=str(self._fails), ssh=ssh))
        self.command = f"{sys.executable} {script}"

    def fail_at(self, call: int) -> None:
        """Fail at this call from now on; 0 for none."""
        self._count.write_text("0")
        self._fails.write_text(str(call))

    @property
    def calls(self) -> int:
        return int(self._count.read_text())


@contextlib.contextmanager
def machine(folder: Path, with_paths: str = "") -> Iterator[Machine]:
    made = Machine(folder, with_paths)
    try:
        yield made
    finally:
        made.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            return
        time.sleep(0.05)
    raise RuntimeError("sshd does not listen")
