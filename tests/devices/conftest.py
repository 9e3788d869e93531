# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

import portcall


@pytest.fixture(scope="session", autouse=True)
def _plugins_are_loaded() -> None:
    """Load the plug-ins before the first test: they stay in the process."""
    assert portcall.opencl().exist, "no OpenCL: apt install pocl-opencl-icd ocl-icd-libopencl1"
