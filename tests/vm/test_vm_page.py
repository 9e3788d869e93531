# SPDX-License-Identifier: Apache-2.0
"""docs/vm.md does what it says: its first block makes a library with apache-tvm, and the second runs that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "vm.md"


@pytest.mark.peers
def test_vm_page_code_runs(tmp_path: Path) -> None:
    make, run = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, block in (("make.py", make), ("run.py", run)):
        (tmp_path / name).write_text(block)
        done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "[[2. 2. 2.]" in done.stdout
    (said,) = re.findall(r"# (\('double', .*)$", run, re.MULTILINE)
    assert said in done.stdout
