# SPDX-License-Identifier: Apache-2.0
"""The farm: many boards, many people. Places are leased, requests wait in a fair queue, a restart loses nothing.

A farm is a command, ``portcall farm``. It needs the extra ``portcall[farm]``; ``Executor`` and
``measure`` need nothing more.
"""

from __future__ import annotations

import importlib
from typing import Any

from portcall.extras import needed

_HOMES = {
    "FarmOptions": "portcall.farm._server",
    "serve": "portcall.farm._run",
    "Executor": "portcall.farm._executor",
    "measure": "portcall.farm._executor",
    "Rules": "portcall.farm._model",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        with needed("farm", "running a farm"):
            return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'portcall.farm' has no attribute {name!r}")
