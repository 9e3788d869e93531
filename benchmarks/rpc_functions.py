# SPDX-License-Identifier: Apache-2.0
"""What a server of a run offers beside its own functions: ``portcall serve --import`` runs this."""

from __future__ import annotations

import functools

import portcall


@portcall.register_func("bench.bytes")
@functools.cache
def make_bytes(size: int) -> bytes:
    """Return that many bytes, the same at each call."""
    return b"x" * size
