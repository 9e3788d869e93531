# SPDX-License-Identifier: Apache-2.0
"""``portcall inspect``: what a library or a model is, offers and needs; files are read, nothing of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from portcall.bench import format_size
from portcall.cli._command import Command
from portcall.cli._errors import UNTRUSTED
from portcall.cli._graph_report import KINDS, open_model_file
from portcall.cli._onnx import SUFFIX, compiled, fix_options
from portcall.cli._onnx_report import open_onnx
from portcall.cli._output import console, counted, listed, print_facts, print_json, print_line
from portcall.cli._params_report import KINDS as TENSORS
from portcall.cli._params_report import open_tensors_file
from portcall.cli._vm_report import open_executable
from portcall.errors import printable
from portcall.inspect import Dependency, LibraryReport, inspect_library

if TYPE_CHECKING:
    from rich.tree import Tree

REGISTERED_ELSEWHERE = (
    "libtvm_ffi.so, not portcall: what the library registers, types and global functions, is not known to portcall; "
    "load it with foreign='adopt', or build it without -ltvm_ffi"
)
TYPES_AT_RUN_TIME = (
    "(functions of the library tell them: inspect.signature(portcall.load_module(path)[name]) calls those)"
)
EXAMPLES = """
portcall inspect kernels.so
portcall inspect kernels.so --json | jq .functions
portcall inspect kernels.so --strict && scp kernels.so board:
portcall inspect m.so --all                                     a model of TVM's Relax VM, with its instructions
portcall inspect m.json kernels.so --params m.params            a model: nodes, shapes, kernels, memory
portcall inspect resnet50.onnx                                  inputs, outputs, operators of an ONNX model
portcall inspect resnet50.onnx --shape data=1x3x224x224         the same compiled, into a cache: nodes, kernels, memory
portcall inspect bundle.so --svg model.svg                      and a picture of it, for a browser
"""

DEPTH = 32  # at most, of modules that import each other


@click.command("inspect", cls=Command, examples=EXAMPLES)
@click.argument("file", type=click.Path(), metavar="LIBRARY|GRAPH|BUNDLE|PARAMS")
@click.argument("kernels", type=click.Path(), required=False, metavar="[LIBRARY]")
@click.option("--params", type=click.Path(), metavar="FILE", help="A graph's parameters, to tell them from inputs.")
@click.option("--svg", type=click.Path(dir_okay=False), help="Write a picture of the graph.")
@fix_options
@click.option("--all", "everything", is_flag=True, help="List everything, however much there is.")
@click.option("--strict", is_flag=True, help="Exit with 6 when the library will not load or run here.")
@click.pass_context
def command(
    ctx: click.Context, file: str, kernels: str | None, params: str | None, svg: str | None, everything: bool,
    strict: bool, shapes: dict[str, tuple[int, ...]], constants: dict[str, object], json_to: str | None,
) -> None:  # fmt: skip
    """Reads ELF files of any machine. For this machine it also looks for what the library needs: other libraries,
    symbols and their versions. Of a graph (JSON), a bundle, or a library with a graph inside it shows nodes, kernels,
    and where the memory goes; of an executable of TVM's Relax VM functions and instructions; of a file of parameters
    (.params, .npz) its tensors. Of an ONNX model it shows inputs, outputs and operators; with --shape, --constant or
    --svg it is compiled first, and shown as a bundle.
    """
    if file.endswith(SUFFIX) and not (shapes or constants or svg):
        refuse_options_of_models(f"'{file}' is an ONNX model", kernels, params, svg)
        uncompiled = open_onnx(file)
        print_json(uncompiled.to_dict(), json_to) if json_to is not None else uncompiled.show(everything)
        return
    file = compiled(file, shapes, constants)
    tensors = open_tensors_file(file)
    if tensors is not None:
        refuse_options_of_models(f"'{file}' is {TENSORS[tensors.kind]}", kernels, params, svg)
        print_json(tensors.to_dict(), json_to) if json_to is not None else tensors.show(everything)
        return
    model = open_model_file(file, params)
    library = kernels if model and model.kind == "graph" else file
    report = inspect_library(library) if library else None
    if model is None:
        refuse_options_of_models(f"'{file}' is neither", kernels, params, svg)
    else:
        if model.kind != "graph" and kernels:
            raise click.UsageError(f"'{file}' is {KINDS[model.kind]}, and contains its kernels; leave out '{kernels}'")
        model.check(report)
        if svg:
            model.draw(svg)
    executable = open_executable(report)
    problems = [problem for each in (model, report, executable) if each for problem in each.problems]
    if json_to is not None:
        facts = asdict(report) if report else None
        if facts and executable:
            facts["executable"] = executable.to_dict()
        print_json({**model.to_dict(), "svg": svg, "library": facts} if model else facts or {}, json_to)
    else:
        if model:
            model.show(everything, svg)
        if executable:
            executable.show(everything)
        if report and (model or executable):
            print_line("")
        if report:
            show(report, everything, kernels=bool(model or executable), fine=not problems)
    if strict and problems:
        ctx.exit(UNTRUSTED)


def refuse_options_of_models(why: str, kernels: str | None, params: str | None, svg: str | None) -> None:
    for option, value in (("a second LIBRARY", kernels), ("--params", params), ("--svg", svg)):
        if value:
            raise click.UsageError(f"{option} is for graphs and bundles, and {why}")


def show(report: LibraryReport, everything: bool, kernels: bool, fine: bool) -> None:
    print_facts(facts(report, everything, kernels))
    if report.modules:
        print_line("modules inside")
        console().print(module_tree(report, 0, {0}))
    for module in report.modules if everything else ():
        if module.kernels and module.kernels.source:
            print_line(f"source of {printable(module.kind)}")
            print_line(printable(module.kernels.source))
    for problem in report.problems:
        print_line(problem, "problem", "yellow")
    if fine:
        print_line("all that it needs is installed", "no problem", "green")


def facts(report: LibraryReport, everything: bool, kernels: bool) -> Iterator[tuple[str, str]]:
    """Yield what is shown of a library; ``kernels``: its functions are those that the compiler of a model named."""
    typed = [f"{name}{report.signatures[name]}" for name in report.functions if name in report.signatures]
    others = [name for name in report.functions if name not in report.signatures]
    functions = [*typed, *(counted(others) if kernels and not everything else others)]
    yield "functions", listed(functions, everything) or "none"
    if report.entry:
        yield "entry", "yes: calling the module calls it"
    if report.globals:
        yield "registers", listed([f"{name}{text}" for name, text in report.globals.items()], everything)
    yield "file", f"{report.path} ({format_size(report.nbytes)}), {report.machine}, {report.kind}"
    yield "calls", f"{report.abi} ABI ({report.origin})"
    if report.documented:
        yield "with types", f"{listed(report.documented, everything)}\n{TYPES_AT_RUN_TIME}"
    if any(dependency.name == "libtvm_ffi.so" for dependency in report.needed):
        yield "runtime", REGISTERED_ELSEWHERE
    system = [dependency.name for dependency in report.needed if is_system(dependency)]
    for number, dependency in enumerate(each for each in report.needed if everything or each.name not in system):
        yield "needs" if number == 0 else "", f"{dependency.name}{dependency.path and f' ({dependency.path})'}"
    if everything:
        if report.contexts:
            yield "filled in", "\n".join(report.contexts)
        if report.runtime_imports:
            yield "calls back", "\n".join(report.runtime_imports)
        yield "and", f"{report.other_imports} symbols of other libraries"
    elif system:
        yield "system", ", ".join(system)


def is_system(dependency: Dependency) -> bool:
    """Tell whether a library is found, and is one of the compiler's or of the C library."""
    return bool(dependency.path) and dependency.of_system


def module_tree(report: LibraryReport, place: int, shown: set[int], depth: int = 0) -> Tree:
    """Return a module and what it imports; each module is shown once, down to ``DEPTH``."""
    from rich.text import Text
    from rich.tree import Tree

    module = report.modules[place]
    size = "" if module.nbytes is None else f" ({format_size(module.nbytes)})"
    code = f", {printable(module.kernels.format)}" if module.kernels else ""
    tree = Tree(Text(f"{printable(module.kind)}{size}{code}" if module.kind != "_lib" else "this library"))
    for kernel in module.kernels.kernels if module.kernels else ():
        text = f"{kernel.name}({', '.join(kernel.arguments)}) over {', '.join(kernel.launch)}"
        tree.add(Text(printable(text)))
    for child in module.imports:
        if child not in shown and depth < DEPTH:
            shown.add(child)
            tree.add(module_tree(report, child, shown, depth + 1))
    return tree
