# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
"""What a terminal would obey does not reach it: in names, paths, needs and errors; JSON has it as JSON writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portcall import toolchain
from portcall.errors import printable
from portcall.rpc.client._errors import remote_error

EVIL = "\x1b[2J\u202e\x9b1m"  # seven letters of UTF-8 more than characters, so that a name keeps its length
HARMFUL = ("\x1b", "\u202e", "\x9b", "\udcff")
SOURCE = """
int needed_harmful_name(void);
int harmful_name_offered(void) { return needed_harmful_name(); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose names, and whose own name, drive a terminal."""
    folder = tmp_path_factory.mktemp("escapes")
    (folder / "a.c").write_text(SOURCE)
    made = toolchain.create_shared(folder / "a.c", folder / "a.so", options=["-Wl,-soname,harmful_name.so"])
    harmful = EVIL.encode().ljust(len("harmful_name"), b"_")
    assert len(harmful) == len("harmful_name")
    path = folder / os.fsdecode(b"b\xff" + EVIL.encode() + b".so")
    path.write_bytes(made.read_bytes().replace(b"harmful_name", harmful))
    return path


def shown(*words: str | Path, code: int = 0) -> str:
    """What a command writes to both streams."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:surrogateescape"}
    done = subprocess.run(
        [sys.executable, "-m", "portcall", *map(os.fspath, words)], capture_output=True, check=False, env=environment
    )
    assert done.returncode == code, done
    return (done.stdout + done.stderr).decode("utf-8", "surrogateescape")


def test_printable_keeps_lines_and_tabs() -> None:
    assert printable("plain äöü 中\n\t") == "plain äöü 中\n\t"
    assert printable("\x1b[2J\r\x07\x9b\u202e\udcff\x7f") == "\\x1b[2J\\r\\x07\\x9b\\u202e\\udcff\\x7f"


def test_remote_error_is_printable() -> None:
    assert not set(HARMFUL) & set(str(remote_error(f"ValueError: {EVIL}\udcff")))


def test_inspect_report_is_printable(library: Path) -> None:
    text = shown("inspect", library, "--all")
    assert "offered" in text
    assert "needed" in text
    assert not set(HARMFUL) & set(text)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["inspect", f"missing{EVIL}"], 1),
        (["run", f"missing{EVIL}\udcff.so", "f"], 1),
        (["inspect", "x", f"--{EVIL}"], 2),
        (["bench", f"{EVIL}", "f", "--timeout", EVIL], 2),
    ],
    ids=range(4),
)
def test_command_errors_are_printable(words: list[str], code: int) -> None:
    text = shown(*words, code=code)
    assert "\\x1b" in text
    assert not set(HARMFUL) & set(text)


def test_json_output_escapes_control_characters(library: Path) -> None:
    facts = json.loads(shown("inspect", library, "--json"))
    assert facts["path"] == str(library)
    assert any(EVIL in name for name in facts["functions"])
