# SPDX-License-Identifier: Apache-2.0
"""Models compiled for other machines, run by the core under qemu, and compared with this machine's results.

    python tests/compile/cross.py [--write] [TRIPLE ...]

For each machine, the core and a small program (``run_raw.cc``) are built with zig; models are compiled with
``target=TRIPLE`` and run under qemu's user emulation with Debian's C library of that machine (``apt-get install
qemu-user-static libc6-arm64-cross libc6-armhf-cross libc6-riscv64-cross``). ``--write`` keeps what was found in
``cross_results.json`` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from compile import light
from compile.reference import largest_error, outputs
from compile.test_quantized import Integers

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"
RESULTS = Path(__file__).with_name("cross_results.json")
TOLERANCE = 1e-4
FOLDERS = ("runtime", "loader", "classic", "rpc", "graph")
# By triple: qemu's name of the machine, its C library, and zig's name with the oldest glibc that it is linked for.
MACHINES = {
    "aarch64-linux-gnu": ("aarch64", "/usr/aarch64-linux-gnu", "aarch64-linux-gnu.2.17"),
    "riscv64-linux-gnu": ("riscv64", "/usr/riscv64-linux-gnu", "riscv64-linux-gnu.2.30"),
    "armv7l-linux-gnueabihf": ("arm", "/usr/arm-linux-gnueabihf", "arm-linux-gnueabihf.2.17"),
}


def build(triple: str) -> Path:
    """Return a program for a machine that runs a bundle, beside its core; both are built when a source is newer."""
    place = ROOT / "build" / "cross" / triple
    place.mkdir(parents=True, exist_ok=True)
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", MACHINES[triple][2], "-std=c++17",
                "-fno-sanitize=undefined", f"-I{CORE / 'include'}"]  # fmt: skip
    own = ["-Os", "-DNDEBUG", "-fPIC", "-DPORTCALL_BUILDING", '-DPORTCALL_VERSION="cross"', f"-I{CORE}"]
    sources = [path for folder in FOLDERS for path in sorted((CORE / folder).glob("*.cc"))]
    objects = [place / f"{path.parent.name}-{path.stem}.o" for path in sources]
    core, program = place / "libportcall.so", place / "run_raw"

    def compile_one(source: Path, made: Path) -> None:
        subprocess.run([*compiler, *own, "-c", str(source), "-o", str(made)], check=True)

    newest = max(path.stat().st_mtime for path in (*CORE.rglob("*.h"), *sources))
    if not core.is_file() or core.stat().st_mtime < newest:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, sources, objects))
        script = f"-Wl,--version-script={CORE / 'exports.map'}"
        words = ["-shared", "-Wl,-Bsymbolic", script, "-s", "-lpthread", "-ldl", "-o", str(core)]
        subprocess.run([*compiler, *map(str, objects), *words], check=True)
    source = Path(__file__).with_name("run_raw.cc")
    if not program.is_file() or program.stat().st_mtime < max(newest, source.stat().st_mtime):
        words = ["-O2", str(source), str(core), f"-Wl,-rpath,{place}", "-o", str(program)]
        subprocess.run([*compiler, *words], check=True)
    return program


def run_there(program: Path, triple: str, bundle: Path, feeds: Mapping[str, Any], like: Sequence[Any]) -> list[Any]:
    """Run a bundle under qemu and return its results, of the types and shapes of ``like``."""
    machine, libraries, _ = MACHINES[triple]
    with tempfile.TemporaryDirectory() as folder:
        for name, array in feeds.items():
            array.tofile(Path(folder, f"{name}.in"))
        command = [f"qemu-{machine}-static", "-L", libraries, str(program), str(bundle), folder, *feeds]
        subprocess.run(command, check=True, timeout=1200)
        return [
            np.fromfile(Path(folder, f"{number}.out"), array.dtype).reshape(array.shape)
            for number, array in enumerate(like)
        ]


def models() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return models with inputs: one with a convolution of every kind, and one of bytes."""
    squeezenet = light.load("squeezenet")
    integers = Integers(5)
    for _ in range(8):
        integers.add_convolution()
    integers.add("MatMul", [9, 64], [64, 48])
    return {
        "squeezenet": (squeezenet, light.inputs(squeezenet)),
        "products of integers": (integers.model(integers.nodes), integers.inputs),
    }


def compare(triple: str) -> dict[str, float]:
    """Return, for each model, the largest difference from this machine's results, relative to the largest value."""
    import portcall

    program = build(triple)
    found = {}
    for name, (model, feeds) in models().items():
        expected = outputs(portcall.compile.onnx(model, check=False, runtime="graph"), feeds)
        with tempfile.TemporaryDirectory() as folder:
            bundle = portcall.compile.onnx(model, triple, runtime="graph").save(Path(folder, "m.so"))
            results = run_there(program, triple, bundle, feeds, expected)
        found[name] = max(largest_error(got, right) for got, right in zip(results, expected, strict=True))
        print(f"{triple}: {name}: {found[name]:.2g}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("triples", nargs="*", default=[*MACHINES], metavar="TRIPLE")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    results = {triple: compare(triple) for triple in given.triples}
    if given.write:
        known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps({**known, **results}, indent=2) + "\n")
    if any(not error <= TOLERANCE for errors in results.values() for error in errors.values()):
        sys.exit("results differ")


if __name__ == "__main__":
    main()
