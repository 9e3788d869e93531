# SPDX-License-Identifier: Apache-2.0
"""``portcall demo``: from a C++ source to checked and timed calls on NumPy arrays, in one go."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall.bench import BenchmarkResult, check_machine, format_duration
from portcall.cli._command import Command
from portcall.cli._errors import CommandError
from portcall.cli._output import console, print_json, print_line, print_warning, table
from portcall.cli._progress import StatusLine, compiling
from portcall.toolchain import create_shared, find_compiler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXAMPLES = """
portcall demo
portcall demo --rpc                 the same on a server, which is started for it
portcall demo --folder tour        writes tour/kernels.cc and tour/kernels.so
"""
SOURCE = Path(__file__).with_name("demo_kernels.cc")
ELEMENTS = 1_000_000
SIDE = 256
REPEATS = 15
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Line:
    """One line of the table: the timed call, and NumPy's time for the same result (or None)."""

    what: str
    seconds: float
    numpy_seconds: float | None
    largest_error: float | None


@click.command("demo", cls=Command, examples=EXAMPLES)
@click.option(
    "--folder", default="portcall-demo", show_default=True, type=click.Path(file_okay=False), help="Where to write."
)
@click.option("--rpc", is_flag=True, help="Also start a server, and run the kernels there.")
def command(json_to: str | None, folder: str, rpc: bool) -> None:
    """Takes a few seconds; needs a C++ compiler, or the ziglang package."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    source = place / "kernels.cc"
    if source.exists() and source.read_bytes() != SOURCE.read_bytes():
        raise CommandError(f"'{source}' is there, and is not the demo's", "", "portcall demo --folder OTHER")
    source.write_bytes(SOURCE.read_bytes())
    numpy_threads = import_numpy()
    start = time.perf_counter()
    with StatusLine() as status, status.expect(compiling([str(source)]), 0):
        library = create_shared(source, place / "kernels.so")
    compiled = time.perf_counter() - start
    kernels = portcall.load_module(str(library))
    findings = check_machine()
    lines = measure(kernels)
    refused = error_of_wrong_call(kernels)
    remote = measure_remote(library) if rpc else []
    if json_to is not None:
        report = {
            "source": str(source),
            "library": str(library),
            "compile_s": compiled,
            "rows": [asdict(line) for line in lines],
            "numpy_threads": numpy_threads,
            "warnings": [finding.to_dict() for finding in findings],
            "refused": refused,
            **({"remote": [asdict(line) for line in remote]} if rpc else {}),
        }
        print_json(report, json_to)
    else:
        shown = place / library.name
        print_line(f"compiled {source} with {find_compiler().name} in {format_duration(compiled)}: {shown}\n")
        print_table("from Python, on NumPy arrays", lines, "NumPy, 1 thread" if numpy_threads else "NumPy")
        for finding in findings:
            print_warning(finding.message, finding.advice)
        show(shown, refused, remote)


def import_numpy() -> int | None:
    """Import NumPy so that its BLAS computes in one thread, as the kernels do; return 1, or None where it was imported
    before.

    Several threads wait for each other where the cores are shared: then they take many times as long as one.
    """
    if "numpy" in sys.modules:
        return None
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        import numpy  # noqa: F401
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return 1


def measure(kernels: portcall.Module) -> list[Line]:
    """Run each kernel on NumPy arrays, check it against NumPy and time both."""
    import numpy as np

    generator = np.random.default_rng(0)
    x, a, b = aligned(ELEMENTS), aligned(SIDE, SIDE), aligned(SIDE, SIDE)
    for array in (x, a, b):
        generator.random(dtype=np.float32, out=array)
    y, c, d = aligned(ELEMENTS), aligned(SIDE, SIDE), aligned(SIDE, SIDE)
    nothing, add_one, matmul = (kernels[name] for name in ("nothing", "add_one", "matmul"))
    add_one(x, y)
    matmul(a, b, c)
    return [
        Line("a call of a C++ function", best(nothing, 1000), None, None),
        Line(
            f"add_one, {ELEMENTS:,} elements",
            best(lambda: add_one(x, y), 3),
            best(lambda: np.add(x, 1, out=y), 3),
            check_close("add_one", y, x + 1),
        ),
        Line(
            f"matmul, {SIDE} x {SIDE}",
            best(lambda: matmul(a, b, c), 3),
            best(lambda: np.matmul(a, b, out=d), 3),
            check_close("matmul", c, a @ b),
        ),
    ]


def measure_remote(library: Path) -> list[Line]:
    """Start a server, send it the library, run and check the kernels there; the same lines, timed from here."""
    import numpy as np

    from portcall import rpc

    generator = np.random.default_rng(0)
    x, a, b = (generator.random(shape, np.float32) for shape in (ELEMENTS, (SIDE, SIDE), (SIDE, SIDE)))
    c = np.zeros((SIDE, SIDE), np.float32)
    with rpc.Server() as server, rpc.connect(server.address, call_timeout=60) as session:
        session.upload(library)
        kernels = session.load_module(library.name)
        nothing, add_one, matmul = (kernels[name] for name in ("nothing", "add_one", "matmul"))
        there, result = session.tensor(x), session.empty((ELEMENTS,))
        add_one(there, result)
        y = result.numpy()
        matmul(a, b, c)  # arrays are sent, and those that are written to come back
        over_there = kernels.time_evaluator("add_one", session.cpu(), number=3, repeat=REPEATS)(there, result)
        out = np.empty_like(x)
        size = f"{x.nbytes / 1e6:.0f} MB"
        return [
            Line("a call to the server, and back", best(nothing, 100), None, None),
            Line(
                f"add_one, {ELEMENTS:,} elements, timed there", over_there.min, None, check_close("add_one", y, x + 1)
            ),
            Line(
                f"matmul, {SIDE} x {SIDE}, arrays sent",
                best(lambda: matmul(a, b, c), 3),
                None,
                check_close("matmul", c, a @ b),
            ),
            Line(f"a copy of {size} to the server", best(lambda: there.copyfrom(x), 3), None, None),
            Line(f"a copy of {size} from it", best(lambda: there.numpy(out=out), 3), None, check_close("copy", out, x)),
        ]


def aligned(*shape: int) -> NDArray[np.float32]:
    """Return a NumPy array over a tensor's memory, which is aligned to 64 bytes: compiled code needs no copy of it."""
    return portcall.empty(shape, "float32").numpy()


def best(work: Callable[[], Any], number: int) -> float:
    """Return seconds per call: the smallest of several means, called from Python as a user would."""
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(number):
            work()
        times.append((time.perf_counter() - start) / number)
    return BenchmarkResult(tuple(times)).min


def check_close(name: str, actual: Any, expected: Any) -> float:
    """Return the largest difference; raise when it is too large."""
    from portcall.testing import compare_arrays

    comparison = compare_arrays(name, actual, expected)
    if not comparison.ok or comparison.largest_error is None:
        raise CommandError(
            f"wrong result: {comparison.message}", "the compiler or portcall is broken", "portcall doctor"
        )
    return comparison.largest_error


def error_of_wrong_call(kernels: portcall.Module) -> str:
    """Return the error of the kernel's own check for a wrong argument, as Python sees it."""
    import numpy as np

    try:
        kernels["add_one"](np.zeros(3, np.float64), np.zeros(3, np.float32))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise CommandError("a wrong argument was not refused", "portcall is broken", "portcall doctor")


def show(library: Path, refused: str, remote: list[Line]) -> None:
    print_line(f"\nA wrong argument is an error, not a crash: add_one(float64 array, …) raises\n  {refused}")
    if remote:
        print_line("\nThe same library on a server, which was started for this and has ended:\n")
        print_table("from Python, over RPC", remote, "")
    name = shlex.quote(str(library))
    row, square = "--arg 'range:float32[8]' --out 'float32[8]'", f"float32[{SIDE},{SIDE}]"
    print_line("\nNow you:")
    for line in (
        f"portcall inspect {name}",
        f"portcall run {name} add_one {row}",
        f"portcall bench {name} matmul --arg 'random:{square}' --arg 'random:{square}' --out '{square}'",
        *(
            [
                "portcall serve",
                f"portcall run {name} add_one --rpc 127.0.0.1:9090 {row}",
            ]
            if remote
            else []
        ),
        f"python -c \"import portcall; print(portcall.load_module('{library}')['add_one'])\"",
    ):
        print_line(f"  {line}")


def print_table(head: str, lines: list[Line], peer: str) -> None:
    """Print a table; ``peer`` is the head of NumPy's column."""
    compared = any(line.numpy_seconds is not None for line in lines)
    rows = [
        (
            line.what,
            format_duration(line.seconds),
            *(["" if line.numpy_seconds is None else format_duration(line.numpy_seconds)] if compared else []),
            "" if line.largest_error is None else f"{line.largest_error:.2g}",
        )
        for line in lines
    ]
    columns = (head, "portcall", *([peer] if compared else []), "difference")
    console().print(table(columns, rows, right=columns[1:]))
    print_line("The results are equal to NumPy's; the largest difference of an element is shown.")
