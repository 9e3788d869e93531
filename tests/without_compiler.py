# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest for machines without a compiler: it leaves out the tests whose fixtures compile.

python -m pytest -p without_compiler …
"""

from __future__ import annotations

import pytest

COMPILE = {"build_native", "c_libraries", "kernels", "libraries"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if COMPILE.intersection(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
