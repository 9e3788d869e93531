# SPDX-License-Identifier: Apache-2.0
"""``portcall bundle``: a graph, its kernels and its parameters as one file, which runs anywhere portcall does."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from portcall.bench import format_size
from portcall.cli._call import check_exists, check_output, is_library
from portcall.cli._command import Command
from portcall.cli._errors import CommandError
from portcall.cli._model import warnings_as_messages
from portcall.cli._output import print_json, print_line, print_warning
from portcall.cli._progress import StatusLine
from portcall.errors import GraphError
from portcall.inspect import inspect_library
from portcall.toolchain import WASM

EXAMPLES = """
portcall bundle m.json kernels.so --params m.params --output model.so
portcall bundle m.json conv.o dense.o --params m.params --output model.so      objects are linked first
portcall run model.so --input data=x.npy --output y.npz                        what to do with it
"""


@click.command("bundle", cls=Command, examples=EXAMPLES)
@click.argument("graph_file", type=click.Path(), metavar="GRAPH")
@click.argument("kernels", type=click.Path(), nargs=-1, required=True, metavar="KERNELS...")
@click.option("--params", type=click.Path(), metavar="FILE", help="The parameters; without them, inputs as others.")
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False), help="The file to write: model.so.")
@click.option("--target", metavar="TRIPLE", help="The machine to link for, such as aarch64-linux-gnu.")
@click.option("--name", default="default", show_default=True, help="The function that makes executors of it.")
def command(
    graph_file: str, kernels: tuple[str, ...], params: str | None, output: str, target: str | None, name: str,
    json_to: str | None,
) -> None:  # fmt: skip
    """KERNELS is a shared library, or what is linked to one: objects, archives, sources, or a .tar of those."""
    from portcall import graph

    for path in (graph_file, *kernels):
        check_exists(path)
    if os.path.isfile(graph_file) and graph.file_kind(graph_file) != "graph":
        raise click.UsageError(f"'{graph_file}' is not a graph (JSON): give the graph first, then its kernels")
    check_output(output, for_wasm=target == WASM or kernels[0].endswith(".wasm"))
    try:
        with warnings_as_messages(graph_file), StatusLine() as status, status.expect(f"linking {output}", 0):
            given = graph.load_params_from_file(params) if params else None
            lib = kernels[0] if len(kernels) == 1 else kernels
            made = graph.export_bundle(output, Path(graph_file), lib, given, name=name, target=target)
    except GraphError as error:
        text, cause = f"{graph_file}: {error}", "a file is damaged, or kernels or parameters are of another graph"
        library = kernels[:1] if is_library(kernels[0]) else ()
        next_step = shlex.join(["portcall", "inspect", graph_file, *library])
        raise CommandError(text, cause, next_step, kind="GraphError") from error
    bundle = graph.read_bundle(made)
    inputs = [bundle.graph.nodes[n].name for n in bundle.graph.inputs]
    inputs = [each for each in inputs if each not in bundle.params]
    nbytes = made.stat().st_size
    checked = graph.missing_kernels(bundle.graph, inspect_library(made)) is not None
    if json_to is not None:
        print_json({
            "bundle": output, "nbytes": nbytes, "function": name, "library_nbytes": bundle.library_nbytes,
            "parameters": len(bundle.params), "inputs": inputs, "kernels_checked": checked,
        }, json_to)  # fmt: skip
        return
    print_line(f"{output}: {format_size(nbytes)}, of which {format_size(bundle.library_nbytes)} kernels")
    print_line(f"{len(bundle.params)} parameters in it; inputs: {', '.join(inputs) or 'none'}")
    if not checked:
        print_warning("its file does not tell whether it has all kernels", "other modules or libraries may have them")
    print_line(f"next: {shlex.join(['portcall', 'run', output, *(f'--input={each}=random' for each in inputs)])}")
