# SPDX-License-Identifier: Apache-2.0
"""What runs inside of a session: the library of core/session, which the server without Python has too."""

from __future__ import annotations

import signal

from portcall._function import get_global_func
from portcall._module import IR_LIBRARY, load_plugin, session_library

LIBRARIES = (".so", ".dylib")  # suffixes of files that are loaded as they are


def register_values() -> None:
    """Register the functions by which a session sends and receives objects by value."""
    load_plugin(IR_LIBRARY)  # what reads and writes them
    session_library()["register_values"]()


def allow_interrupts() -> None:
    """Have a call that the client cancels end as by Ctrl-C, where Python's code runs in the main thread.

    The signal is one that is ignored unless somebody asks for it.
    """
    is_interrupted = get_global_func("portcall.rpc.CallIsInterrupted")

    def interrupt(*_: object) -> None:
        if is_interrupted():
            raise KeyboardInterrupt

    signal.signal(signal.SIGURG, interrupt)
    get_global_func("portcall.rpc.InterruptCallsBy")(int(signal.SIGURG))


def register_standard_names() -> None:
    """Register the functions that clients and tuners of TVM look up by name; one that is there already stays."""
    session_library()["register_standard_names"]()
