# SPDX-License-Identifier: Apache-2.0
"""A place in the bytes of embedded modules."""

from __future__ import annotations

import struct


class BlobError(ValueError):
    """The bytes are not a table of modules; the message has the position."""


class Cursor:
    """A place in the bytes; reading beyond the end is a BlobError."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self.data = data
        self.place = place

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise BlobError(f"the module table ends at byte {len(self.data)}, expected {count} more")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def count(self, least: int = 8) -> int:
        """Return how many things of at least ``least`` bytes follow."""
        number = self.number()
        if number > (len(self.data) - self.place) // least:
            raise BlobError(f"the module table ends at byte {len(self.data)}, expected {number} more items")
        return number

    def numbers(self) -> tuple[int, ...]:
        count = self.count()
        return struct.unpack(f"<{count}Q", self.take(8 * count))

    def text(self) -> str:
        return self.take(self.number()).decode("utf-8", "backslashreplace")
