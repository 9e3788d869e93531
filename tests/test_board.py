# SPDX-License-Identifier: Apache-2.0
"""``portcall board build``: what it compiles, and what it refuses before it compiles anything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from portcall import _compilers, board
from portcall.cli import _progress, cli
from portcall.errors import CompileError
from portcall.inspect import this_machine


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """The compiler's commands, which make files without content."""
    ran: list[tuple[str, ...]] = []

    def execute(command: tuple[str, ...], action: str) -> None:
        ran.append(tuple(command))
        Path(command[-1]).touch()

    monkeypatch.setattr(_compilers, "execute", execute)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ran


def test_build_server_compiles_each_source_once(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    made = board.build_server("aarch64-linux-gnu", tmp_path / "server")
    *compiled, linked = commands
    assert made == tmp_path / "server"
    assert {Path(words[words.index("-c") + 1]).parent.name for words in compiled} == {*board.FOLDERS, "farm", "ir"}
    assert len([word for word in linked if word.endswith(".o")]) == len(compiled) == len(set(compiled))
    assert all("aarch64-linux-gnu.2.17" in words for words in commands)
    commands.clear()
    made.write_text("another program")
    again = board.build_server("aarch64-linux-gnu", tmp_path / "again")
    assert (commands, again.read_text()) == ([], "")  # it is kept
    (tmp_path / "k.o").touch()
    board.build_server("aarch64-linux-gnu", tmp_path / "server", [tmp_path / "k.o"])
    assert len(commands) == 1  # the objects are kept


def test_build_command_is_for_this_machine_and_counts_files(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts: list[tuple[int, int]] = []
    build: Any = board.build_server

    def counted(*given: Any, progress: Callable[[int, int], None], **named: Any) -> Path:
        def both(done: int, of: int) -> None:
            counts.append((done, of))
            progress(done, of)

        made: Path = build(*given, progress=both, **named)
        return made

    monkeypatch.setattr(board, "build_server", counted)
    made = CliRunner().invoke(cli, ["board", "build", "-o", str(tmp_path / "server"), "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["target"] == this_machine().target
    files = len(commands) - 1
    assert counts == [(done, files) for done in range(files + 1)]


def test_build_command_says_when_it_links(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", 0)
    made = CliRunner().invoke(cli, ["board", "build", "-o", str(tmp_path / "server")])
    compiling, linking = made.stderr.splitlines()
    assert (compiling.split()[0], linking.split()[0]) == ("compiling", "linking")
    assert len(commands) > 2


def test_build_server_with_kernels_for_musl_is_static(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    (tmp_path / "k.o").touch()
    board.build_server("arm-linux-musleabihf", tmp_path / "server", [tmp_path / "k.o"])
    assert "-static" in commands[-1]
    assert str(tmp_path / "k.o") in commands[-1]


def test_build_with_the_vm_links_its_machine_in(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    words = ["board", "build", "--target", "x86_64-linux-musl", "-o", str(tmp_path / "server")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    commands.clear()
    assert CliRunner().invoke(cli, [*words, "--with", "vm"]).exit_code == 0
    *compiled, linked = commands
    machine = {path.name for folder in ("vm", "lm") for path in (board.source_folder() / folder).glob("*.cc")}
    assert {Path(words[words.index("-c") + 1]).name for words in compiled} == machine  # the others are kept
    assert "-static" not in linked  # it loads libraries as before


def test_packed_sources_are_the_same_each_time_and_unpacked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = Path(__file__).parents[1]
    words = (sys.executable, root / "scripts" / "pack_sources.py", root / "core")
    for name in ("one", "two"):
        subprocess.run([*words, tmp_path / name, "board", "facts"], check=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    folder = board.unpacked(tmp_path / "one")
    for source in (root / "core" / "board").rglob("*.cc"):
        assert (folder / source.relative_to(root / "core")).read_bytes() == source.read_bytes()
    assert not list(folder.rglob("*.txt"))
    (folder / "board" / "mark").touch()
    assert board.unpacked(tmp_path / "two") == folder
    assert (folder / "board" / "mark").exists()
    (tmp_path / "one").write_bytes((tmp_path / "one").read_bytes()[:-1000])
    with pytest.raises(ValueError, match="one"):
        board.unpacked(tmp_path / "one")
    assert len(list((tmp_path / "cache" / "portcall" / "board").iterdir())) == 1


def test_build_server_refuses_missing_files(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.o"):
        board.build_server("aarch64-linux-gnu", tmp_path / "server", ["none.o"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        board.build_server("aarch64-linux-gnu", tmp_path / "nowhere" / "server")
    assert commands == []


def test_build_server_without_zig_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_compilers, "zig_is_installed", lambda: False)
    with pytest.raises(CompileError, match="portcall\\[zig\\]"):
        board.build_server("aarch64-linux-gnu", tmp_path / "server")


# Writes its words down, and an empty file where they say.
STAND_IN = """#!/bin/sh
[ "$2" = --version ] && { echo "a stand-in, version 1"; exit; }
echo "$@" >> "$(dirname "$0")/words"
while [ "$1" != -o ]; do shift; done
: > "$2"
"""


@pytest.fixture
def ndk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder as Android's NDK, with a compiler that compiles nothing."""
    program = tmp_path / "ndk" / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin" / "clang++"
    program.parent.mkdir(parents=True)
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "ndk"


@pytest.mark.parametrize(
    ("target", "option"),
    [
        ("aarch64-linux-android", "--target=aarch64-linux-android28"),
        ("x86_64-linux-android35", "--target=x86_64-linux-android35"),
    ],
)
def test_build_server_for_android_calls_the_compiler_of_the_ndk(
    ndk: Path, tmp_path: Path, target: str, option: str
) -> None:
    assert board.build_server(target, tmp_path / "server", ndk=ndk).is_file()
    *compiled, linked = (ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/words").read_text().splitlines()
    assert all(words.startswith(option + " ") for words in (*compiled, linked))
    assert {Path(words.split(" -c ")[1].split()[0]).parent.name for words in compiled} == {*board.FOLDERS, "farm", "ir"}
    assert {"-static-libstdc++", "-rdynamic"} <= set(linked.split())
    assert "-lpthread" not in linked.split()  # the threads are in Android's C library


def test_build_server_for_android_refuses_other_folders_and_targets(ndk: Path, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="--ndk"):
        board.build_server("aarch64-linux-android", tmp_path / "server")
    with pytest.raises(FileNotFoundError, match="NDK"):
        board.build_server("aarch64-linux-android", tmp_path / "server", ndk=tmp_path)
    with pytest.raises(ValueError, match="aarch64-linux-gnu"):
        board.build_server("aarch64-linux-gnu", tmp_path / "server", ndk=ndk)


def test_sizes_on_the_page_are_those_that_were_measured() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "board.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    shown = {name.strip(" `"): sizes for row in rows for name in row[1].split(",") for sizes in row[3:4]}
    for form, facts in json.loads((root / "tests" / "rpc" / "cross_board.json").read_text()).items():
        target, _, static = form.partition(", ")
        assert f"{static} {facts['nbytes'] / 1e6:.2f}".strip() in shown[target], form
