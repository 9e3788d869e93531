# SPDX-License-Identifier: Apache-2.0
"""What the Makefile calls: the counter of files that are compiled."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
