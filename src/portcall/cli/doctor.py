# SPDX-License-Identifier: Apache-2.0
"""``portcall doctor``: what is installed here, what works, and what to improve; or the same of a server."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall.bench import format_duration
from portcall.cli._command import Command
from portcall.cli._devices import DeviceFacts, cuda_compiler, find_devices, reasons
from portcall.cli._output import print_facts, print_json, print_line
from portcall.cli._remote import open_session, session_options, uses_farm
from portcall.errors import CompileError, PortcallError
from portcall.extras import EXTRAS, Extra
from portcall.toolchain import Compiler, compilers, library_path

if TYPE_CHECKING:
    from portcall.inspect import Machine
    from portcall.rpc import Session

EXAMPLES = """
portcall doctor
portcall doctor --json
portcall doctor rasp                  a server, by its name or address: does it work, and how fast?
"""
# Package: what it is for; those of extras have their own lines. They are looked up, never imported.
PACKAGES = {"numpy": "arrays", "torch": "tensors to share"}
THREAD_VARIABLES = ("PORTCALL_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS")


# What a server is asked: calls, and bytes of a copy.
CALLS = 100
COPY_BYTES = 4 << 20
REQUEST_TIMEOUT = 60.0
FILE_FUNCTIONS = ("tvm.rpc.server.upload", "tvm.rpc.server.load_module")


@click.command("doctor", cls=Command, examples=EXAMPLES)
@click.argument("server", required=False, metavar="[REMOTE|HOST:PORT]")
@session_options
def command(json_to: str | None, server: str | None, **given: Any) -> None:
    """Nothing is changed, and no package is imported to look at it."""
    if server is None and not uses_farm(server, given):
        examine_this_machine(json_to)
    else:
        examine_server(json_to, server or "", given)


@dataclass(frozen=True)
class ServerReport:
    """What a server is, and how fast. Seconds, and bytes per second of a copy."""

    server: str
    kind: str
    machine: Machine | None
    connect: float
    queue: float
    round_trip: float
    copy_to: float
    copy_from: float
    devices: list[DeviceFacts]
    takes_libraries: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "server": self.server, "kind": self.kind, "machine": self.machine and asdict(self.machine),
            "connect_s": self.connect, "queue_s": self.queue, "round_trip_s": self.round_trip,
            "copy_to_bytes_per_s": self.copy_to, "copy_from_bytes_per_s": self.copy_from,
            "devices": [device.to_dict() for device in self.devices], "takes_libraries": self.takes_libraries,
        }  # fmt: skip


def examine_server(json_to: str | None, server: str, given: dict[str, Any]) -> None:
    report = ask_server(server, given)
    if json_to is not None:
        print_json(report.to_dict(), json_to)
    else:
        print_report(report, server, given)


def ask_server(server: str, given: dict[str, Any]) -> ServerReport:
    """Open a session, and measure it; ``given`` has the values of ``session_options``."""
    with open_session(server, given, REQUEST_TIMEOUT) as (session, _):
        seconds = session.stats()["seconds"]
        round_trip = time_calls(session)
        to_there, from_there = time_copies(session)
        return ServerReport(
            session.name, session.peer_kind, session.machine(), seconds["connect"], seconds["queue"], round_trip,
            to_there, from_there, list(find_devices(session.device)),
            all(offers(session, name) for name in FILE_FUNCTIONS),
        )  # fmt: skip


def print_report(report: ServerReport, server: str, given: dict[str, Any]) -> None:
    facts = [
        ("server", f"{report.server}, of {report.kind}"),
        *(described_machine(report.machine, server, given) if report.machine else ()),
        ("open", format_duration(report.connect)),
        *([("queue", format_duration(report.queue))] if report.queue else []),
        ("round trip", f"{format_duration(report.round_trip)} (median of {CALLS} calls)"),
        ("copy to it", f"{report.copy_to / 1e6:,.0f} MB/s"),
        ("copy from it", f"{report.copy_from / 1e6:,.0f} MB/s"),
        *((device.name, str(device)) for device in report.devices),
        ("libraries", "can be uploaded and loaded" if report.takes_libraries else "cannot be uploaded"),
    ]
    print_facts(facts)
    print_line("the server works", "ok", "green")


def described_machine(machine: Machine, server: str, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "machine", str(machine)
    named = server and not any(given[name] for name in ("key", "token_file", "tls_ca", "tls_cert"))
    yield "compile for it", f"portcall compile FILES {f'--for {server}' if named else f'--target {machine.target}'}"
    yield "portcall there", f"{machine.portcall}, loads {', '.join(machine.abis) or 'no'} libraries"


def time_calls(session: Session) -> float:
    """Return the seconds of a call that does nothing."""
    nothing = session.get_function("testing.nop")
    nothing()
    return statistics.median(timed(nothing) for _ in range(CALLS))


def time_copies(session: Session) -> tuple[float, float]:
    """Return the bytes per second of a copy to the server, and from it; the better of two."""
    local, remote = portcall.empty((COPY_BYTES,), "uint8"), session.empty((COPY_BYTES,), "uint8")
    to_there = min(timed(lambda: remote.copyfrom(local)) for _ in range(2))
    from_there = min(timed(lambda: remote.copyto(local)) for _ in range(2))
    return COPY_BYTES / to_there, COPY_BYTES / from_there


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def offers(session: Session, name: str) -> bool:
    try:
        session.get_function(name)
    except PortcallError:
        return False
    return True


def examine_this_machine(json_to: str | None) -> None:
    from portcall.rpc import find_sandbox

    versions = dict(installed())
    found, broken = find_compilers()
    devices = list(find_devices(portcall.device))
    absent = reasons(devices)
    nvrtc, no_nvrtc = ("", "") if "cuda" in absent else cuda_compiler()
    sandbox = find_sandbox()
    threads: dict[str, object] = {
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        **{name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }
    advice = [*suggestions(found, broken), *([no_nvrtc] if no_nvrtc else [])]
    if json_to is not None:
        report = {
            "python": platform.python_version(),
            "executable": sys.executable,
            "system": platform.platform(),
            "portcall": portcall.__version__,
            "core": str(library_path()),
            "packages": versions,
            "extras": [
                {
                    "name": extra.name,
                    "purpose": extra.purpose,
                    "packages": list(extra.packages.values()),
                    "installed": extra.is_installed(),
                    "install": extra.command,
                }
                for extra in EXTRAS.values()
            ],
            "compilers": [{**vars(compiler), "version": compiler.version()} for compiler in found],
            "devices": [device.to_dict() for device in devices],
            "missing_devices": absent,
            "nvrtc": nvrtc,
            "sandbox": asdict(sandbox),
            "threads": threads,
            "suggestions": advice,
        }
        print_json(report, json_to)
        return
    facts = [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("system", platform.platform()),
        ("portcall", f"{portcall.__version__} ({library_path()})"),
        *((name, f"{versions[name] or 'not installed'} ({purpose})") for name, purpose in PACKAGES.items()),
        *((f"extra {extra.name}", extra_text(extra, versions)) for extra in EXTRAS.values()),
        *((f"{compiler.language} compiler", compiler_text(compiler)) for compiler in found),
        *((device.name, str(device)) for device in devices),
        *([("nvrtc", f"{nvrtc} (compiles modules with CUDA source)")] if nvrtc else []),
        *(("no " + kind, why) for kind, why in absent.items()),
        ("sandbox", sandbox.report.removeprefix("sessions run in a sandbox of ")),
        *((name.replace("_", " "), str(value)) for name, value in threads.items()),
    ]
    print_facts(facts)
    for line in advice:
        print_line(line, "suggestion", "yellow")
    if not advice:
        print_line("nothing to improve", "ok", "green")


def installed() -> Iterator[tuple[str, str]]:
    for name in (*PACKAGES, *(package for extra in EXTRAS.values() for package in extra.packages.values())):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, ""


def extra_text(extra: Extra, versions: dict[str, str]) -> str:
    found = ", ".join(f"{name} {versions[name]}" for name in extra.packages.values() if versions[name])
    state = f"installed ({extra.purpose})" if extra.is_installed() else f"for {extra.purpose}: {extra.command}"
    return f"{state}{'; ' if found else ''}{found}"


def find_compilers() -> tuple[tuple[Compiler, ...], str]:
    """Return the compilers, or what is wrong with the variable that should name one."""
    try:
        return compilers(), ""
    except CompileError as error:
        return (), str(error)


def compiler_text(compiler: Compiler) -> str:
    return f"{compiler.version()} ({' '.join(compiler.command)}, {compiler.origin})"


def suggestions(found: tuple[Compiler, ...], broken: str) -> Iterator[str]:
    if broken:
        yield broken
    elif not any(compiler.language == "c++" for compiler in found):
        yield f"no C++ compiler: apt install g++, or {EXTRAS['zig'].command}"
    for extra in (EXTRAS["zig"], EXTRAS["dtypes"]):  # the others serve who knows that they need them
        if not extra.is_installed():
            yield f"for {extra.purpose}: {extra.command}"
