# SPDX-License-Identifier: Apache-2.0
"""The node tests of onnx, each compiled and run: passed, refused, or wrong.

    python tests/compile/node_tests.py [--write] [PATTERN]

A test passes when all results are those that onnx gives. It is refused when the compiler says so (ModelError); anything
else is wrong, and a bug. ``--write`` writes the names of those that pass into the list beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import os
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

PASSES = Path(__file__).with_name("node_passes.txt")
WORDS = "FLOAT FLOAT16 DOUBLE BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64"
TYPES = {onnx.TensorProto.DataType.Value(word) for word in WORDS.split()}
# Inputs that say what an operator does, or how large its result is: they must be constant.
INPUTS = (
    "axes axis shape sizes scales pads k depth starts ends steps repeats split reps size roi target_shape new_shape "
    "padding start limit delta values frame_step frame_length image_shape block_shape num_mel_bins dft_length window "
    "sample_rate lower_edge_hertz upper_edge_hertz"
)
FIXED = frozenset(INPUTS.split())
MOST_SECONDS = 300  # for one test
PER_PROCESS = 40  # so that a crash is the end of few


@functools.cache
def cases() -> dict[str, Any]:
    """Return the tests whose types are supported, by name; onnx makes them, always the same."""
    return {case.name: case for case in collect_testcases() if case.model is not None and supported(case.model)}


def supported(model: Any) -> bool:
    kinds = [value.type for value in (*model.graph.input, *model.graph.output)]
    return all(kind.HasField("tensor_type") and kind.tensor_type.elem_type in TYPES for kind in kinds)


def array_of(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def run(name: str) -> str:
    """Return "passed", or "refused" or "wrong" with the reason."""
    import portcall
    from portcall.errors import ModelError

    case = cases()[name]
    model, (given, results) = case.model, case.data_sets[0]
    inputs = dict(zip([value.name for value in model.graph.input], map(array_of, given), strict=True))
    expected = [array_of(result) for result in results]
    fixed = {key: inputs.pop(key) for key in list(inputs) if key in FIXED}
    shapes = {key: array.shape for key, array in inputs.items()}
    try:
        executor = portcall.compile.onnx(model, shapes=shapes, constants=fixed, check=False, runtime="graph").load()
    except ModelError as error:
        return f"refused: {str(error).splitlines()[-1].strip()}"
    executor.set_input(inputs)
    executor.run()
    got = [executor.get_output(number).numpy() for number in range(len(expected))]
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"wrong: output {number} is {mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}"
        rtol, atol = (1e-2, 1e-2) if theirs.dtype == np.float16 else (1e-3, 1e-6)
        if not np.allclose(mine.astype("float64"), theirs.astype("float64"), rtol, max(atol, 1e-6), equal_nan=True):
            return (
                f"wrong: output {number} differs by {np.abs(mine.astype('float64') - theirs.astype('float64')).max()}"
            )
    return "passed"


def guarded(name: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(name)
        except Exception as error:
            return f"wrong: {type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"


def _work(chunk: list[str], pipe: Any, judge: Callable[[str], str]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for name in chunk:
        pipe.send((name, judge(name)))
    pipe.close()


def run_all(wanted: list[str], jobs: int, judge: Callable[[str], str] = guarded) -> dict[str, str]:
    """Run tests in processes of their own, some in each, several at a time."""
    import portcall.compile._compile  # noqa: F401 - so that each process has it

    chunks = [wanted[k : k + PER_PROCESS] for k in range(0, len(wanted), PER_PROCESS)]
    found: dict[str, str] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for verdicts in pool.map(functools.partial(_run_chunk, judge=judge), chunks):
            found |= verdicts
            print(f"{len(found)} of {len(wanted)}", file=sys.stderr)
    return found


def _run_chunk(names: list[str], judge: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    context = get_context("fork")
    while left := [name for name in names if name not in found]:
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(left, writer, judge))
        child.start()
        writer.close()
        with contextlib.suppress(EOFError):
            while reader.poll(MOST_SECONDS):
                name, verdict = reader.recv()
                found[name] = verdict
        child.kill()  # it has ended, or hangs
        child.join()
        missing = [name for name in left if name not in found]
        if missing:
            found[missing[0]] = f"wrong: the process ended with {child.exitcode}"
    return found


def report(found: dict[str, str]) -> None:
    """Print the tests that did not pass, by the reason."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, verdict in found.items():
        if verdict != "passed":
            reasons[verdict].append(name)
    for verdict, of in sorted(reasons.items()):
        print(f"{verdict}\n    {' '.join(of)}")
    counts = Counter(verdict.partition(":")[0] for verdict in found.values())
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"of {len(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    found = run_all(fnmatch.filter(cases(), given.pattern), given.jobs)
    report(found)
    if given.write:
        PASSES.write_text("".join(f"{name}\n" for name, verdict in found.items() if verdict == "passed"))


if __name__ == "__main__":
    main()
