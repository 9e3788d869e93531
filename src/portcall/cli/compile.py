# SPDX-License-Identifier: Apache-2.0
"""``portcall compile``: an ONNX model, or sources of C and C++, to one file that runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import format_duration, format_size
from portcall.cli._call import check_exists, check_output
from portcall.cli._command import Command
from portcall.cli._errors import DEVICE, CommandError, message_of
from portcall.cli._onnx import SUFFIX, fix_options, steps
from portcall.cli._output import print_json, print_line
from portcall.cli._progress import StatusLine, compiling
from portcall.cli._remote import open_session
from portcall.cli._store import read_remotes
from portcall.errors import KeyMismatchError, ModelError, WrongResultsError
from portcall.toolchain import WASM

if TYPE_CHECKING:
    from portcall.compile import CompiledExecutable, CompiledModel

EXAMPLES = """
portcall compile resnet50.onnx -o resnet50.so                      a model, for this machine
portcall compile bert.onnx -o bert.so --shape ids=1x128 --threads 4
portcall compile vad.onnx -o vad.so --shape input=1x512 --constant sr=16000
portcall compile m.onnx -o m.so --target aarch64-linux-gnu         for another machine
portcall compile bert.onnx -o bert.so --runtime vm                 for TVM's Relax VM, its shapes not fixed
portcall compile kernels.cc -o kernels.so                          C or C++
portcall compile kernels.cc -o kernels.so --for pi.local:9090      for the machine of a server
portcall compile kernels.cc -o kernels.so --option=-march=native   faster, for processors like this one only
portcall compile kernels.cc -I include -l blas --option=-L/opt/lib
portcall run resnet50.so --input data=@x.npy                       what to do with it
"""
NO_OPTIONS = {
    "tls_ca": None,
    "tls_cert": None,
    "token_file": None,
    "connect_timeout": 10.0,
}  # what a session would be opened with
ALGORITHMS = ("auto", "off", "f2", "f4")
RUNTIMES = ("auto", "graph", "vm")


@click.command("compile", cls=Command, examples=EXAMPLES)
@click.argument("files", type=click.Path(), nargs=-1, required=True, metavar="MODEL|SOURCES...")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="The file to write; by default NAME.so.")
@click.option("--target", default="native", show_default=True, metavar="TRIPLE[:CPU]",
              help="The machine to compile for, such as aarch64-linux-gnu, or native:haswell.")  # fmt: skip
@click.option("--for", "server", metavar="REMOTE|HOST:PORT|TRIPLE",
              help="Compile for the machine of this server, which is asked for it; or for a target.")  # fmt: skip
@fix_options
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1),
              help="1: kernels of one thread; more: kernels that share their work among threads.")  # fmt: skip
@click.option("--runtime", default="auto", show_default=True, type=click.Choice(RUNTIMES),
              help="graph: fixed shapes, fast; vm: TVM's Relax VM; auto: vm for what a graph cannot hold.")  # fmt: skip
@click.option("--no-check", is_flag=True, help="Do not compare the compiled model with onnxruntime.")
@click.option("--option", "flags", multiple=True, metavar="FLAG", help="A word for compiler and linker, after those of "
              "CFLAGS or CXXFLAGS: --option=-march=native. Can be repeated; the last wins.")  # fmt: skip
@click.option("-I", "folders", multiple=True, metavar="DIR", help="A folder of headers. Can be repeated.")
@click.option("-l", "libraries", multiple=True, metavar="LIB", help="A library to link. Can be repeated.")
@click.option("--winograd", default="auto", show_default=True, type=click.Choice(ALGORITHMS),
              help="For 3x3 convolutions: less work, larger weights, more rounding.")  # fmt: skip
def command(
    files: tuple[str, ...], output: str | None, target: str, server: str | None, no_check: bool, json_to: str | None,
    flags: tuple[str, ...], folders: tuple[str, ...], libraries: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """MODEL is an ONNX file; what it becomes, a bundle, has graph, kernels and weights in it. Shapes that are not
    fixed, or depend on values, are for the Relax VM: the file is then a library with an executable. SOURCES are .c,
    .cc, .cpp, .cxx, and .o, .a and .tar files to link. They are compiled with -O3, for any processor of the machine's
    kind; CXX and CC name the compiler, and without one ziglang takes its place.
    """
    for path in files:
        check_exists(path)
    if server is not None:
        if target != "native":
            raise click.UsageError("--for and --target both say for which machine: give one")
        target = target_for(server)
    output = output or f"{Path(files[0]).stem}.so"
    check_output(output, for_wasm=target == WASM)
    words = (*(f"-I{folder}" for folder in folders), *flags, *(f"-l{library}" for library in libraries))
    if any(path.endswith(SUFFIX) for path in files):
        if len(files) > 1:
            raise click.UsageError("a model is compiled by itself: give one ONNX file")
        if words:
            raise click.UsageError("--option, -I and -l are for sources")
        compile_model(files[0], output, target, {**options, "check": not no_check}, json_to)
    else:
        if options != {"shapes": {}, "constants": {}, "threads": 1, "winograd": "auto", "runtime": "auto"}:
            raise click.UsageError("--shape, --constant, --threads, --winograd and --runtime are for ONNX models")
        compile_sources(files, output, target, words, json_to)


def target_for(place: str) -> str:
    """Return the target of a server's machine; what is neither a saved remote nor has a port is a target itself."""
    if place not in read_remotes() and not re.fullmatch(r".*:\d+", place):
        return place
    try:
        with open_session(place, {**NO_OPTIONS, "key": os.environ.get("PORTCALL_KEY", "")}) as (session, _):
            machine = session.machine()
    except KeyMismatchError as error:
        step = f"PORTCALL_KEY=KEY portcall compile …, or portcall remote add NAME {place} --key KEY"
        raise CommandError(message_of(error), "", step, DEVICE, "KeyMismatchError") from error
    if machine is None:
        raise CommandError(
            f"the server {place} does not say what machine it runs on", "it is not one of portcall's",
            "--target TRIPLE, such as aarch64-linux-gnu", kind="RPCError",
        )  # fmt: skip
    return machine.target


def compile_model(path: str, output: str, target: str, options: dict[str, Any], json_to: str | None) -> None:
    from portcall import compile, toolchain

    toolchain.check_output(output)  # before any long work
    with steps(path) as step:
        try:
            made = compile.onnx(path, target, progress=step, **options)
        except WrongResultsError as error:
            wrong: Any = error.made
            kept = wrong.save(Path(output).with_suffix(".wrong.so"))
            raise ModelError(str(error), hint=f"to see more: {verify_words(kept, path)}") from error
    with StatusLine() as status, status.expect(f"linking {output}", 0):
        nbytes = made.save(output).stat().st_size
    if isinstance(made, compile.CompiledModel):
        report(made, output, nbytes, json_to)
    else:
        report_executable(made, output, nbytes, json_to)


def verify_words(library: Path, model: str) -> str:
    """Return the command that compares a compiled model with its ONNX model, node by node."""
    return shlex.join(["portcall", "verify", os.path.relpath(library), "--against", model])


def report_executable(made: CompiledExecutable, output: str, nbytes: int, json_to: str | None) -> None:
    if json_to is not None:
        print_json({
            "library": output, "runtime": "vm", "reason": made.reason, "nbytes": nbytes, "target": made.target,
            "inputs": dict(made.inputs), "steps_s": dict(made.steps), "kernels": dict(made.kernels),
            "unchecked": made.unchecked, "notes": list(made.notes),
        }, json_to)  # fmt: skip
        return
    if made.reason:
        print_line(f"for the Relax VM, since a graph cannot hold it: {made.reason}")
    inputs = ", ".join(f"{name}: {text}" for name, text in made.inputs.items())
    print_line(f"{output}: {format_size(nbytes)}, main({inputs})")
    total, slow = sum(made.kernels.values()), made.kernels.get("default", 0)
    if slow or not total:
        which = f"{slow} of {total} kernels are" if total else "all kernels are"
        advice = "; a graph has fewer of them: give --shape" if "?" in inputs or "--shape" in made.reason else ""
        print_line(f"{which} TVM's own, which take longer{advice}", "note", "yellow")
    print_line(", ".join(f"{name} {format_duration(seconds)}" for name, seconds in made.steps.items()))
    print_next(made, output, [
        f"--input={name}={example(text, made.sizes.get(name))}" for name, text in made.inputs.items()
    ])  # fmt: skip


def example(text: str, checked: Sequence[int] | None = None) -> str:
    """Return what can be given for an input of a type such as ``float32[n,4]``.

    Parameters:
        checked: a shape with which the model ran; without one, 2 stands for what is not fixed.
    """
    dtype, _, extents = text.removesuffix("]").partition("[")
    words = [word.strip() for word in extents.split(",") if word.strip()]
    sizes = ",".join(str(n) for n in checked or (word if word.isdigit() else 2 for word in words))
    return "random" if all(word.isdigit() for word in words) else f"random:{dtype}[{sizes}]"


def print_next(made: CompiledModel | CompiledExecutable, output: str, words: list[str]) -> None:
    """Print what was not compared, and how to run a model, which for another machine is done on a server."""
    for text in made.notes:
        print_line(text, "note", "yellow")
    if made.unchecked:
        print_line(f"not compared with onnxruntime: {made.unchecked}", "note", "yellow")
    elsewhere = ["--rpc=HOST:PORT"] if made.triple or not made.runs_here else []
    print_line(f"next: {shlex.join(['portcall', 'run', output, *words, *elsewhere])}")


def report(made: CompiledModel, output: str, nbytes: int, json_to: str | None) -> None:
    inputs = [made.graph.nodes[number].name for number in made.graph.inputs]
    inputs = [name for name in inputs if name not in made.params]
    if json_to is not None:
        print_json({
            "bundle": output, "nbytes": nbytes, "target": made.target, "inputs": inputs, "steps_s": dict(made.steps),
            "kernels": dict(made.kernels), "metadata": dict(made.graph.metadata), "unchecked": made.unchecked,
            "notes": list(made.notes),
        }, json_to)  # fmt: skip
        return
    rules = ", ".join(f"{count} {rule}" for rule, count in made.kernels.items())
    print_line(f"{output}: {format_size(nbytes)}, {sum(made.kernels.values())} kernels ({rules})")
    print_line(", ".join(f"{name} {format_duration(seconds)}" for name, seconds in made.steps.items()))
    print_next(made, output, [f"--input={name}=random" for name in inputs])


def compile_sources(
    files: tuple[str, ...], output: str, target: str, words: tuple[str, ...], json_to: str | None
) -> None:
    from portcall import toolchain

    wrong = [path for path in files if Path(path).suffix not in toolchain.SUFFIXES]
    if wrong:
        raise click.UsageError(
            f"'{wrong[0]}' is neither an ONNX model ({SUFFIX}) nor one of {' '.join(toolchain.SUFFIXES)}"
        )
    if target == WASM and any(word.startswith("-l") for word in words):
        raise click.UsageError("-l is not for wasm32, whose libraries link nothing but the core")
    triple = None if target == "native" else target
    with StatusLine() as status, status.expect(compiling(files, triple), 0):
        made = toolchain.create_shared(files, output, triple, words)
    if json_to is not None:
        print_json({"library": output, "nbytes": made.stat().st_size, "target": target}, json_to)
        return
    print_line(f"{output}: {format_size(made.stat().st_size)}")
    print_line(f"next: {shlex.join(['portcall', 'inspect', output])}")
