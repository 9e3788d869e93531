# SPDX-License-Identifier: Apache-2.0
"""``portcall version``: the version, the commit it was built from, and the ABIs it loads."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import click

import portcall
from portcall.cli._command import Command
from portcall.cli._output import print_facts, print_json
from portcall.toolchain import library_path

EXAMPLES = """
portcall version
portcall version --json
portcall -V                   the version alone
"""


@click.command("version", cls=Command, examples=EXAMPLES)
def command(json_to: str | None) -> None:
    """The ABI is that of tvm-ffi; libraries of older conventions are loaded as well."""
    from portcall.inspect import this_machine

    facts = {"version": portcall.__version__, "commit": commit(), "tvm_ffi": abi(), "abis": list(this_machine().abis)}
    if json_to is not None:
        print_json(facts, json_to)
        return
    print_facts([
        ("portcall", portcall.__version__),
        ("commit", commit() or "not known"),
        ("ABI", f"tvm-ffi {abi()}; loads {', '.join(this_machine().abis)} libraries"),
    ])  # fmt: skip


def commit() -> str:
    """Return the commit: of the checkout where the package lies in one, else that of the build; empty if not known."""
    checkout = Path(portcall.__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        built = library_path().with_name("commit.txt")
        return built.read_text(encoding="utf-8").strip() if built.exists() else ""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def abi() -> str:
    """Return the version of tvm-ffi's ABI that the core has."""
    numbers = (ctypes.c_uint32 * 3)()
    ctypes.CDLL(str(library_path())).TVMFFIGetVersion(numbers)
    return ".".join(map(str, numbers))
