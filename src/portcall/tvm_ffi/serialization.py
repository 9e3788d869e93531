# SPDX-License-Identifier: Apache-2.0
"""Graphs of objects as text, by ``portcall.ir``: in portcall's JSON, which is not that of tvm-ffi."""

from __future__ import annotations

from typing import Any

from portcall.ir import _operations

__all__ = ["from_json_graph_str", "to_json_graph_str"]


def to_json_graph_str(obj: Any) -> str:
    """Return a graph as JSON: ``portcall.ir.save_json``."""
    return _operations.save_json(obj)


def from_json_graph_str(json_str: str) -> Any:
    """Return the value that ``to_json_graph_str`` saved: ``portcall.ir.load_json``."""
    return _operations.load_json(json_str)
