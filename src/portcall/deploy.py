# SPDX-License-Identifier: Apache-2.0
"""Bring a server to a machine that ``ssh`` or ``adb`` gets to, and have it run there: ``portcall deploy user@board``.

The system's own ssh does it, with the user's configuration and keys; PORTCALL_SSH names another command. The server is
the one-file program of ``portcall.board``, or wheels that the machine's Python installs. What is there already stays,
unless the new one has run there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import secrets
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portcall import _deploy_scripts as scripts
from portcall import board
from portcall._folders import cache_folder
from portcall.errors import StartError
from portcall.rpc.client._ssh import LAST_LINES, adb_command, explain, ssh_command, words_there
from portcall.rpc.wire._address import Address, parse_address
from portcall.rpc.wire._facts import PORT

__all__ = ["Deployed", "Machine", "Settings", "deploy", "look", "program_for", "remove", "update"]

# What `uname -m` says, and the machine of a target; a 32-bit system may run on a 64-bit kernel.
_MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64", "armv7l": "arm"}
_NARROW = {"aarch64": "arm"}
_ARM_ENDS = {"gnu": "gnueabihf", "musl": "musleabihf"}
_TOKEN_BYTES = 32
_WHEEL = re.compile(r"(?P<name>\w+)-(?P<version>[\w.+!]+)-[\w.-]+\.whl", re.ASCII)  # as the packaging guide names them
_OF_PYTHON = "portcall "  # in front of the version of such a server


@dataclass(frozen=True)
class Settings:
    """How a deployed server runs.

    Attributes:
        name: of the remote here, and of the place in a farm.
        host, port: where it listens.
        key: what clients ask for.
        farm: the farm whose place it is, as ``host:port``; empty for none.
    """

    name: str = ""
    host: str = "0.0.0.0"
    port: int = PORT
    key: str = ""
    farm: str = ""

    def _words(self) -> list[str]:
        """Return the words of the server's command line; files are in its folder."""
        farm = ["--farm", self.farm, *(["--place", self.name] if self.name else [])]
        key = ["--key", self.key] if self.key else []
        where = ["--host", self.host, "--port", str(self.port), "--ready-file", "ready"]
        return [*where, *key, *(farm if self.farm else ["--token-file", "token"])]

    def script(self) -> str:
        """Return what a shell runs in the server's folder."""
        start = f"set -- {shlex.join(self._words())}"
        if self.farm:  # one without tokens has none
            start += '; if [ -s farm-token ]; then set -- "$@" --token-file farm-token; fi'
        return f'{start}; exec "$PWD/portcall-server" "$@"'


@dataclass(frozen=True)
class Machine:
    """A machine, and the server that was deployed to it.

    Attributes:
        system, machine: as ``uname`` says.
        libc: ``gnu`` or ``musl``; empty where neither was found.
        target: for ``portcall.board``; empty where there is no server for it.
        python: the version of its Python; empty for none.
        service: ``systemd`` where the user has services, else ``detached``.
        version: of the server there, with ``portcall`` in front where it is one of Python; empty for none.
        digest: SHA-256 of the server there; empty where it is not known.
        settings: of the server there; None for none.
        pid: of the server; 0 where none runs.
        address: where the server says that it listens; empty where none runs.
    """

    system: str
    machine: str
    libc: str = ""
    target: str = ""
    python: str = ""
    service: str = "detached"
    version: str = ""
    digest: str = ""
    settings: Settings | None = None
    pid: int = 0
    address: str = ""


@dataclass(frozen=True)
class Deployed:
    """A server that runs.

    Attributes:
        machine: where, as it was found.
        settings: how it runs.
        address: where clients reach it: the host that ssh connects to, and the port; a port here, which adb forwards.
        token: the server's; empty for a place of a farm.
        pid: its process there.
        sent: whether the program was sent; False where it was there.
        restarted: False where it ran in this way already.
    """

    machine: Machine
    settings: Settings
    address: str
    token: str = field(default="", repr=False)
    pid: int = 0
    sent: bool = False
    restarted: bool = True


def deploy(
    host: str,
    settings: Settings | None = None,
    program: str | os.PathLike[str] | None = None,
    *,
    wheels: Sequence[str | os.PathLike[str]] = (),
    farm_token: str = "",
    progress: Callable[[str], None] | None = None,
) -> Deployed:
    """Bring a server to a machine and have it run there. Doing it again changes nothing.

    Parameters:
        host: ``user@board``, an alias of ssh's configuration, ``ssh://user@board:port`` or ``adb://SERIAL``.
        settings: how it runs.
        program: the server; by default it is compiled for the machine, by zig.
        wheels: instead of a program, portcall's wheel for the machine's Python, which installs it in an environment of
            its own. What the wheel requires comes from where pip finds it there, or is among the wheels.
        farm_token: the farm's token, for a server that is a place of one.
        progress: called with what is done next.

    Raises:
        ConnectError: ssh did not get there, or the connection was lost; the server there, if any, runs on.
        StartError: the new server was not installed or did not run there; the old one, if any, runs on.
        CompileError: there is no compiler.
        ValueError: the wheels have none of portcall, or there is a program too.
    """
    if wheels and program is not None:
        raise ValueError("a server is a program or wheels, and not both")
    wanted = settings or Settings()
    tell = progress or (lambda _: None)
    tell("looking at the machine")
    machine = look(host)
    if wheels:
        server, sending, content = _of_python(host, machine, [Path(wheel) for wheel in wheels])
        what = "the wheels, which are installed there"
    else:
        path = Path(program) if program is not None else program_for(machine, tell)
        server = content = path.read_bytes()
        sending = scripts.upload(len(content))
        what = f"the server, {len(content) / 1e6:.2f} MB"
    sent = machine.digest != hashlib.sha256(server).hexdigest()
    if sent:
        tell(f"sending {what}")
        _run(host, f"exec sh -c '{sending}'", content, "sending the server")
    tell("starting the server")
    values = {
        "run": wanted.script(),
        "settings": json.dumps(dataclasses.asdict(wanted)),
        "token": "" if wanted.farm else secrets.token_hex(_TOKEN_BYTES),
        "farm_token": farm_token if wanted.farm else "",
    }
    said = _shell(host, scripts.switch(values), "starting the server")
    if "good" not in said:
        why = (said.get("failed") or [""])[-1].removeprefix("error: ") or "it said nothing"
        state = "the old one runs on" if said.get("pid") else "none runs now"
        raise StartError(f"{host}: the new server did not start, and {state}: {why}")
    port = _object((said.get("ready") or [""])[-1]).get("port", wanted.port)
    return Deployed(
        machine, wanted, str(_reached(host, port)), "" if wanted.farm else (said.get("token") or [""])[-1],
        int((said.get("pid") or ["0"])[-1]), sent, "same" not in said,
    )  # fmt: skip


def update(
    host: str,
    program: str | os.PathLike[str] | None = None,
    *,
    wheels: Sequence[str | os.PathLike[str]] = (),
    progress: Callable[[str], None] | None = None,
) -> Deployed:
    """Replace the program of a server that was deployed; how it runs stays. Its sessions end.

    Raises:
        StartError: none was deployed there, or one of Python, and neither a program nor wheels are given. Others are
            those of ``deploy``.
    """
    found = look(host)
    if found.settings is None:
        raise StartError(f"{host} has no server that was deployed; portcall deploy {host}")
    if found.version.startswith(_OF_PYTHON) and program is None and not wheels:
        raise StartError(f"{host} has a server of Python; portcall deploy {host} --update --wheel FILE")
    return deploy(host, found.settings, program, wheels=wheels, progress=progress)


def look(host: str) -> Machine:
    """Return what a machine is, and what runs there; nothing is changed.

    Raises:
        ConnectError: ssh did not get there.
    """
    said = _shell(host, scripts.look(), "looking at the machine")

    def last(name: str) -> str:
        return (said.get(name) or [""])[-1].strip()

    loaders = " ".join(said.get("loader", []))
    libc = "gnu" if "ld-linux" in loaders else "musl" if "ld-musl" in loaders else ""
    machine = _MACHINES.get(last("machine"), "")
    if last("bits") == "32" or (machine == "aarch64" and loaders and "aarch64" not in loaders):
        machine = _NARROW.get(machine, machine if machine == "arm" else "")
    end = _ARM_ENDS.get(libc, "") if machine == "arm" else libc
    target = f"{machine}-linux-{end}" if machine and end and last("system") == "Linux" else ""
    return Machine(
        last("system"), last("machine"), libc, target, last("python"), last("service"),
        last("version").removeprefix("portcall-server "), last("digest"),
        _settings(last("settings")), int(pid) if (pid := last("pid")).isdecimal() else 0,
        str(_object(last("ready")).get("address", "")),
    )  # fmt: skip


def _object(text: str) -> dict[str, Any]:
    """Return an object of JSON; an empty one for what is none, as a file is after a loss of power."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _settings(text: str) -> Settings | None:
    """Return what was kept of a server there; None where that is not readable."""
    found, usual = _object(text), dataclasses.asdict(Settings())
    if not found or any(type(value) is not type(usual.get(key, value)) for key, value in found.items()):
        return None
    return Settings(**{key: value for key, value in found.items() if key in usual})


def remove(host: str) -> bool:
    """End a server that was deployed and delete its files, its token too; return whether there was one.

    Raises:
        ConnectError: ssh did not get there.
    """
    return "removed" in _shell(host, scripts.remove(), "removing the server")


def program_for(machine: Machine, progress: Callable[[str], None] | None = None) -> Path:
    """Return the server for a machine, which zig compiles; it is kept, so the second time takes a moment.

    Raises:
        StartError: there is no server for this machine.
        CompileError: there is no zig.
    """
    if not machine.target:
        raise StartError(f"there is no server for this machine: {machine.system} {machine.machine} {machine.libc}")
    if progress:
        progress(f"compiling the server for {machine.target}; the first time that takes minutes")
    return board.build_server(machine.target, cache_folder("board") / f"portcall-server-{machine.target}")


def _of_python(host: str, machine: Machine, wheels: list[Path]) -> tuple[bytes, str, bytes]:
    """Return the script that is the server, the one that installs it, and the archive that this one gets."""
    found = [_WHEEL.fullmatch(wheel.name) for wheel in wheels]
    versions = [match["version"] for match in found if match and match["name"] == "portcall"]
    if len(versions) != 1 or None in found:
        raise ValueError(f"one wheel must be portcall's: {', '.join(map(str, wheels))}")
    if not machine.python:
        raise StartError(f"{host} has no Python to install a wheel; leave out the wheel: the other server needs none")
    made = hashlib.sha256(machine.python.encode())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for wheel in wheels:
            made.update(hashlib.sha256(wheel.read_bytes()).digest())
            archive.add(wheel, wheel.name)
        name = f"portcall-server-{made.hexdigest()[:24]}"
        server = scripts.server(versions[0], name).encode()
        member = tarfile.TarInfo("server")
        member.size = len(server)
        archive.addfile(member, io.BytesIO(server))
    content = packed.getvalue()
    return server, scripts.install(len(content), name), content


def address_of(host: str) -> str:
    """Return the host that ssh connects to, as its configuration says; the one given where ssh does not tell."""
    there = _address(host)
    port = [f"-p{there.port}"] if there.port else []
    asked = subprocess.run([*ssh_command(), *port, "-G", there.host], capture_output=True, text=True, check=False)
    names = scripts.read(asked.stdout).get("hostname") if asked.returncode == 0 else None
    return names[0] if names else there.host.rpartition("@")[2]


def _reached(host: str, port: int) -> Address:
    """Return where clients of this machine reach a port there; adb is asked for a port here that it forwards."""
    there = _address(host)
    if not there.adb:
        return Address(address_of(host), port)
    way = f"tcp:{port}"
    for line in _adb(host, "forward", "--list").splitlines():  # serial number, here, there
        words = line.split()
        if len(words) == 3 and words[2] == way and there.host in ("", words[0]):
            return Address("127.0.0.1", int(words[1].removeprefix("tcp:")))
    return Address("127.0.0.1", int(_adb(host, "forward", "tcp:0", way)))


def _adb(host: str, *words: str) -> str:
    done = subprocess.run([*adb_command(_address(host)), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise explain(host, 255, done.stderr.splitlines()[-LAST_LINES:])
    return done.stdout


def _address(host: str) -> Address:
    return parse_address(host if "://" in host else f"ssh://{host}", ssh=True)


def _shell(host: str, script: str, what: str) -> dict[str, list[str]]:
    """Run a script on a machine; it is not in the words of a process, which others there can read."""
    return scripts.read(_run(host, "exec sh -s", script.encode(), what).decode(errors="replace"))


def _run(host: str, command: str, given: bytes, what: str) -> bytes:
    words = words_there(_address(host), command)
    try:
        done = subprocess.run(words, input=given, capture_output=True, check=False)
    except OSError as error:
        raise explain(host, 255, [f"cannot start {words[0]}: {error.strerror}"]) from None
    said = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()][-LAST_LINES:]
    if done.returncode == 255:
        raise explain(host, 255, [*said, f"it was lost while {what}"])
    if done.returncode:
        if (unreached := explain(host, done.returncode, said)).reason == "adb":
            raise unreached
        raise StartError(f"{host}: {what} failed: {'; '.join(said) or f'code {done.returncode}'}")
    return done.stdout
