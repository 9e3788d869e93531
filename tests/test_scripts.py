# SPDX-License-Identifier: Apache-2.0
"""What the Makefile calls: the counter of files that are compiled, and the writer of the manual page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from portcall.cli import COMMANDS

SCRIPTS = Path(__file__).parents[1] / "scripts"
NINJA = "for n in 1 2 3 4; do echo \"[$n/4] Building CXX object $n.o\"; done; echo 'error: in 4.cc' >&2; exit "


@pytest.mark.parametrize("code", [0, 3])
def test_count_files_shows_how_many_are_compiled(tmp_path: Path, code: int) -> None:
    log = tmp_path / "build" / "log"
    words = [sys.executable, str(SCRIPTS / "count_files.py"), str(log), "sh", "-c", f"{NINJA}{code}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert re.findall(r"(\d) of 4", done.stdout) == ["1", "2", "3", "4"]
    assert "error: in 4.cc" in log.read_text()
    assert ("error: in 4.cc" in done.stderr) == (code != 0)


def test_man_page_has_every_command_and_its_options(tmp_path: Path) -> None:
    page = tmp_path / "man" / "portcall.1"
    subprocess.run([sys.executable, str(SCRIPTS / "man_page.py"), str(page)], check=True)
    text = page.read_text()
    headings = set(re.findall(r'^\.SH "portcall (.*)"$', text, re.MULTILINE))
    assert headings >= {*COMMANDS, "board build", "remote add"}
    assert "\\-\\-option FLAG" in text
    assert set(re.findall(r"^\.(\w+)", text, re.MULTILINE)) == {"TH", "SH", "PP", "TP", "nf", "fi"}
    if shutil.which("groff"):
        shown = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-k", str(page)], capture_output=True, text=True, check=True
        )
        assert shown.stderr == ""
        assert "kernels.so add_one --arg 'random:float32[8]'" in shown.stdout
