# SPDX-License-Identifier: Apache-2.0
"""What is sent to a session, known by its content: a file or bytes, their size, a sample and their SHA-256."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

PIECE = 4 << 20  # bytes that are sent at once
_SAMPLE = 64 << 10  # bytes from the start and from the end
_SETTLED = 0.1  # seconds that a file must be older than its hash: clocks of file systems are coarse
_MOST_KNOWN = 256
_SMALL_FILE = 8 << 20  # bytes; a smaller file is sent again as a whole
_Key = tuple[int, int, int, int, int]
_known: dict[_Key, str] = {}


class Content:
    """A file that is open, or bytes."""

    def __init__(self, source: BinaryIO | memoryview) -> None:
        self._source = source
        self._sent = hashlib.sha256()  # of all that was read in order, from the start
        self._hashed = 0
        self.size = len(source) if isinstance(source, memoryview) else os.fstat(source.fileno()).st_size

    def sample(self) -> str:
        """Return a hash of the size, the start and the end: files that differ in it are different."""
        found = hashlib.sha256(b"%d\n" % self.size)
        found.update(self._at(0, _SAMPLE))
        found.update(self._at(max(0, self.size - _SAMPLE), _SAMPLE))
        return found.hexdigest()

    def digest(self) -> str:
        """Return the SHA-256; of a file that has not changed it is remembered."""
        key, began = self._key(), time.time()
        if key in _known:
            return _known[key]
        if self._hashed != self.size:
            for _ in self.pieces(self._hashed):
                pass
        digest = self._sent.hexdigest()
        if key is not None and key == self._key() and began - key[3] / 1e9 > _SETTLED:
            if len(_known) >= _MOST_KNOWN:
                _known.pop(next(iter(_known)))
            _known[key] = digest
        return digest

    def digest_of_first(self, size: int) -> str:
        """Return the SHA-256 of the first bytes; ``pieces`` may go on from there."""
        for _ in self.pieces(0, size):
            pass
        return self._sent.hexdigest()

    def pieces(self, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Read, hashing beside, from the start or from where the last reading ended.

        Each piece is valid until the next. The last one counts when the loop is over.
        """
        end = self.size if end is None else end
        if start == 0:
            self._sent, self._hashed = hashlib.sha256(), 0
        with ThreadPoolExecutor(1, "portcall-hash") as pool:
            for piece in self._read(start, end):
                hashing = pool.submit(self._sent.update, piece)
                yield piece
                hashing.result()
                self._hashed += len(piece)

    def _read(self, start: int, end: int) -> Iterator[memoryview]:
        if isinstance(self._source, memoryview):
            for place in range(start, end, PIECE):
                yield self._source[place : min(place + PIECE, end)]
            return
        buffer = memoryview(bytearray(PIECE))
        self._source.seek(start)
        while start < end and (count := self._source.readinto(buffer[: end - start])):  # type: ignore[attr-defined]
            start += count
            yield buffer[:count]

    def _at(self, start: int, most: int) -> bytes:
        if isinstance(self._source, memoryview):
            return bytes(self._source[start : start + most])
        return os.pread(self._source.fileno(), most, start)

    def _key(self) -> _Key | None:
        if isinstance(self._source, memoryview):
            return None
        facts = os.fstat(self._source.fileno())
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
        self._begun = content.size <= _SMALL_FILE

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

    def keep(self) -> None:
        """Have the server keep the whole file."""
        self._ask("keep", self._name, self._sample, self._content.digest())

    def _ask(self, what: str, *args: Any) -> Any:
        return self._function(f"portcall.rpc.content_{what}")(*args)
