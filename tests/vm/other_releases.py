# SPDX-License-Identifier: Apache-2.0
"""Compile the models with other releases of apache-tvm, each in an environment of its own, and run them here.

PYTHONPATH=tests python tests/vm/other_releases.py RELEASE …        (or: make test-vm-releases)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import portcall
from vm.compiled import MODES, Compiled, compile_language, compile_with, same, scale
from vm.language_model import history

FOLDER = Path(__file__).parents[2] / "build" / "relax-releases"
FFI = "apache-tvm-ffi==0.1.12"  # 0.25 does not load with the newest, although its metadata allows it


def environment(release: str) -> Path:
    """Return the interpreter of an environment with that release."""
    folder = FOLDER / release
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        packages = [f"apache-tvm=={release}", "numpy", *([FFI] if release.startswith("0.25") else [])]
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
        (folder / "complete").touch()
    return python


def wrong(models: Compiled) -> list[str]:
    """Return the models whose results or listings are not those of TVM."""
    found = []
    for name in sorted(path.stem for path in models.folder.glob("*.pickle")):
        function, calls, results = models.calls(name)
        for mode in MODES:
            machine = models.machine(name, mode)
            equal = all(same(machine[function](*c), r) for c, r in zip(calls, results, strict=True))
            if not equal or machine.info.listing.strip() != models.listing(name, mode).strip():
                found.append(f"{name} {mode}")
            if machine.signature(function).parameters and not machine.signature(function).parameters[0].type:
                found.append(f"{name} {mode}: no types")
    return found


def wrong_language_models(release: str) -> list[str]:
    """Return the modes in which the language model does not answer what it answers in TVM."""
    found = []
    for mode in MODES:
        folder = compile_language(environment(release), FOLDER / f"language-{mode}-{release}", mode)
        machine = portcall.vm.create(portcall.load_module(folder / "language.so"))
        weights = portcall.vm.language(folder / "language.so", folder / "weights", tokens=64)._params
        answers = history(machine, portcall.get_global_func, portcall.Shape, portcall.tensor, weights)
        if answers != json.loads((folder / "history.json").read_text()):
            found.append(f"language model {mode}")
    return found


def main() -> int:
    portcall.register_func("demo.scale", scale)
    portcall.register_func("demo.same", lambda value, _: value)
    portcall.register_func("demo.dtype", str)
    failed = 0
    for release in sys.argv[1:]:
        models = compile_with(environment(release), FOLDER / f"models-{release}")
        bad, count = wrong(models), len(list(models.folder.glob("*.so")))
        print(f"apache-tvm {release}: {count - len(bad)} of {count} libraries give what TVM's machine gives", *bad)
        failed += len(bad)
        bad = wrong_language_models(release)
        print(f"apache-tvm {release}: {len(MODES) - len(bad)} of {len(MODES)} language models answer as in TVM", *bad)
        failed += len(bad)
    return failed


if __name__ == "__main__":
    sys.exit(main())
