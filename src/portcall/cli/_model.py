# SPDX-License-Identifier: Apache-2.0
"""Models on the command line: a graph with its kernels and parameters, opened, given inputs, and run.

``_inputs`` says what an input may be.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import warnings
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portcall.cli._arguments import FILLS, element_type, make_array
from portcall.cli._call import Place, isolate_here, open_place
from portcall.cli._command import Decorated, with_options
from portcall.cli._errors import CommandError
from portcall.cli._graph_report import NO_PARAMS, explained_graph_errors
from portcall.cli._inputs import FORMS, read_input, split_inputs, transposing
from portcall.cli._output import print_warning
from portcall.cli._progress import StatusLine
from portcall.errors import ArgumentError, GraphError, RemoteError, RPCError

if TYPE_CHECKING:
    import numpy as np

    from portcall.graph import Graph, GraphModule, ParamFile, Value

_UNSET = 0  # in what get_input_states returns
_FEW = 4
DO_NOT_FIT = "a kernel and the graph do not fit"
Arrays = dict[str, "np.ndarray[Any, Any]"]


def model_options(function: Decorated) -> Decorated:
    """Add the options that give a model its inputs and parameters."""
    options = [
        click.option("--params", type=click.Path(), metavar="FILE", help="The parameters of a model."),
        click.option("--input", "inputs", multiple=True, metavar="NAME=SPEC", help=f"An input of a model: {FORMS}."),
        click.option("--fill", type=click.Choice(FILLS), help="Value of all other inputs and parameters of a model."),
        click.option("--allow-nan", is_flag=True, help="Accept inputs of a model with NaN in them."),
    ]
    return with_options(function, options)


@dataclass(frozen=True)
class Input:
    """An array, and what was written for it."""

    spec: str
    array: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Model:
    """A model that can be run: its inputs are set.

    Attributes:
        files: what was given for ``graph`` (or ``bundle``), ``library`` and ``params``; before them an ONNX file,
            ``model``, that ``bundle`` was compiled from.
        inputs: those that were given, or filled.
    """

    executor: GraphModule
    place: Place
    files: Mapping[str, str | None]
    inputs: Mapping[str, Input]

    @property
    def name(self) -> str:
        return str(next(iter(self.files.values())))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={each.spec}' for name, each in self.inputs.items())})"

    def to_dict(self) -> dict[str, object]:
        return {**self.files, "inputs": {name: each.spec for name, each in self.inputs.items()}}

    def run(self) -> None:
        self.executor.run()
        for device in self.place.devices:
            device.sync()

    def outputs(self) -> Arrays:
        return {name: self.executor.get_output(name).numpy() for name in self.executor.get_output_info()[0]}


@contextlib.contextmanager
def open_model(ctx: click.Context, given: dict[str, Any]) -> Iterator[Model]:
    """Open the model that is named, with its inputs and parameters set, here in a separate process or on a server.

    What can be found out here is refused before anything is sent.
    """
    isolate_here(ctx, given, f"the model {given['named']}")
    from portcall import graph

    path, kernels, named = given["file"], given["second"], given["named"]
    files = {"graph": path, "library": kernels} if kernels else {"bundle": path}
    if named != path:
        files = {"model": named, **files}
    with explain_failures(named), warnings_as_messages(named):
        with explained_graph_errors(cause=NO_PARAMS):
            params = graph.load_params_from_file(given["params"]) if given["params"] else None
        with explained_graph_errors(f"{named}: "):
            known, maker, filled = read_model(given)
        inputs = read_inputs(known, given, filled if params is None else {*filled, *params.infos})
        with open_place(given, kernels or path, given["device"].split(",")) as place:
            if kernels:
                executor = graph.create(known, place.library, list(place.devices))
            else:
                executor = graph.GraphModule(place.library[maker](*place.devices))
            if params is not None:
                load_params(executor, params, place.status)
            executor.set_input({name: each.array for name, each in inputs.items()})
            inputs.update(fill(executor, given))
            yield Model(executor, place, {**files, "params": given["params"]}, inputs)


def read_model(given: dict[str, Any]) -> tuple[Graph, str, set[str]]:
    """Return the graph; the function that makes executors, where its library has it; the parameters in its file."""
    from portcall import graph

    path = given["file"]
    if given["second"]:
        return graph.Graph.from_json(Path(path).read_bytes()), "", set()
    carried = graph.read_bundle(path) if graph.file_kind(path) == "bundle" else graph.read_embedded(path)
    assert carried is not None, "is_model has seen a graph"
    return carried.graph, carried.name, set(carried.params)


# ---- Inputs ----------------------------------------------------------------------------------------------------------


def ports(model: Graph) -> dict[str, Value]:
    """Return the inputs and parameters of a graph by name."""
    return {model.nodes[number].name: model.values[model.nodes[number].outputs[0]] for number in model.inputs}


def read_inputs(model: Graph, given: dict[str, Any], filled: Container[str]) -> dict[str, Input]:
    """Return the inputs that are given, of the graph's shapes and types.

    Parameters:
        filled: parameters, which an error does not propose.

    Raises:
        CommandError: a name, a word, a type or a shape is wrong, or there are NaN; the text names the input.
        OSError: a file cannot be read.
    """
    import numpy as np

    known = ports(model)
    generator = np.random.default_rng(given["seed"])
    inputs = {}
    for name, spec in split_inputs(given["inputs"], list(known)):
        value = known.get(name)
        if value is None:
            raise no_input(name, [each for each in known if each not in filled], given["named"])
        inputs[name] = Input(spec, read_input(name, spec, str(value.dtype), value.shape, generator))
        check_fits(name, inputs[name], value)
        check_finite(name, inputs[name], given["allow_nan"])
    return inputs


def no_input(name: str, names: list[str], path: str) -> CommandError:
    near = difflib.get_close_matches(name, names, n=3)
    cause = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(names[:_FEW]) or 'none'}"
    more = ", …" if not near and len(names) > _FEW else ""
    return CommandError(
        f"the model has no input '{name}'", cause + more, f"portcall inspect {path} lists them", kind="GraphError"
    )


def check_fits(name: str, given: Input, value: Value) -> None:
    spec, array = given.spec, given.array
    wanted = element_type(str(value.dtype))
    if array.dtype != wanted:
        file = spec.removeprefix("@").partition(".npz:")
        kind = spec.partition(":")[0]
        next_step = f"--input {name}={kind if kind in FILLS else 'random'}"
        if os.path.exists(file[0]) and not file[1]:
            next_step = (
                f"python -c \"import numpy as np; np.save('{file[0]}', np.load('{file[0]}').astype('{wanted}'))\""
            )
        raise CommandError(f"the input '{name}' is of {wanted}, got {array.dtype}", "", next_step, kind="ArgumentError")
    if array.shape != value.shape:
        moved = transposing(array.shape, value.shape)
        raise CommandError(
            f"the input '{name}' has shape {list(value.shape)}, got {list(array.shape)}",
            "its axes are in another order" if moved else "the array is for another input, or another model",
            f"give {moved}" if moved else f"give one of that shape, or --input {name}=random",
            kind="GraphError",
        )


def check_finite(name: str, given: Input, allowed: bool) -> None:
    count = nans(given.array)
    if count and not allowed:
        raise CommandError(
            f"the input '{name}' ({given.spec}) has {count} NaN among its {given.array.size} elements",
            "the program that made it has a bug",
            "--allow-nan to accept it",
            kind="ValueError",
        )


def nans(array: np.ndarray[Any, Any]) -> int:
    """Return how many elements are NaN."""
    import numpy as np

    if array.dtype.kind in "biu":
        return 0
    return int(np.isnan(array if array.dtype.kind in "fc" else array.astype("float32")).sum())


def fill(executor: GraphModule, given: dict[str, Any]) -> dict[str, Input]:
    """Set what was not given, by ``--fill``, and return it. Without ``--fill``, a missing input is an error."""
    import numpy as np

    model = executor.plan.graph
    states = executor["get_input_states"]()
    unset = {name for (name, _), state in zip(ports(model).items(), states, strict=True) if state == _UNSET}
    if given["fill"]:
        generator = np.random.default_rng((given["seed"], 1))  # other numbers than those of --input
        made = {
            name: Input(given["fill"], make_array(given["fill"], str(value.dtype), value.shape, generator))
            for name, value in ports(model).items()
            if name in unset
        }
        executor.set_input({name: each.array for name, each in made.items()})
        return made
    read = {entry for node in model.nodes for entry in node.inputs} | set(model.outputs)
    needed = [model.nodes[n] for n in model.inputs if model.nodes[n].outputs[0] in read]
    missing = [f"'{node.name}' {model.values[node.outputs[0]]}" for node in needed if node.name in unset]
    if missing:
        names = ", ".join(missing[:_FEW]) + (f" and {len(missing) - _FEW} more" if len(missing) > _FEW else "")
        first = next(node.name for node in needed if node.name in unset)
        raise CommandError(
            f"nothing is given for {names}",
            "an input is missing, or the file of the parameters",
            f"--input {first}=@{first}.npy, --params FILE, or --fill random for all that is missing",
            kind="GraphError",
        )
    return {}


# ---- Parameters ------------------------------------------------------------------------------------------------------


def load_params(executor: GraphModule, params: ParamFile, status: StatusLine) -> None:
    """Set the parameters of a file; a bar on a terminal shows how far they are."""
    total = sum(info.nbytes for info in params.infos.values())
    with status.transfer("parameters", total, in_pieces=True) as advance:
        executor.load_params(params, progress=advance)


# ---- Errors ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def explain_failures(path: str) -> Iterator[None]:
    """Say of errors of graphs and their kernels what they are, and what to do."""
    inspect = f"portcall inspect {path}"
    try:
        yield
    except GraphError as error:
        raise CommandError(str(error), "", inspect, kind="GraphError") from error
    except ArgumentError as error:
        raise CommandError(str(error), DO_NOT_FIT, inspect, kind="ArgumentError") from error
    except RemoteError as error:
        text = f"{path} failed on {error.peer}: {error}"
        raise CommandError(text, cause_of(error.kind), inspect, kind=error.kind or "RemoteError") from error
    except (RPCError, CommandError, click.ClickException, OSError, MemoryError):
        raise
    except Exception as error:
        text = f"{path} failed: {type(error).__name__}: {error}"
        raise CommandError(text, cause_of(type(error).__name__), inspect, kind=type(error).__name__) from error


def cause_of(kind: str) -> str:
    """Return the likely cause of what a kernel raised, where the class tells."""
    return DO_NOT_FIT if kind in ("ArgumentError", "TypeError") else ""


@contextlib.contextmanager
def warnings_as_messages(path: str) -> Iterator[None]:
    """Print warnings about a model as this program does."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print_warning(str(warning.message), f"portcall inspect {path} shows the graph")
