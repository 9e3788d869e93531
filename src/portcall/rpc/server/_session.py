# SPDX-License-Identifier: Apache-2.0
"""What runs inside of a session: the library of core/session, which the server without Python has too."""

from __future__ import annotations

import functools

from portcall._module import SESSION_LIBRARY, Module, load_plugin


@functools.cache
def library() -> Module:
    """Return the library, which stays loaded. Its functions are its own: no client can ask for them by name."""
    return load_plugin(SESSION_LIBRARY)


def register_standard_names() -> None:
    """Register the functions that clients and tuners of TVM look up by name; one that is there already stays."""
    library()["register_standard_names"]()
