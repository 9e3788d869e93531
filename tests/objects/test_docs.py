# SPDX-License-Identifier: Apache-2.0
"""docs/objects.md does what it says: its lines are run, in order, and print what stands below them."""

from __future__ import annotations

import doctest
from pathlib import Path

import portcall


def test_the_page_on_objects() -> None:
    page = Path(__file__).parents[2] / "docs" / "objects.md"
    try:
        failed, run = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    finally:
        portcall.remove_global_func("doc.double")
    assert failed == 0, "what differs was printed"
    assert run > 40
