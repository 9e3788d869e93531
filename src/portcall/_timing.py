# SPDX-License-Identifier: Apache-2.0
"""The options of time evaluators: names, order and defaults. The core checks the numbers."""

from __future__ import annotations

from typing import NamedTuple


class TimingOptions(NamedTuple):
    """How a time evaluator measures, in the order in which functions of the registry take it."""

    number: int = 10
    repeat: int = 1
    min_repeat_ms: int = 0
    limit_zero_time_iterations: int = 100
    cooldown_interval_ms: int = 0
    repeats_to_cooldown: int = 1


DEFAULTS = TimingOptions()
