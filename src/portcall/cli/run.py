# SPDX-License-Identifier: Apache-2.0
"""``portcall run``: call one function once and show, save or check what it did."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import format_duration
from portcall.cli._arguments import make_arguments
from portcall.cli._call import Call, call_options, find_function, guarded, open_place
from portcall.cli._command import Command
from portcall.cli._errors import USER_ERROR, CommandError
from portcall.cli._output import console, print_json, print_line, table

if TYPE_CHECKING:
    import numpy as np

    from portcall.testing import ArrayComparison

EXAMPLES = """
portcall run kernels.so add_one --arg random:float32[1024] --out float32[1024]
portcall run kernels.so matmul --arg @a.npy --arg @b.npy --out float32[64,64] --save out.npz
portcall run kernels.so matmul --arg @in.npz:a --arg @in.npz:b --out float32[64,64] --check out.npz
portcall run kernels.so add --arg 3 --arg 4 --json
portcall run kernels.so add_one --rpc board.local:9090 --key rasp --arg random:float32[1024] --out float32[1024]
"""
Arrays = dict[str, "np.ndarray[Any, Any]"]
# How many elements are shown of an array.
SHOWN = 4


@click.command("run", cls=Command, examples=EXAMPLES)
@call_options
@click.option("--save", type=click.Path(dir_okay=False), help="Write the outputs to a .npz file.")
@click.option("--check", type=click.Path(), help="Compare with a reference: .npz by name, or .npy for one output.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance; by default of the element type.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance; by default of the element type.")
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, **given: Any) -> None:
    """Arguments (SPEC): random:TYPE[SHAPE], zeros:, ones:, range:, out:TYPE[SHAPE]; @x.npy, @data.npz:key; 3, 2.5,
    float:3, str:hello, bool:true, none. Outputs are called out0, out1, …; a returned array is called result.
    """
    with open_place(ctx, given) as place:
        function = find_function(place.library, given["library"], given["function"])
        arguments = make_arguments(given["args"], given["outs"], given["seed"], place.make_tensor)
        call = Call(given["library"], given["function"], tuple(arguments))
        start = time.perf_counter()
        returned = guarded(call, lambda: function(*call.values()))
        place.device.sync()
        seconds = time.perf_counter() - start
        arrays = collect_arrays(call, returned)
    if given["save"]:
        save(arrays, given["save"])
    comparisons = check(arrays, given["check"], given["rtol"], given["atol"]) if given["check"] else []
    result = {
        **call.to_dict(),
        "device": given["device"],
        "duration_s": seconds,
        "returned": returned if isinstance(returned, (bool, int, float, str, type(None))) else repr(returned),
        "outputs": {name: summary(array) for name, array in arrays.items()},
        "saved": given["save"],
        "checks": [vars(comparison) for comparison in comparisons],
        **place.facts(),
    }
    if json_to is not None:
        print_json(result, json_to)
    else:
        show(call, returned, seconds, arrays, given["save"], comparisons)
        place.show()
    if not all(comparison.ok for comparison in comparisons):
        ctx.exit(USER_ERROR)


def collect_arrays(call: Call, returned: Any) -> Arrays:
    """Return what the call produced, on the host: filled outputs by number, and a returned tensor as ``result``."""
    outputs = [argument.value for argument in call.arguments if argument.output]
    arrays = {f"out{number}": value.numpy() for number, value in enumerate(outputs)}
    if hasattr(returned, "numpy"):  # a tensor, here or over there
        arrays["result"] = returned.numpy()
    return arrays


def save(arrays: Mapping[str, Any], path: str) -> None:
    import numpy as np

    if not arrays:
        raise CommandError("nothing to save: the call has no output array", next_step="add --out TYPE[SHAPE]")
    if not path.endswith(".npz"):
        raise CommandError(f"cannot save to '{path}': the name must end with .npz", next_step=f"--save {path}.npz")
    np.savez(path, **arrays)


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
            "make one: the same command with --save in the place of --check",
        )
    return [compare_arrays(name, arrays[name], expected, rtol, atol) for name, expected in reference.items()]


def read_reference(path: str, names: list[str]) -> Arrays:
    import numpy as np

    with open(path, "rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            return {name: np.asarray(loaded[name]) for name in loaded}
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


def show(
    call: Call, returned: Any, seconds: float, arrays: Arrays, saved: str | None, comparisons: list[ArrayComparison]
) -> None:
    text = "a tensor" if "result" in arrays else repr(returned)
    print_line(f"{call} returned {text} in {format_duration(seconds)}")
    if arrays:
        columns = ("output", "type", "min", "mean", "max", "first values")
        console().print(table(columns, list(rows(arrays)), right=("min", "mean", "max")))
    if saved:
        print_line(f"saved {', '.join(arrays)} to {saved}")
    for comparison in comparisons:
        label, colour = ("ok", "green") if comparison.ok else ("differs", "red")
        print_line(comparison.message, label, colour)


def rows(arrays: Arrays) -> Iterator[tuple[str, ...]]:
    for name, array in arrays.items():
        described = summary(array)
        figures = (f"{described[key]:.6g}" if key in described else "-" for key in ("min", "mean", "max"))
        first = " ".join(f"{value:.6g}" if array.dtype.kind in "fV" else str(value) for value in array.flat[:SHOWN])
        more = " …" if array.size > SHOWN else ""
        yield (name, f"{array.dtype}{list(array.shape)}", *figures, first + more)
