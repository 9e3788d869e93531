# SPDX-License-Identifier: Apache-2.0
"""docs/farm.md does what it says: its Python blocks run, with two boards of a farm whose address is another one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from farm.boards import board, client
from farm.running import running_farm
from portcall import toolchain
from portcall.rpc import Session

ROOT = Path(__file__).parents[2]


class Builders(concurrent.futures.ThreadPoolExecutor):
    """Stands in for Dask's client, whose executor test_executor.py uses."""

    def __init__(self, address: str) -> None:
        super().__init__(2)

    def get_executor(self) -> Builders:
        return self


def arguments(session: Session) -> list[Any]:
    """Return what the demo's matmul is timed with: a, b and c of 16 x 16 float32."""
    return [portcall.tensor(np.ones((16, 16), "float32"), device=session.cpu()) for _ in range(3)]


def test_farm_page_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    toolchain.create_shared(ROOT / "src" / "portcall" / "cli" / "demo_kernels.cc", "kernels.so")
    with contextlib.ExitStack() as stack:
        farm = stack.enter_context(running_farm())
        for name in ("a", "b"):
            stack.enter_context(board(farm, name, "rasp4"))
        lab = stack.enter_context(client(farm))
        connect = portcall.farm.connect
        monkeypatch.setattr(portcall.farm, "connect", lambda _: connect(f"{farm.host}:{farm.port}", user="ann"))
        names: dict[str, Any] = {
            "portcall": portcall, "distributed": types.SimpleNamespace(Client=Builders), "candidates": [3, 1],
            "farm": lab, "build": lambda candidate: candidate * 10,
            "libraries": [Path("kernels.so"), Path("kernels.so")], "arguments": arguments,
        }  # fmt: skip
        names["work"] = names["measure"] = lambda session, candidate: session["testing.echo"](candidate)
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "farm.md").read_text(), re.DOTALL)
        for block in blocks:
            if block == blocks[-1]:  # the executor of the blocks before
                names["boards"] = stack.enter_context(portcall.farm.Executor(lab, "rasp4", boards=2))
            exec(compile(block, "farm.md", "exec"), names if block in blocks[2:] else dict(names))
    assert len(blocks) == 4
    assert capsys.readouterr().out.split() == ["3", "1"]
    assert names["seconds"] == [30, 10]
    assert names["best"] == [1, 0]
    assert sorted(each.number for each in names["ranked"]) == [0, 1]
