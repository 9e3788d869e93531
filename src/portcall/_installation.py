# SPDX-License-Identifier: Apache-2.0
"""Whether the compiled core can be loaded. Where it cannot, Python would speak of a circular import."""

import importlib
import importlib.util
import platform
import sys
from pathlib import Path

_NAME = "portcall._core"
_REMEDY = "install portcall again (pip install --force-reinstall portcall); in a clone of its repository: make build"


def _load_core() -> None:
    """Load the core.

    Raises:
        ImportError: it is missing, is for another Python, or lacks a library.
    """
    python = f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}"
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:  # none at all, or the folder of its sources
        folder = Path(__file__).parent
        others = ", ".join(sorted(path.name for path in folder.glob("_core.*.so")))
        text = f"there is none in {folder} for {python}{', but ' + others if others else ''}"
        raise ImportError(f"the compiled core of portcall is missing: {text}; {_REMEDY}", name=_NAME)
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        raise ImportError(f"the compiled core of portcall cannot be loaded: {error}; {_REMEDY}", name=_NAME) from None


_load_core()
