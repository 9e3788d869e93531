# SPDX-License-Identifier: Apache-2.0
"""What the tests of objects share."""

from __future__ import annotations

import pytest

from portcall import _ir


@pytest.fixture(scope="session", autouse=True)
def _library_of_graphs() -> None:
    """Load ``libportcall_ir`` before the first test: what it registers stays."""
    _ir.structural_equal(None, None)
