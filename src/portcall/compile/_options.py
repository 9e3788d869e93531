# SPDX-License-Identifier: Apache-2.0
"""What a model is compiled with, for graphs and for the Relax VM, of ONNX and of Relax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Winograd = Literal["auto", "off", "f2", "f4"]
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Options:
    """The options, which ``portcall.compile.onnx`` describes; ValueError if one is wrong."""

    shapes: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    winograd: Winograd = "auto"
    check: bool = True
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.winograd not in ("auto", "off", "f2", "f4"):
            raise ValueError(f"winograd is 'auto', 'off', 'f2' or 'f4', not {self.winograd!r}")
        if self.threads < 1:
            raise ValueError(f"threads is at least 1, not {self.threads}")
