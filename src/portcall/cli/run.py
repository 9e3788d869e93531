# SPDX-License-Identifier: Apache-2.0
"""``portcall run``: call one function, or run a model, once, and show, save or check what came out."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import format_duration
from portcall.cli._arguments import load_arrays
from portcall.cli._bench_trace import recording
from portcall.cli._call import (
    Call,
    Place,
    arguments_of,
    call_options,
    calling,
    find_function,
    find_machine_function,
    is_here,
    is_model,
    isolate_here,
    open_machine,
    open_place,
)
from portcall.cli._command import Command
from portcall.cli._errors import USER_ERROR, CommandError
from portcall.cli._model import Arrays, model_options, nans, open_model
from portcall.cli._onnx import compiled, fix_options, target_option
from portcall.cli._output import console, print_json, print_line, print_warning, table

if TYPE_CHECKING:
    import numpy as np

    from portcall.testing import ArrayComparison

EXAMPLES = """
portcall run kernels.so add_one --arg 'random:float32[1024]' --out 'float32[1024]'
portcall run kernels.so matmul --arg @a.npy --arg @b.npy --out 'float32[64,64]' --save out.npz
portcall run kernels.so matmul --arg @in.npz:a --arg @in.npz:b --out 'float32[64,64]' --check out.npz
portcall run kernels.so add --arg 3 --arg 4 --json
portcall run kernels.so add_one --rpc board.local:9090 --key rasp --arg 'random:float32[1024]' --out 'float32[1024]'
portcall run my.function --rpc rasp --arg 3                                 one that the server itself offers
portcall run bundle.so --fill random --rpc board.local:9090 --trace trace.json  where the time of each call goes
portcall run m.so --arg @x.npy --output y.npz                               a model of TVM's Relax VM; its function main
portcall run m.so decode --input ids=@ids.npy --input n=3 --fill random     another function, arguments by name
portcall run m.json kernels.so --params m.params --input data=@x.npy --output y.npz
portcall run resnet50.onnx --input data=@x.npy --output y.npz
portcall run bundle.so --input data=@x.npy --check y.npz --rpc board.local:9090 --key rasp
"""
# How many elements are shown of an array.
SHOWN = 4


@click.command("run", cls=Command, examples=EXAMPLES)
@call_options
@model_options
@fix_options
@target_option
@click.option("--save", "--output", type=click.Path(dir_okay=False), help="Write the outputs to a .npz file.")
@click.option("--check", type=click.Path(), help="Compare with a reference: .npz by name, or .npy for one output.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance; by default of the element type.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance; by default of the element type.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write the session's calls as a trace for "
              "ui.perfetto.dev: client, wire, server, kernel; needs --rpc or --farm.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, **given: Any) -> None:
    """Arguments (SPEC): random:TYPE[SHAPE], zeros:, ones:, range:, out:TYPE[SHAPE]; @x.npy, @data.npz:key; 3, 2.5,
    int64:3, float:3, str:hello, bool:true, none. Outputs are called out0, out1, …; a returned array is called result.

    A library with an executable of TVM's Relax VM is called like any other; its function is main, unless you name one.
    Its arguments go by position (--arg) or by name (--input NAME=SPEC, --fill). Items of a tuple are called t.0, t.1,
    …, those of a result result.0, result.1, ….

    With --rpc, a word that is no file here is a function of the server itself (portcall serve --import).

    A model is a graph (JSON) with the library of its kernels, a file that holds both, or an ONNX file, which is
    compiled into a cache first. Its inputs are NAME=SPEC: NAME=@x.npy, NAME=random, NAME=3, NAME=int64:3 and the
    like. Its outputs have names of their own.
    """
    given["named"], given["file"] = (
        given["file"],
        compiled(given["file"], given["shapes"], given["constants"], given["target"], given["inputs"]),
    )
    if given["save"]:
        check_save(given["save"])
    if given["trace"] and is_here(given):
        raise click.UsageError("--trace shows the calls of a session: it needs --rpc or --farm")
    if given["trace"]:
        check_writable(given["trace"])
    with recording(bool(given["trace"])) as calls:
        try:
            done = (run_model if is_model(given) else run_function)(ctx, given)
        except BaseException:
            if calls:  # how far it came
                with contextlib.suppress(OSError):
                    calls.save(given["trace"])
            raise
    if calls:
        calls.save(given["trace"])
    if given["save"]:
        save(done.arrays, given["save"])
    comparisons = check(done.arrays, given["check"], given["rtol"], given["atol"]) if given["check"] else []
    result = {
        **done.facts,
        "device": given["device"],
        "duration_s": done.seconds,
        "outputs": {name: summary(array) for name, array in done.arrays.items()},
        "saved": given["save"],
        "trace": given["trace"],
        "checks": [vars(comparison) for comparison in comparisons],
        **done.place.facts(),
    }
    if json_to is not None:
        print_json(result, json_to)
    else:
        show(done, given["save"], comparisons)
        if given["trace"]:
            print_line(f"trace: {given['trace']}, for ui.perfetto.dev")
        done.place.show()
    if not all(comparison.ok for comparison in comparisons):
        ctx.exit(USER_ERROR)


@dataclass(frozen=True)
class Done:
    """What was run.

    Attributes:
        text: in words, without the time.
        facts: for JSON.
        arrays: what came out.
    """

    text: str
    facts: dict[str, object]
    place: Place
    seconds: float
    arrays: Arrays


def run_function(ctx: click.Context, given: dict[str, Any]) -> Done:
    path, name = given["file"], given["second"]
    isolate_here(ctx, given, f"{name} of {path}")
    with open_place(given, path, [given["device"]]) as place:
        machine = open_machine(place, path)
        function = find_machine_function(machine, path, name) if machine else find_function(place.library, path, name)
        call = Call(path, name, arguments_of(machine, name, given, place))
        start = time.perf_counter()
        returned = calling(call, lambda: function(*call.values()))
        place.device.sync()
        seconds = time.perf_counter() - start
        arrays = collect_arrays(call, returned)
    text = f"{call} returned {described(returned)}"
    return Done(text, {**call.to_dict(), "returned": plain(returned)}, place, seconds, arrays)


def run_model(ctx: click.Context, given: dict[str, Any]) -> Done:
    with open_model(ctx, given) as model:
        start = time.perf_counter()
        model.run()
        seconds = time.perf_counter() - start
        arrays = model.outputs()
    for name, array in arrays.items():
        if nans(array):
            print_warning(
                f"the output '{name}' has {nans(array)} NaN among its {array.size} elements",
                "portcall.graph.create_debug(…).debug_get_output(node) shows where they begin",
            )
    return Done(f"{model} ran on {model.place.name}", model.to_dict(), model.place, seconds, arrays)


def described(value: Any) -> str:
    if isinstance(value, tuple) and any(hasattr(item, "numpy") for item in value):
        return f"a tuple of {len(value)} values"
    return "a tensor" if hasattr(value, "numpy") else repr(value)


def plain(value: Any) -> Any:
    """Return a result for JSON: numbers, texts, and sequences and maps of these; anything else as Python shows it."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def collect_arrays(call: Call, returned: Any) -> Arrays:
    """Return what the call produced, on the host: filled outputs by number, and a returned tensor as ``result``."""
    outputs = [argument.value for argument in call.arguments if argument.output]
    arrays = {f"out{number}": value.numpy() for number, value in enumerate(outputs)}
    arrays.update(arrays_of("result", returned))
    return arrays


def arrays_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a result, local or remote: of tuples with the index after the name, as in result.1."""
    if hasattr(value, "numpy"):
        yield name, value.numpy()
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from arrays_of(f"{name}.{place}", item)


def check_save(path: str) -> None:
    """Refuse, before anything runs, a file that outputs cannot be saved in."""
    if not path.endswith(".npz"):
        raise CommandError(f"cannot save to '{path}': the file name must end with .npz", next_step=f"--save {path}.npz")
    check_writable(path)


def check_writable(path: str) -> None:
    """Refuse, before anything runs, a file in a folder that is not there."""
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        text = f"cannot save to '{path}': there is no folder '{folder}'"
        raise CommandError(text, next_step=f"mkdir -p {shlex.quote(folder)}", kind="FileNotFoundError")


def save(arrays: Mapping[str, Any], path: str) -> None:
    import numpy as np

    if not arrays:
        raise CommandError("nothing to save: the call has no output array", next_step="add --out TYPE[SHAPE]")
    with zipfile.ZipFile(path, "w") as archive:  # numpy.savez has names of its own that no array can have
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def check(arrays: Arrays, path: str, rtol: float | None, atol: float | None) -> list[ArrayComparison]:
    """Compare each array of the reference with the output of the same name."""
    from portcall.testing import compare_arrays

    reference = read_reference(path, list(arrays))
    unknown = sorted(set(reference) - set(arrays))
    if unknown or not reference:
        names = ", ".join(arrays) or "none"
        raise CommandError(
            f"the reference '{path}' has {', '.join(unknown) or 'no array'}, the call has the outputs {names}",
            "the reference is of another call",
            "make one: the same command with --save instead of --check",
        )
    return [
        compare_arrays(name, arrays[name], typed(expected, arrays[name]), rtol, atol)
        for name, expected in reference.items()
    ]


def typed(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a reference in the output's type, where its file, as for bfloat16, only knows how wide elements are."""
    nameless = expected.dtype.kind == "V" and expected.dtype.itemsize == actual.dtype.itemsize
    return expected.view(actual.dtype) if nameless else expected


def read_reference(path: str, names: list[str]) -> Arrays:
    import numpy as np

    loaded = load_arrays(path)
    if not isinstance(loaded, np.ndarray):
        return loaded
    if len(names) != 1:
        raise CommandError(
            f"the reference '{path}' is one array, the call has {len(names)} outputs",
            next_step="give a .npz file with the names of the outputs",
        )
    return {names[0]: loaded}


def summary(array: np.ndarray[Any, Any]) -> dict[str, object]:
    """Return what describes an array: its type, shape and extremes."""
    described: dict[str, object] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind != "c":
        wide = array.astype("float64")
        described |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    return described


def show(done: Done, saved: str | None, comparisons: list[ArrayComparison]) -> None:
    print_line(f"{done.text} in {format_duration(done.seconds)}")
    if done.arrays:
        columns = ("output", "type", "min", "mean", "max", "first values")
        console().print(table(columns, list(rows(done.arrays)), right=("min", "mean", "max")))
    if saved:
        print_line(f"saved {', '.join(done.arrays)} to {saved}")
    for comparison in comparisons:
        label, colour = ("ok", "green") if comparison.ok else ("differs", "red")
        print_line(comparison.message, label, colour)


def rows(arrays: Arrays) -> Iterator[tuple[str, ...]]:
    for name, array in arrays.items():
        described = summary(array)
        figures = (f"{described[key]:.6g}" if key in described else "-" for key in ("min", "mean", "max"))
        first = " ".join(f"{value:.4g}" if array.dtype.kind in "fV" else str(value) for value in array.flat[:SHOWN])
        more = " …" if array.size > SHOWN else ""
        yield (name, f"{array.dtype}[{','.join(map(str, array.shape))}]", *figures, first + more)
