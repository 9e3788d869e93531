# SPDX-License-Identifier: Apache-2.0
"""This process as a session."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from portcall._core import PackedFunc
from portcall._function import get_global_func, register_func, remove_global_func
from portcall.rpc.client._session import Session
from portcall.rpc.server._directories import delete_tree
from portcall.rpc.server._files import NAMES, Files
from portcall.rpc.server._objects import functions_for_objects

_LOCAL_FUNCTIONS = (
    "portcall.rpc.local.*",
    "portcall.rpc.Module*",
    "tvm.rpc.server.*Module*",
    "runtime.RPCTimeEvaluator",
)


class LocalSession(Session):
    """This process as a session: the same interface without a wire, with its own directory for files.

    Parameters:
        expose: patterns of the global functions that it offers.
    """

    def __init__(self, expose: Sequence[str] = ("*",)) -> None:
        offered = [*expose, *_LOCAL_FUNCTIONS]
        super().__init__(get_global_func("portcall.rpc.LocalSession")(offered, True), "this process")
        self._files: Files | None = None

    def _find(self, name: str) -> PackedFunc | None:
        """Return a function; those for files and objects are those of the session, whatever else is registered."""
        function: Callable[..., Any] | None = functions_for_objects().get(name)
        if function is None and name not in NAMES:
            return super()._find(name)
        if function is None:
            function = self._own_files().functions.get(name)
        if function is None:  # this Python has no zstd
            return None
        # A result such as a module is the session's only if the session calls the function: for that it needs a name.
        unique = f"portcall.rpc.local.{name}.{id(self)}.{threading.get_ident()}"
        register_func(unique, function)
        try:
            return super()._find(unique)
        finally:
            remove_global_func(unique)

    def _own_files(self) -> Files:
        if self._files is None:
            self._files = Files()
            self._files.enter(os.path.realpath(tempfile.mkdtemp(prefix="portcall-")))
            self._removal = weakref.finalize(self, _remove_files, self._files, os.getpid())
        return self._files

    def close(self) -> None:
        """End the session, and delete its directory."""
        super().close()
        if self._files is not None:
            self._files = None
            self._removal()


def _remove_files(files: Files, pid: int) -> None:
    files.close()
    if os.getpid() == pid:  # a forked child leaves what is its parent's
        delete_tree(files.root)
