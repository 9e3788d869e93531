# SPDX-License-Identifier: Apache-2.0
"""The ``portcall`` command: one file for each sub-command, loaded on first use.

Rules:

* Help comes quickly: nothing here imports NumPy or rich; a function that needs one of them imports it.
* A command prints its result on stdout, as text or with ``--json`` as one JSON object, and all else on stderr.
* Exit codes: 0 ok, 1 user error, 2 usage, 3 device, 4 timeout, 5 crash, 6 not trustworthy (``--strict``), 130 Ctrl-C.
* An error says what happened, its likely cause and the next command; ``--debug`` adds the trace.
* Only public names of portcall are used.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
from io import TextIOWrapper
from typing import TextIO

from portcall.cli._command import LazyGroup, Settings

EXAMPLES = """
portcall demo                                              a first tour, in seconds
portcall inspect kernels.so                                what is in it, its needs
portcall run kernels.so add_one --arg 'random:float32[8]' --out 'float32[8]'
portcall bench kernels.so add_one --arg 'random:float32[8]' --out 'float32[8]'
portcall run m.json kernels.so --params m.params --input x=@x.npy --output y.npz      a compiled model
portcall run resnet50.onnx --input data=@x.npy                                       an ONNX model
portcall doctor                                            versions, compilers, devices
"""

# Name: (module, what the list of commands says about it).
COMMANDS = {
    "demo": ("portcall.cli.demo", "Compile a C++ kernel, run it, check it and time it."),
    "run": ("portcall.cli.run", "Call a function of a library, or run a model, and show what it did."),
    "bench": ("portcall.cli.bench", "Time a function of a library, or a model."),
    "compile": ("portcall.cli.compile", "Compile an ONNX model, or C and C++ sources, to one file that runs."),
    "verify": ("portcall.cli.verify", "Compare a compiled model with its ONNX model, by onnxruntime."),
    "bundle": ("portcall.cli.bundle", "Write a model's graph, kernels and parameters into one file."),
    "serve": ("portcall.cli.serve", "Serve functions to other processes and machines."),
    "board": ("portcall.cli.board", "Compile a server without Python for a board."),
    "deploy": ("portcall.cli.deploy", "Bring a server to a board by ssh, and have it run there."),
    "farm": ("portcall.cli.farm", "Hand out boards to many people, in a fair queue."),
    "inspect": ("portcall.cli.inspect", "Show what a library or a model offers and needs, without loading it."),
    "remote": ("portcall.cli.remote", "Give servers names, so that --rpc NAME is enough."),
    "capsule": ("portcall.cli.capsule", "Do again what a session did that crashed."),
    "mcp": ("portcall.cli.mcp", "Offer these commands as tools to a client of MCP."),
    "config": ("portcall.cli.config", "Show the flags with which compilers, make and CMake find portcall."),
    "stubs": ("portcall.cli.stubs", "Write a library's functions and types as a typed Python module."),
    "doctor": ("portcall.cli.doctor", "Show versions, compilers and devices, and what to improve."),
    "version": ("portcall.cli.version", "Show the version, its commit and the ABIs."),
    "help": ("portcall.cli.help", "Show the help of a command."),
}

# Names by which users of TVM know a command.
ALIASES = {"server": "serve"}

cli = LazyGroup(
    "portcall",
    commands_table=COMMANDS,
    aliases=ALIASES,
    examples=EXAMPLES,
    help="Call compiled functions: load a library, run it, check it, time it.",
)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    protect_output()
    # Who started us may ignore the ends of programs, which would all seem to succeed, or block what stops us.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
    cli.main(prog_name="portcall", obj=Settings(isolate=True))


def protect_output() -> None:
    """Let no text fail for where it goes: a stream that is closed drops it, and the nearest bytes are printed."""
    sys.stdout = sys.stdout or open_null()
    sys.stderr = sys.stderr or open_null()
    codecs.register_error("nearest", encode_nearest)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="nearest")


def open_null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def encode_nearest(error: UnicodeError) -> tuple[bytes, int]:
    """Return a ``?`` for each character that an encoding lacks, and undecodable bytes of a name unchanged."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    escaped = range(0xDC80, 0xDD00)  # what stands for such bytes, PEP 383
    return bytes(ord(letter) & 0xFF if ord(letter) in escaped else ord("?") for letter in text), error.end
