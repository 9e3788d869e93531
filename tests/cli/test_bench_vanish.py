# SPDX-License-Identifier: Apache-2.0
"""``portcall bench``: what was measured is kept when the board is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result

from portcall import rpc
from portcall.bench import _measure


def test_bench_keeps_what_was_measured_when_the_board_is_gone(
    invoke: Callable[..., Result], kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rpc.Server() as server:

        def up_to(counts: Any, between_s: float = 0) -> Callable[[Sequence[float]], int]:
            def following(values: Sequence[float]) -> int:
                if len(values) == 12:
                    server.terminate()
                return 4

            return following

        monkeypatch.setattr(_measure, "up_to", up_to)
        words = ("add", "--arg", "1", "--arg", "2", "--rpc", server.address, "--number", "9")
        shown = invoke("bench", kernels, *words, "--html", tmp_path / "r.html", "--json", tmp_path / "r.json",
                       "--junit", tmp_path / "r.xml")  # fmt: skip
    assert shown.exit_code not in (0, 6), shown.output
    answer = json.loads((tmp_path / "r.json").read_text())
    assert len(answer["results_s"]) == 12
    assert answer["error"]["kind"]
    assert answer["warnings"][0]["code"] == "ended"
    assert (tmp_path / "r.html").exists()
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("1", "0")
    assert suite.find("testcase/error") is not None
