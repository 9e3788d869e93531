# SPDX-License-Identifier: Apache-2.0
"""The containers."""

from portcall._container import Array, Dict, List, Map

__all__ = ["Array", "Dict", "List", "Map"]
