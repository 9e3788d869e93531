# SPDX-License-Identifier: Apache-2.0
"""What is sent to a session, known by its content: a file or bytes, their size, a sample and their SHA-256."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from portcall.rpc.wire._digests import LARGE, PIECE, Background, digest_of, digest_of_pieces, pieces_of

_SAMPLE = 64 << 10  # bytes from the start and from the end
_SETTLED = 0.1  # seconds that a file must be older than its hash: clocks of file systems are coarse
_MOST_KNOWN = 256
_Key = tuple[int, int, int, int, int]
_known: dict[_Key, str] = {}


class Content:
    """A file that is open, or bytes."""

    def __init__(self, source: BinaryIO | memoryview) -> None:
        self._source = source
        self.size = len(source) if isinstance(source, memoryview) else os.fstat(source.fileno()).st_size

    def sample(self) -> str:
        """Return a hash of the size, the start and the end: files that differ in it are different."""
        found = hashlib.sha256(b"%d\n" % self.size)
        found.update(self._at(0, _SAMPLE))
        found.update(self._at(max(0, self.size - _SAMPLE), _SAMPLE))
        return found.hexdigest()

    def digest(self) -> str:
        """Return the SHA-256; of a file that has not changed it is remembered."""
        if isinstance(self._source, memoryview):
            return hashlib.sha256(self._source).hexdigest()
        return _known_digest_of(self._source.fileno())

    def remember_digest(self) -> Background | None:
        """Find the SHA-256 of a large file in the background: an upload of what the server does not have needs none."""
        if isinstance(self._source, memoryview) or self.size <= LARGE:
            return None
        descriptor = os.dup(self._source.fileno())

        def find(stop: threading.Event) -> None:
            try:
                if not stop.wait(2 * _SETTLED):
                    _known_digest_of(descriptor, stop)
            finally:
                os.close(descriptor)

        return Background(find)

    def digest_of_first(self, size: int) -> str:
        """Return the SHA-256 of the first bytes."""
        return digest_of_pieces(self.pieces(0, size))

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Read piece by piece. Each is valid until the next."""
        end = self.size if end is None else end
        if isinstance(self._source, memoryview):
            for place in range(start, end, PIECE):
                yield self._source[place : min(place + PIECE, end)]
        else:
            yield from pieces_of(self._source.fileno(), start, end)

    def _at(self, start: int, most: int) -> bytes:
        if isinstance(self._source, memoryview):
            return bytes(self._source[start : start + most])
        return os.pread(self._source.fileno(), most, start)


def _known_digest_of(descriptor: int, stop: threading.Event | None = None) -> str:
    key, began = _key_of(descriptor), time.time()
    if key in _known:
        return _known[key]
    digest = digest_of(descriptor, stop)
    if key == _key_of(descriptor) and began - key[3] / 1e9 > _SETTLED:
        if len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known)))
        _known[key] = digest
    return digest


def _key_of(descriptor: int) -> _Key:
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


class Offer:
    """The content of an upload, offered to a server, which may have it or a part of it.

    Args:
        name: the file on the server.
        function: returns a function of the server.
    """

    def __init__(self, content: Content, name: str, function: Callable[[str], Callable[..., Any]]) -> None:
        self._content = content
        self._name = name
        self._function = function
        self._sample = content.sample()
        self._begun = content.size <= LARGE

    def begin(self) -> int:
        """Return how many bytes the server has already given the file."""
        content, file = self._content, (self._name, self._content.size, self._sample)
        known = self._ask("find", content.size, self._sample)
        if known == "complete" and self._ask("take", *file, content.digest()):
            return content.size
        if known == "part" and (size := self._ask("resume", *file)):
            digest = self._function("portcall.rpc.file_digest")(self._name)
            if size < content.size and digest == content.digest_of_first(size):
                self._begun = True
                return int(size)
        return 0

    def keep_part(self) -> None:
        """Have the server keep what has come so far, in case the connection breaks."""
        if not self._begun:
            self._begun = True
            self._ask("begin", self._name, self._content.size, self._sample)

    def keep(self) -> Background | None:
        """Have the server keep the whole file; return what finds its digest for the next time."""
        self._ask("keep", self._name, self._sample)
        return self._content.remember_digest()

    def _ask(self, what: str, *args: Any) -> Any:
        return self._function(f"portcall.rpc.content_{what}")(*args)
