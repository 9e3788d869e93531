# SPDX-License-Identifier: Apache-2.0
"""``portcall doctor``: what is installed here, what works, and what to improve."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

import click

import portcall
from portcall.cli._command import Command
from portcall.cli._output import print_facts, print_json, print_line
from portcall.errors import CompileError
from portcall.toolchain import Compiler, compilers, library_path

EXAMPLES = """
portcall doctor
portcall doctor --json
"""
# Package: what it is for. They are looked up, never imported.
PACKAGES = {
    "numpy": "arrays",
    "ml_dtypes": "bfloat16 and the small floats",
    "ziglang": "compiling for other machines",
    "apache-tvm-ffi": "libraries that link libtvm_ffi.so",
    "apache-tvm": "compiling models",
    "torch": "tensors to share",
}
DEVICE_KINDS = ("cpu", "cuda", "rocm", "opencl", "vulkan", "metal", "hexagon")
THREAD_VARIABLES = ("PORTCALL_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS")


@click.command("doctor", cls=Command, examples=EXAMPLES)
def command(json_to: str | None) -> None:
    """Nothing is changed, and no package is imported to look at it."""
    versions = dict(installed())
    found, broken = find_compilers()
    devices = {f"{kind}:0": portcall.device(f"{kind}:0").exist for kind in DEVICE_KINDS}
    threads: dict[str, object] = {
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        **{name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }
    advice = list(suggestions(versions, found, broken))
    if json_to is not None:
        report = {
            "python": platform.python_version(),
            "executable": sys.executable,
            "system": platform.platform(),
            "portcall": portcall.__version__,
            "core": str(library_path()),
            "packages": versions,
            "compilers": [{**vars(compiler), "version": compiler.version()} for compiler in found],
            "devices": devices,
            "threads": threads,
            "suggestions": advice,
        }
        print_json(report, json_to)
        return
    facts = [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("system", platform.platform()),
        ("portcall", f"{portcall.__version__} ({library_path()})"),
        *((name, f"{version or 'not installed'} ({PACKAGES[name]})") for name, version in versions.items()),
        *((f"{compiler.language} compiler", described(compiler)) for compiler in found),
        ("devices", ", ".join(name for name, exists in devices.items() if exists)),
        *((name.replace("_", " "), str(value)) for name, value in threads.items()),
    ]
    print_facts(facts)
    for line in advice:
        print_line(line, "suggestion", "yellow")
    if not advice:
        print_line("nothing to improve", "ok", "green")


def installed() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, ""


def find_compilers() -> tuple[tuple[Compiler, ...], str]:
    """Return the compilers, or what is wrong with the variable that should name one."""
    try:
        return compilers(), ""
    except CompileError as error:
        return (), str(error)


def described(compiler: Compiler) -> str:
    return f"{compiler.version()} ({' '.join(compiler.command)}, {compiler.origin})"


def suggestions(versions: dict[str, str], found: tuple[Compiler, ...], broken: str) -> Iterator[str]:
    if broken:
        yield broken
    elif not any(compiler.language == "c++" for compiler in found):
        yield "no C++ compiler: apt install g++, or pip install 'portcall[zig]'"
    if not versions["ziglang"]:
        yield "to compile for other machines (aarch64, riscv64, WebAssembly): pip install 'portcall[zig]'"
    if not versions["ml_dtypes"]:
        yield "for bfloat16 and the small floats: pip install 'portcall[dtypes]'"
