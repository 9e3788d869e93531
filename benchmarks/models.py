# SPDX-License-Identifier: Apache-2.0
"""Compiled models beside onnxruntime: time of a run, start, memory, size, time to compile, rounding.

    python benchmarks/models.py [--threads N] [--target native:haswell] [--seconds S] [MODEL...]

Models are the light ones of the onnx package, with random weights, and an encoder of a transformer. Each side has a
process of its own (``model_side.py``), since two pools of threads in one would fight for the cores; they run in turns,
one block of runs each. The figure for a side is its shortest run, which other work on the machine disturbs least. A
ratio is one of shortest runs; its interval goes from the smallest to the largest such ratio among the parts of the
measurement. Start is the time to open the file, create what runs, and run it once; memory is the peak from there on.
Compile is processor time, from the file to the bundle.

With the target of a processor without AVX-512, onnxruntime does without it, too: in a copy of its library.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

from compile import encoder, light

SIDE = Path(__file__).with_name("model_side.py")
BLOCK_MS = 30.0  # of one side at a time
FEWEST, MOST = 2, 50  # runs in a block
PARTS = 5  # of a measurement, for the interval
PAUSE_SECONDS = 0.02  # in which the threads of the side before fall asleep
STARTS = 3
ENCODER = "encoder"
WAYS = {"direct": "off", "Winograd": "auto"}
PEER = "onnxruntime"
RUNS = ("model", "direct", "Winograd", PEER, "direct / ort", "Winograd / ort", "error")
SIZES = ("model", "start", PEER, "start / ort", "memory", "weights + activations", PEER, "file", "compile (elapsed)")
# How onnxruntime looks for AVX-512: bit 16 of what CPUID says (test r32, 0x10000), then whether the system saves its
# registers (test al, 0xe0).
AVX512_CHECK = re.compile(rb"(\xf7[\xc0-\xc7])\x00\x00\x01\x00(?=.{0,16}?\xa8\xe0)", re.DOTALL)
Facts = dict[str, Any]


def peer_without_avx512(folder: Path) -> Path:
    """Return a folder with a copy of onnxruntime, which has no switch for this, whose check for AVX-512 says no."""
    spec = importlib.util.find_spec(PEER)
    assert spec is not None, "the environment of benchmarks has onnxruntime"
    shutil.copytree(Path(str(spec.origin)).parent, folder / PEER)
    count = 0
    for library in (folder / PEER / "capi").glob("*.so*"):
        patched, places = AVX512_CHECK.subn(rb"\1\0\0\0\0", library.read_bytes())
        count += places
        library.write_bytes(patched)
    if not count:
        raise SystemExit("this release of onnxruntime looks for AVX-512 in another way: AVX512_CHECK is out of date")
    return folder


class Side:
    """A process that has a model open; ``packages`` is a folder of packages that it prefers."""

    def __init__(self, kind: str, file: Path, folder: Path, threads: int, packages: Path | None = None) -> None:
        words = [sys.executable, SIDE, kind, file, folder, threads]
        self.result = folder / f"{kind}.npz"
        self.process = subprocess.Popen(
            [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ if packages is None else {**os.environ, "PYTHONPATH": str(packages)},
        )  # fmt: skip
        self.facts: Facts = self._answer()

    def block(self, runs: int) -> list[float]:
        """Return milliseconds of each run."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{runs}\n")
        self.process.stdin.flush()
        found: list[float] = self._answer()
        return found

    def results(self) -> list[Any]:
        """Return those of the first run, which is over once a block was run."""
        with np.load(self.result) as found:
            return [found[name] for name in found]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)


def model_file(name: str, folder: Path) -> Path:
    """Write a model and its inputs, in a process of its own, whose memory is then free again."""
    child = os.fork()
    if not child:
        model = encoder.build(128, 256, 4, 4) if name == ENCODER else light.load(name)
        np.savez(folder / "inputs.npz", **light.inputs(model))
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"the model {name} cannot be made")
    return folder / "model.onnx"


@contextlib.contextmanager
def opened(name: str, options: argparse.Namespace) -> Iterator[tuple[dict[str, Side], dict[str, Facts]]]:
    """Compile a model and open it on all sides; yield these and what is known of them."""
    with tempfile.TemporaryDirectory(dir=options.folder) as made, contextlib.ExitStack() as stack:
        folder = Path(made).resolve()
        model = model_file(name, folder)
        files, facts = {PEER: ("onnxruntime", model)}, {PEER: Facts()}
        for way, winograd in WAYS.items():
            bundle = folder / f"{way}.so"
            words = {"target": options.target, "threads": options.threads, "winograd": winograd}
            command = [sys.executable, str(SIDE), "compile", str(model), str(bundle), json.dumps(words)]
            facts[way] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            files[way] = ("portcall", bundle)
        sides: dict[str, Side] = {}
        for way, (kind, file) in files.items():
            place = folder / way  # of its own: two sides are of one kind
            place.mkdir()
            (place / "inputs.npz").symlink_to(folder / "inputs.npz")
            for number in range(STARTS):
                side = Side(kind, file, place, options.threads, options.packages if kind == PEER else None)
                facts[way]["start"] = min(side.facts["start"], facts[way].get("start", float("inf")))
                if number < STARTS - 1:
                    side.close()
            facts[way].update(memory=side.facts["memory"], needed=side.facts["needed"])
            stack.callback(side.close)
            sides[way] = side
        for side in sides.values():
            side.block(1)  # its result is in the file by now
        expected = sides[PEER].results()[0]
        for way in WAYS:
            got = sides[way].results()[0]
            facts[way]["error"] = float(np.abs(got - expected).max() / np.abs(expected).max())
        yield sides, facts


def measure(sides: Mapping[str, Side], options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Return milliseconds of runs: of each side, for each part of the measurement."""
    runs = {}
    for way, side in sides.items():
        runs[way] = min(MOST, max(FEWEST, round(BLOCK_MS / min(side.block(FEWEST)))))
    found: dict[str, list[list[float]]] = {way: [] for way in sides}
    order = itertools.cycle([list(sides), list(sides)[::-1]])
    for _ in range(PARTS):
        part: dict[str, list[float]] = {way: [] for way in sides}
        end = time.perf_counter() + options.seconds / PARTS
        while not part[PEER] or time.perf_counter() < end:
            for way in next(order):
                time.sleep(PAUSE_SECONDS if options.threads > 1 else 0)
                part[way] += sides[way].block(runs[way])
        for way, times in part.items():
            found[way].append(times)
    return found


def shortest(parts: list[list[float]]) -> float:
    return min(map(min, parts))


def row_of_runs(name: str, times: dict[str, list[list[float]]], facts: Mapping[str, Facts]) -> list[str]:
    def ratio(way: str) -> str:
        each = [min(mine) / min(theirs) for mine, theirs in zip(times[way], times[PEER], strict=True)]
        return f"{shortest(times[way]) / shortest(times[PEER]):.2f} ({min(each):.2f} to {max(each):.2f})"

    both = {way: (shortest(parts), statistics.median(itertools.chain(*parts))) for way, parts in times.items()}
    cells = [f"{both[way][0]:.2f} / {both[way][1]:.2f}" for way in (*WAYS, PEER)]
    return [name, *cells, *map(ratio, WAYS), ", ".join(f"{facts[way]['error']:.1e}" for way in WAYS)]


def row_of_sizes(name: str, facts: Mapping[str, Facts]) -> list[str]:
    ours, theirs = facts["Winograd"], facts[PEER]
    return [
        name, f"{ours['start'] * 1e3:.1f} ms", f"{theirs['start'] * 1e3:.1f} ms",
        f"{ours['start'] / theirs['start']:.2f}", f"{ours['memory'] / 1e6:.1f} MB",
        f"{ours['memory'] / ours['needed']:.2f} x {ours['needed'] / 1e6:.1f} MB", f"{theirs['memory'] / 1e6:.1f} MB",
        f"{ours['file'] / 1e6:.1f} MB", f"{ours['processor']:.1f} s ({ours['compile']:.1f})",
    ]  # fmt: skip


def has_avx512(target: str) -> bool:
    """Tell whether kernels for a target may use AVX-512; asked in a process of its own, since TVM is large."""
    script = "import sys; from portcall.compile._target import find_target as f; print(f(sys.argv[1]).lanes)"
    done = subprocess.run([sys.executable, "-c", script, target], capture_output=True, text=True, check=True)
    return int(done.stdout) >= 16


def line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=[*light.NAMES, ENCODER])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", default="native")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each model")
    parser.add_argument("--folder", help="for models and bundles while they are measured; 3 GB for vgg19")
    options = parser.parse_args()
    print(f"shortest / median run, ms; {options.threads} thread(s), target {options.target}\n")
    print(f"{line(RUNS)}\n|{' --- |' * len(RUNS)}", flush=True)
    sizes = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.packages = None if has_avx512(options.target) else peer_without_avx512(Path(folder))
        for name in options.models:
            with opened(name, options) as (sides, facts):
                print(line(row_of_runs(name, measure(sides, options), facts)), flush=True)
                sizes.append(line(row_of_sizes(name, facts)))
    print(f"\n{line(SIZES)}\n|{' --- |' * len(SIZES)}", *sizes, sep="\n")


if __name__ == "__main__":
    main()
