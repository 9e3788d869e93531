# SPDX-License-Identifier: Apache-2.0
"""``portcall verify``: whether a compiled model says what its ONNX model says, by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from portcall.cli._call import check_whole, open_library
from portcall.cli._command import Command
from portcall.cli._errors import USER_ERROR
from portcall.cli._inputs import FORMS, read_input, split_inputs
from portcall.cli._onnx import explained, without_torch
from portcall.cli._output import console, print_json, print_line, table

if TYPE_CHECKING:
    from portcall.compile import Verification
    from portcall.graph import Graph
    from portcall.vm import VirtualMachine

Types = Mapping[str, tuple[str, Sequence[int] | None]]  # dtype and shape of inputs

EXAMPLES = """
portcall verify resnet50.so --against resnet50.onnx
portcall verify resnet50.so --against resnet50.onnx --input data=@x.npy --tolerance 1e-3
portcall verify bert.so --against bert.onnx --input ids=random:int64[1,128] --input length=3
"""


@click.command("verify", cls=Command, examples=EXAMPLES)
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False), metavar="BUNDLE")
@click.option("--against", required=True, type=click.Path(exists=True, dir_okay=False), metavar="MODEL",
              help="The ONNX model.")  # fmt: skip
@click.option("--input", "inputs", multiple=True, metavar="NAME=SPEC",
              help=f"An input, random by default: {FORMS}.")  # fmt: skip
@click.option("--tolerance", default=1e-4, show_default=True, type=click.FloatRange(min=0),
              help="How far values may differ, relative to the largest.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of random inputs.")
@click.pass_context
def command(
    ctx: click.Context, bundle: str, against: str, inputs: tuple[str, ...], tolerance: float, seed: int,
    json_to: str | None,
) -> None:  # fmt: skip
    """Runs both on the same inputs here. Where they differ it names the first node of the bundle that has other values
    than the model; portcall inspect BUNDLE lists the nodes. Of a library for the Relax VM the results are compared;
    dimensions that are not fixed have 2 elements, unless you give the inputs.
    """
    from portcall import compile, graph, vm

    check_whole(bundle)
    made = open_library(bundle)
    with explained(against), without_torch():
        nodes = vm.read_embedded(bundle) is None
        known = of_graph(graph.read_bundle(bundle).graph) if nodes else of_executable(vm.create(made))
        arrays = read_inputs(inputs, known, seed)
        found = compile.verify(bundle, against, arrays, tolerance=tolerance, seed=seed)
    if json_to is not None:
        print_json({"bundle": bundle, "against": against, **found.to_dict()}, json_to)
    else:
        show(found, bundle, nodes)
    if not found.ok:
        ctx.exit(USER_ERROR)


def of_executable(machine: VirtualMachine) -> Types:
    """Return the types and shapes of the inputs; dimensions that are not fixed have 2 elements."""
    return {
        each.name: (each.dtype, None if each.shape is None else [n if isinstance(n, int) else 2 for n in each.shape])
        for each in machine.signature().parameters
    }


def of_graph(known: Graph) -> Types:
    """Return the types and shapes of the inputs, parameters among them."""
    nodes = [known.nodes[number] for number in known.inputs]
    values = {node.name: known.values[node.outputs[0]] for node in nodes}
    return {name: (str(value.dtype), value.shape) for name, value in values.items()}


def read_inputs(texts: Sequence[str], known: Types, seed: int) -> dict[str, Any]:
    """Return the arrays that are written. Of inputs that only the model has, neither type nor shape is known."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return {
        name: read_input(name, text, *known.get(name, ("", None)), generator)
        for name, text in split_inputs(texts, list(known))
    }


def show(found: Verification, bundle: str, nodes: bool) -> None:
    rows = [(output.name, f"{output.error:.2g}", "yes" if output.ok else "NO") for output in found.outputs]
    console().print(table(("output", "largest difference", "agrees"), rows, right=("largest difference",)))
    for output in found.outputs:
        if output.shapes:
            print_line(f"the shape of '{output.name}' is {output.shapes}")
    if found.ok:
        print_line("the same as onnxruntime", "ok", "green")
    elif found.first:
        print_line(
            f"it begins in the node '{found.first}'; portcall inspect {bundle} lists the nodes", "differs", "red"
        )
    elif not nodes:
        print_line("nodes are compared of a graph alone: portcall compile --shape makes one", "differs", "red")
    else:
        print_line("every node has values of the model: the results are in another order, or rounded", "differs", "red")
