# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _plugin_is_loaded(opencl_plugin: None) -> None:
    pass
