# SPDX-License-Identifier: Apache-2.0
"""The files of a session: functions that its client calls by name, none of which reaches outside its directory.

Those of core/session, for TVM and portcall clients, all ``tvm.rpc.server.``:

    upload(path, bytes)     download(path) -> bytes     remove(path)     listdir(path) -> names, separated by commas
    workpath(path) -> absolute path

and for portcall clients, which send and fetch files in pieces, all ``portcall.rpc.``:

    file_write(path, offset, data) -> size    appends bytes, or those of a tensor, at ``offset``, which must be the
                                              file's present size; offset 0 begins a new file, so that a library that
                                              is loaded stays whole
    file_read(path, offset, most) -> bytes    empty at the end
    file_fill(path, offset, tensor) -> count  the same into a tensor, which is how much is wanted
    file_size(path) -> bytes
    file_digest(path) -> SHA-256 as hex
    content_find, content_take, content_begin, content_resume, content_keep    files by content: what one session sent,
                                              another of the same credential need not send again

Those that only this server has, or has with a linker:

    load_module(path) -> module     download_linked_module(path) -> bytes
    file_write_zstd(path, offset, packed, size) -> size    appends the ``size`` bytes that a zstd frame has; only where
                                              this Python has zstd
    machine(path, needs) -> JSON              what this machine is; given the needs of a library, which of them are not
                                              met for one at ``path``, without loading anything
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portcall._function import convert, register_func
from portcall._module import Module, load_module, session_library
from portcall.inspect._machine import beside
from portcall.rpc.server._session import LIBRARIES
from portcall.rpc.wire import _zstd
from portcall.rpc.wire._digests import LARGE, Background, digest_of

if TYPE_CHECKING:
    import threading
    from queue import SimpleQueue

# Those that a session in this process has, too.
NAMES = frozenset(
    f"tvm.rpc.server.{name}"
    for name in ("upload", "download", "remove", "listdir", "workpath", "load_module", "download_linked_module")
) | frozenset(
    f"portcall.rpc.{name}"
    for name in ("file_write", "file_write_zstd", "file_read", "file_fill", "file_size", "file_digest", "machine")
)


class Files:
    """What the client of a session may do with its files.

    Parameters:
        limit: bytes that its files may take; 0 for no limit.
        keeps: contents are kept from session to session.

    Attributes:
        root: the session's directory, once ``enter`` has said it.
        functions: by name.
    """

    def __init__(self, limit: int = 0, *, keeps: bool = False) -> None:
        self.root = ""
        told = convert(_Unnamed().add) if keeps else None
        parts = session_library()["files"](limit, convert(digest_of), told, *beside())
        self.functions: dict[str, Any] = dict(zip(map(str, parts[::2]), parts[1::2], strict=True))
        own = (self.functions.pop(name) for name in ("enter", "verify", "used", "check_room"))
        self._enter, self._verify, self.used, self.check_room = own
        self.functions |= {
            "tvm.rpc.server.load_module": self._load_module,
            "tvm.rpc.server.download_linked_module": self._download_linked_module,
        }
        if _zstd.is_available():
            self.functions["portcall.rpc.file_write_zstd"] = self._file_write_zstd

    def enter(self, root: str, store: str = "") -> None:
        """Begin to work in a directory, a path without links; ``store`` is the folder for contents that are kept."""
        self.root = root
        self._enter(root, store)

    def register(self) -> None:
        """Register the functions for the session of this process, which may begin later."""
        for name, function in self.functions.items():
            register_func(name, function, override=True)

    def close(self) -> None:
        """Let go of the directory: the functions were its only users, and refer to this object."""
        self.functions.clear()

    def _file_write_zstd(self, path: str, offset: int, packed: bytes, size: int) -> int:
        check_kind(packed, bytes, "a compressed piece")
        check_kind(size, int, "the size of a piece")
        written: int = self.functions["portcall.rpc.file_write"](path, offset, _zstd.decompress(packed, size))
        return written

    # ---- Modules ----

    def _load_module(self, path: str) -> Module:
        return load_module(self._link(path))

    def _download_linked_module(self, path: str) -> bytes:
        linked: bytes = self.functions["tvm.rpc.server.download"](self._link(path))
        return linked

    def _link(self, path: str) -> str:
        """Return the path of a shared library, made of what ``path`` holds unless it is one.

        Raises:
            ValueError: files of that kind are not linked.
            CompileError: the compiler said no; the message has its words.
        """
        whole: str = self._verify(path)
        if os.path.splitext(path)[1] in LIBRARIES:
            return whole
        from portcall.rpc.server._linking import link  # what it needs takes memory, which few sessions use

        return link(path, whole, self)


class _Unnamed:
    """Files that were kept and are large: their digests are found in the background, before anyone asks for them."""

    def __init__(self) -> None:
        self._paths: SimpleQueue[str] | None = None  # one of them at a time is open

    def add(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another session makes room
            if os.stat(path).st_size <= LARGE:
                return
            if self._paths is None:
                from queue import SimpleQueue

                self._paths = paths = SimpleQueue[str]()
                Background(lambda stop: _name_all(paths, stop))
            self._paths.put(path)


def _name_all(paths: SimpleQueue[str], stop: threading.Event) -> None:
    while True:
        new = Path(paths.get())
        with contextlib.suppress(OSError), new.open("rb") as file:  # it may have gone, or have its name already
            new.rename(new.with_name(f"{new.stem}-{digest_of(file.fileno(), stop)}"))


def check_kind(value: object, kind: type, what: str) -> None:
    """Refuse an argument that a client sent with a wrong type."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {kind.__name__}, not {type(value).__name__}")
