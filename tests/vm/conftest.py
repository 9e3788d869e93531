# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import portcall
from vm.compiled import COMPILE, Compiled, compile_with, language_model, scale


@pytest.fixture(scope="session", autouse=True)
def _machines() -> None:
    """Load the library of machines, which stays."""
    portcall.get_global_func("portcall.LoadPlugin")("relax.VMExecutable")


@pytest.fixture(scope="session")
def models(cache_dir: Path) -> Compiled:
    """The models, compiled by the apache-tvm that is installed. A test that uses this is marked ``peers``."""
    return compile_with(sys.executable, cache_dir / f"relax-{digest()}")


@pytest.fixture(scope="session")
def squeezenet(cache_dir: Path) -> Compiled:
    """Squeezenet, imported from ONNX and compiled by the apache-tvm that is installed."""
    return compile_with(sys.executable, cache_dir / f"relax-squeezenet-{digest()}", "squeezenet")


@pytest.fixture(scope="session")
def compiled(cache_dir: Path) -> Path:
    """The folder of a language model, in bytecode."""
    return language_model(cache_dir, "bytecode")


def digest() -> str:
    return hashlib.sha256(COMPILE.read_bytes() + importlib.metadata.version("apache-tvm").encode()).hexdigest()[:16]


@pytest.fixture
def demo(register: Callable[[str, Callable[..., Any]], Any]) -> None:
    """The functions that the model ``user`` calls."""
    register("demo.scale", scale)
    register("demo.same", lambda value, _: value)
    register("demo.dtype", str)


@pytest.fixture(autouse=True)
def _pools_are_cleared(vm_pools: None) -> None:
    """See ``vm_pools``."""
