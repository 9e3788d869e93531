# SPDX-License-Identifier: Apache-2.0
"""Names that a package does not have: what is said of one that it had, or that TVM has."""

from __future__ import annotations

from collections.abc import Mapping


def no_attribute(package: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """Return the error for a name that a package does not have; ``instead`` says what to write, by name."""
    hint = f"; {instead[name]}" if name in instead else ""
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
