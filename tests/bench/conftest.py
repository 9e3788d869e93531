# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def one_core() -> Iterator[None]:
    """Processor 0 alone, which is the one that trees of other machines have."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    yield
    os.sched_setaffinity(0, before)
