# SPDX-License-Identifier: Apache-2.0
"""What tests of several files need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import portcall


@pytest.fixture
def vm_pools() -> Iterator[None]:
    """Free what the Relax VM keeps for its next run, once the test is over."""
    yield
    gc.collect()  # tracebacks hold results
    portcall.get_global_func("vm.builtin.memory_manager.clear")()
