# SPDX-License-Identifier: Apache-2.0
"""Keep a session that crashed in a file, a capsule, which ``portcall.testing.run_capsule`` runs again.

The file is a line of text, a line of JSON with facts, and frames as in a recording (``_record``). While the session
lasts they are in a file without a name, so nothing is left of a session that ends well, however its process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import IO, Any

from portcall import errors
from portcall.errors import printable

FIRST_LINE = b"portcall capsule 1\n"
SIZE = "size"  # the fact that says how many bytes the frames have
_PUMP_ENDS = 5.0  # seconds; the connection is gone by then


class Capsule:
    """What will be kept of a session if it crashes.

    Parameters:
        folder: where the capsule comes; made if need be.
        limit: bytes of frames; of a session with more, only the facts are kept.

    Attributes:
        path: the file; empty as long as there is none.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._folder, self.limit = os.fspath(folder), limit
        self._frames: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (as long as the session)
        weakref.finalize(self, self._frames.close)
        self._written = 0
        self._why = ""  # it is not whole
        self.facts: dict[str, Any] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self.pump: threading.Thread | None = None
        self.path = ""

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Take frames. A full disk is no matter of the session."""
        for part in parts:
            if self._why:
                return
            self._written += len(part)
            try:
                if self._written > self.limit:
                    self.drop(f"the session had more than {self.limit:,} bytes")
                else:
                    self._frames.write(part)
            except OSError as error:
                self.drop(str(error))

    def drop(self, why: str) -> None:
        """Keep the facts alone."""
        self._why = self._why or why
        with contextlib.suppress(OSError, ValueError):
            os.ftruncate(self._frames.fileno(), 0)  # what the file object holds back is never written

    def asking(self, ask: Callable[[], errors.RPCError | None] | None) -> Callable[[], errors.RPCError | None] | None:
        """Return what asks how the session ended, and keeps one that crashed."""

        def asked() -> errors.RPCError | None:
            error = ask() if ask else None
            if isinstance(error, errors.RemoteCrashError) and not self.path:
                try:
                    self._keep(error)
                    kept = f"It is kept in {self.path}; portcall capsule run FILE repeats it"
                except OSError as failed:
                    kept = f"It could not be kept in {self._folder}: {failed.strerror or failed}"
                error.args = (f"{error}\n{kept}",)
            return error

        return asked if ask else None

    def _keep(self, error: errors.RemoteCrashError) -> None:
        if self.pump is not None:
            self.pump.join(_PUMP_ENDS)
            if self.pump.is_alive():
                self.drop("the connection did not end")
        found = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "message": printable(str(error)),
                 "call": error.call, "signal": error.signal, "stderr": error.stderr}  # fmt: skip
        self.keep({**self.facts, **found, "files": self.files})

    def keep(self, facts: dict[str, Any], name: str = "") -> None:
        """Write the file.

        Parameters:
            name: of the file; one is made up where it is empty.

        Raises:
            OSError: there is no room.
        """
        try:
            self.path = self._write(facts, name)
        except OSError as error:  # there may be room for the facts
            self.drop(str(error))
            self.path = self._write(facts, name)

    def _write(self, facts: dict[str, Any], name: str) -> str:
        prefix = time.strftime("crash-%Y%m%d-%H%M%S-")  # nothing that the server said
        handle, path = tempfile.mkstemp(".part" if name else ".capsule", prefix, self._folder)  # for this user alone
        try:
            with open(handle, "wb") as file:
                size = 0 if self._why else self._frames.seek(0, os.SEEK_END)
                facts = {**facts, "incomplete": self._why, SIZE: size}
                file.write(FIRST_LINE + json.dumps(facts).encode() + b"\n")
                if not self._why:
                    self._frames.seek(0)
                    shutil.copyfileobj(self._frames, file)
            if name:
                os.rename(path, path := os.path.join(self._folder, name))
        except BaseException:
            os.unlink(path)
            raise
        return path

    def __enter__(self) -> Capsule:
        return self

    def __exit__(self, *_: object) -> None:
        """The frames stay until nobody refers to them."""
