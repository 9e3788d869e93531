# SPDX-License-Identifier: Apache-2.0
"""docs/language-models.md does what it says: it makes a library, generates, and does that in a session."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from portcall.cli import cli
from rpc.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "language-models.md"


@pytest.mark.peers
def test_language_models_page_code_runs(tmp_path: Path) -> None:
    make, here, there = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    said = []
    with serving("--key", "board") as running:
        for name, block in (("make.py", make), ("here.py", here), ("there.py", there)):
            (tmp_path / name).write_text(block.replace("9090", str(running.port)))
            done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            said.append(done.stdout.splitlines())
    assert said[1][0] == said[2][0]
    assert said[1][2] == "3 (2, 512) 32"
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "llm.so"), "--json"]).stdout
    cache = json.loads(shown)["executable"]["cache"]
    assert (cache["dtype"], cache["bytes_per_token"]) == ("float32", 1024)  # of a tensor that the library makes
