# SPDX-License-Identifier: Apache-2.0
"""docs/rpc.md does what it says: its Python blocks run, in order, with a server whose address is board.local:9090."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from rpc.serving import FUNCTIONS, Serving

PAGE = Path(__file__).parents[2] / "docs" / "rpc.md"
SERVED = (
    FUNCTIONS
    + """
portcall.register_func("stats")(lambda values, limit=None: len(values))
portcall.register_func("functions")(lambda: [len])
portcall.register_func("length")(len)
portcall.register_func("apply")(lambda f, value: f(value))
portcall.register_func("say")(print)
@portcall.register_func("sweep")
def sweep(n): yield from range(n)
import contextlib
@portcall.register_func("opened")
@contextlib.contextmanager
def opened(name): yield {"name": name}
@portcall.register_object("page.Counter", frozen=False)
class Counter(portcall.Object):
    count: int
    def plus(self, n): return self.count + n
portcall.register_func("make_counter")(lambda: Counter(1))
"""
)


def test_rpc_page_code_runs(
    server: Serving, kernel_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    connect = portcall.rpc.connect

    def to_the_server(address: str, token: str = "", **words: Any) -> portcall.rpc.Session:
        return connect(str(server.address) if address == "board.local:9090" else address, **words)

    monkeypatch.setattr(portcall.rpc, "connect", to_the_server)
    monkeypatch.chdir(tmp_path)
    for name in ("kernels.so", "model.so"):
        (tmp_path / name).write_bytes(kernel_library.read_bytes())
    x = np.arange(4, dtype="float32")
    with connect(server.address) as session, connect(server.address) as two, connect(server.address) as three:
        session.upload(tmp_path / "kernels.so")
        names: dict[str, Any] = {"portcall": portcall, "x": x, "y": np.empty_like(x), "a": x, "rows": [1, 2]}
        names.update(remote=session, one=session, two=two, three=three, show=lambda *progress: None)
        lib = session.load_module("kernels.so")
        names.update(add_one=lib["add_one"], add=lib["add"], length=session.get_function("length"))
        blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for block in blocks:
            made = dict(names)
            exec(compile(block, PAGE.name, "exec"), made)
            if "on_output" in block:
                made["remote"].get_function("say")("a line")
            if made["remote"] is not session:
                made["remote"].close()
            if "pipeline" in block:
                np.testing.assert_array_equal(made["result"], x + 1)
            made.clear()
        names.clear()
    assert len(blocks) > 10
    assert "stdout: a line" in capsys.readouterr().out
