# SPDX-License-Identifier: Apache-2.0
"""docs/command-line.md is true: its lines run, its exit codes and fields are those of the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from portcall import graph, rpc
from portcall.cli import COMMANDS, _errors

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
ADD_ONE = ("add_one", "--arg", "ones:float32[8]", "--out", "float32[8]")
InvokeJson = Callable[..., dict[str, Any]]


def table(heading: str) -> dict[str, str]:
    """Return the first two columns of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    return dict(rows[2:] if rows[1][0] == "---" else rows[1:])


def test_command_line_page_first_lines_run(tmp_path: Path) -> None:
    lines = re.findall(r"^    portcall (.*)$", PAGE.partition("\n## ")[0], re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        done = subprocess.run(
            f"{sys.executable} -m portcall {line}",
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "times.json").read_text())["schema"] == 1


def test_command_line_page_lists_the_exit_codes() -> None:
    codes = {value for name, value in vars(_errors).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in table("Exit codes")} == codes


@pytest.mark.usefixtures("opencl_plugin")  # of doctor
@pytest.mark.parametrize(("row", "words"), [
    ("`run`, a function", ("run", "KERNELS", *ADD_ONE)),
    ("`bench`, a function", ("bench", "KERNELS", *ADD_ONE)),
    ("`inspect`, a library", ("inspect", "KERNELS")),
    ("`bundle`", ("bundle", "GRAPH", "KERNELS", "-o", "BUNDLE")),
    ("`doctor`", ("doctor",)),
    ("`doctor`, a server", ("doctor", "SERVER")),
    ("`version`", ("version",)),
])  # fmt: skip
def test_command_line_page_lists_the_json_fields(
    invoke_json: InvokeJson, kernels: str, tmp_path: Path, row: str, words: tuple[str, ...]
) -> None:
    builder = graph.GraphBuilder()
    builder.output(builder.call("add_one", [builder.input("x", (8,))], (8,)))
    (tmp_path / "m.json").write_text(builder.to_json())
    with rpc.Server() as server:
        real = {
            "KERNELS": kernels, "SERVER": server.address,
            "GRAPH": str(tmp_path / "m.json"), "BUNDLE": str(tmp_path / "m.so"),
        }  # fmt: skip
        answer = invoke_json(*(real.get(word, word) for word in words))
    assert list(answer) == re.findall(r"`(\w+)`", table("JSON")[row])


def test_command_line_page_shows_the_ready_message_of_serve() -> None:
    words = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--silent", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        server.terminate()
        assert server.wait(60) == 0
    assert list(facts) == re.findall(r"`(\w+)`", table("JSON")["`serve`, when it is ready"])


def test_command_line_page_names_existing_options_only(invoke: Callable[..., Result]) -> None:
    options = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", PAGE))
    known = set(re.findall(r"--[a-z-]+", " ".join(invoke(name, "--help").output for name in COMMANDS)))
    known |= {"--token"}  # of remote show
    assert options <= known
