# SPDX-License-Identifier: Apache-2.0
"""A little of ``make soak-farm``."""

from __future__ import annotations

import pytest

from farm.soak import soak


@pytest.mark.campaign
def test_soak_of_a_farm_finds_nothing() -> None:
    summary = soak(clients=24, boards=6, seconds=15, verbose=False)
    assert summary["failures"] == []
    assert summary["count"]["request done"] > 0
