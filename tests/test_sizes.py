# SPDX-License-Identifier: Apache-2.0
"""A size budget for each folder. A change that needs more raises the number here, and says why in its commit."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".c", ".py", ".pyx", ".pxi", ".pyi", ".cc", ".h", ".ts"}

# Lines, comments included. A folder stands for all below it, without those that have a budget themselves.
BUDGET = {
    "core/bytes": 223,  # messages came from core/graph, for core/vm too; the machine, for loader, board and web
    "core/board": 3_800,  # a whole server: sockets, processes, log; a farm
    "core/classic": 1_150,
    "core/devices": 2_420,  # OpenCL with images, CUDA, binaries on disk
    "core/graph": 2_220,
    "core/include/portcall": 4_930,  # with sessions for programs in C++, SHA-256 for their tokens, and callbacks
    "core/ir": 3_900,  # with copies that share what they copied before, and whole paths
    "core/loader": 1_870,  # files of its own in memory
    "core/rpc": 6_520,  # with posted requests, callbacks, signs of life, bytes received in place
    "core/runtime": 4_360,  # with events of devices, which sessions have, too; bytes that are filled afterwards
    "core/session": 2_620,  # inside of a session: files, contents, libraries' needs, graphs, objects, names
    "core/vm": 2_850,
    "core/web": 570,  # with sessions served from an event loop, and devices of JavaScript
    "js/addon": 2_000,  # a binding in C; a header for each file
    "js/src": 7_990,  # sessions by the core itself, objects by value, described types, checks of arguments
    "js/src/native": 300,
    "src/portcall": 3_890,  # with events of devices, boards with Android or the VM, flags, what an installation lacks
    "src/portcall/_core": 3_250,
    "src/portcall/bench": 350,
    "src/portcall/cli": 6_500,  # with what a farm says at its start, and one language for inputs
    "src/portcall/compile": 11_800,  # recurrent layers, classical models, each convolution, dynamic shapes
    "src/portcall/farm": 7_500,  # turns that are whole, keys of tokens, proofs, the page, ends of pairs and codes
    "src/portcall/graph": 4_850,
    "src/portcall/inspect": 1_700,  # reads WebAssembly and kernels of devices, too
    "src/portcall/ir": 2_050,  # values without recursion, what a class does wrong
    "src/portcall/rpc": 700,  # replays and vectors
    "src/portcall/rpc/client": 3_200,
    "src/portcall/rpc/server": 5_600,
    "src/portcall/rpc/wire": 1_110,  # with zstd
    "src/portcall/vm": 800,
}

LONGEST_FILE = 700
NOT_COUNTED = {"tests", "fuzz", "node_modules"}


def folder_of(path: Path) -> str:
    """The longest folder of BUDGET that has the file; empty if none has it."""
    folders = [str(parent.relative_to(ROOT)) for parent in path.parents if parent.is_relative_to(ROOT)]
    return next((folder for folder in folders if folder in BUDGET), "")


def sources() -> list[Path]:
    tops = ("core", "src", "js/src", "js/addon")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in files if not NOT_COUNTED & set(path.parts))


def lines(path: Path) -> int:
    return path.read_text().count("\n")


@pytest.mark.parametrize("folder", BUDGET)
def test_each_folder_keeps_its_budget(folder: str) -> None:
    used = sum(lines(path) for path in sources() if folder_of(path) == folder)
    assert used <= BUDGET[folder], f"{folder} has {used} lines; its budget in tests/test_sizes.py is {BUDGET[folder]}"
    assert used > BUDGET[folder] // 2, f"{folder} has only {used} lines: lower its budget of {BUDGET[folder]}"


def test_each_source_file_has_a_budget() -> None:
    assert sorted({str(path.parent.relative_to(ROOT)) for path in sources() if not folder_of(path)}) == []


def files_of_tests() -> list[Path]:
    files = [path for top in ("core/tests", "tests", "js/test") for path in (ROOT / top).rglob("*")]
    return sorted(path for path in files if path.suffix in SUFFIXES)


@pytest.mark.parametrize("path", [*sources(), *files_of_tests()], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long(path: Path) -> None:
    assert lines(path) <= LONGEST_FILE, f"split {path.relative_to(ROOT)}: it has {lines(path)} lines"
