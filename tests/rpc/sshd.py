# SPDX-License-Identifier: Apache-2.0
"""Debian's sshd on a free port of this machine, with keys of its own, and a home of its own for whom it lets in."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SSHD = "/usr/sbin/sshd"
# Fails at the call whose number is in the file: at once, after half of its input, or when it sees a file.
_FAILING = """\
import json, os, subprocess, sys, time
with open({plan!r}) as file:
    plan = json.load(file)
ssh = [*{ssh!r}, *sys.argv[1:]]
if "-G" in ssh:
    os.execvp(ssh[0], ssh)
plan["calls"] += 1
with open({plan!r}, "w") as file:
    json.dump(plan, file)
if plan["calls"] != plan["fails"]:
    os.execvp(ssh[0], ssh)
given = sys.stdin.buffer.read()
if plan["half"]:
    subprocess.run(ssh, input=given[: len(given) // 2], stdout=subprocess.DEVNULL)
if plan["file"]:
    with subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        running.stdin.write(given)
        running.stdin.close()
        while not os.path.exists(plan["file"]):
            time.sleep(0.002)
        running.kill()
print("the connection is cut", file=sys.stderr)
sys.exit(255)
"""


class Machine:
    """A machine that ssh gets to, as ``board``, and as ``behind`` through a jump host.

    Attributes:
        home: the home of whom it lets in.
        ssh: the value of PORTCALL_SSH.
        process: sshd.
    """

    def __init__(self, folder: Path, environment: str = "", programs: str = "/usr/bin:/bin", command: str = "") -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.program = self.home / ".local" / "share" / "portcall" / "portcall-server"
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        self.port = free_port()
        self._config = folder / "sshd_config"
        self._config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"UsePAM no\nSetEnv HOME={self.home} PATH={programs} {environment}\n"
            + (f"ForceCommand {command}\n" if command else "")
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
        self._plan = folder / "plan.json"
        script = folder / "failing_ssh.py"
        script.write_text(_FAILING.format(plan=str(self._plan), ssh=ssh))
        self.command = f"{sys.executable} {script}"

    def fail_at(self, call: int, half: bool = False, when_seen: Path | None = None) -> None:
        """Fail at this call from now on, 0 for none: after half of its input, or when there is a file."""
        plan = {"calls": 0, "fails": call, "half": half, "file": str(when_seen or "")}
        self._plan.write_text(json.dumps(plan))

    @property
    def calls(self) -> int:
        return int(json.loads(self._plan.read_text())["calls"])


@contextlib.contextmanager
def machine(
    folder: Path, environment: str = "", programs: str = "/usr/bin:/bin", command: str = ""
) -> Iterator[Machine]:
    """Run one; ``environment`` has further variables of whom it lets in, ``programs`` the folders of programs, and
    ``command`` is what runs instead of what is asked for, which it finds in SSH_ORIGINAL_COMMAND."""
    made = Machine(folder, environment, programs, command)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def machine_with_services(folder: Path) -> Iterator[Machine]:
    """Run one whose user has services: systemd's own manager of a user, with folders of its own.

    It has no journal: what journalctl says is in its home.
    """
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    programs = folder / "programs"
    programs.mkdir()
    (programs / "journalctl").write_text('#!/bin/sh\necho "$*" >~/journal-asked\ncat ~/journal\n')
    (programs / "journalctl").chmod(0o755)
    with machine(folder, f"XDG_RUNTIME_DIR={runtime}", f"{programs}:/usr/bin:/bin") as made:
        start = "exec /lib/systemd/systemd --user"
        words = ["sh", "-c", start]
        if not Path("/run/systemd/system").exists():  # it looks whether the system is one of systemd
            words = [
                "unshare",
                "-m",
                "sh",
                "-c",
                f"mount -t tmpfs none /run && mkdir -p /run/systemd/system && {start}",
            ]
        variables = {"HOME": str(made.home), "PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(runtime)}
        with (folder / "systemd.log").open("wb") as log:
            process = subprocess.Popen(words, env=variables, stdout=log, stderr=log)
        try:
            while not (runtime / "systemd" / "private").exists():
                if process.poll() is not None:
                    raise RuntimeError((folder / "systemd.log").read_text())
                time.sleep(0.01)
            yield made
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
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
