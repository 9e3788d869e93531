# SPDX-License-Identifier: Apache-2.0
"""A server with the other byte order, written by hand: it swaps what each copy's own data type tells it to."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from portcall import rpc
from rpc.raw_client import (
    ACK,
    ALLOC,
    CALL,
    COPY_FROM,
    COPY_TO,
    GET_FUNCTION,
    INIT,
    RETURN,
    frame,
    integer,
    pointer,
    sequence,
)

COMPLEX = 5
NONE = struct.pack("<i", 0)


def swapped(data: bytes, code: int, bits: int) -> bytes:
    size = (bits // 2 if code == COMPLEX else bits) // 8
    return b"".join(data[at : at + size][::-1] for at in range(0, len(data), size)) if size > 1 else data


class Board:
    """A big-endian server over a transport: one piece of memory, packets of a limited length, no other functions."""

    def __init__(self, packet: int) -> None:
        self.packet = packet
        self.memory = bytearray(1 << 16)
        self.blocks: list[int] = []
        self._coming, self._going = b"", b""

    def send(self, data: bytes) -> int:
        self._coming += data
        while len(self._coming) >= 8 and len(self._coming) >= (size := struct.unpack_from("<Q", self._coming)[0]) + 8:
            (code,) = struct.unpack_from("<i", self._coming, 8)
            if code != 1:
                self._going += self.answer(code, self._coming[12 : 8 + size])
            self._coming = self._coming[8 + size :]
        return len(data)

    def receive(self, most: int) -> bytes:
        part, self._going = self._going[:most], self._going[most:]
        return part

    def close(self) -> None:
        pass

    def answer(self, code: int, body: bytes) -> bytes:
        if code == GET_FUNCTION:
            return frame(RETURN, sequence(pointer(7 if self.packet and b"GetCRTMaxPacketSize" in body else 0)))
        if code == CALL:
            return frame(RETURN, sequence(integer(1), integer(self.packet)))
        if code == ALLOC:
            return frame(RETURN, sequence(pointer(9)))
        if code not in (COPY_TO, COPY_FROM):
            assert code in (INIT, 10, 14), code
            return frame(RETURN, sequence(NONE))
        ndim, kind, bits = struct.unpack_from("<iBB", body, 16)
        head = 24 + 8 * ndim
        offset, nbytes = struct.unpack_from("<QQ", body, head)
        self.blocks.append(nbytes)
        if code == COPY_TO:
            assert not self.packet or len(body) + 4 <= self.packet
            self.memory[offset : offset + nbytes] = swapped(body[head + 16 :], kind, bits)
            return frame(RETURN, sequence(NONE))
        return frame(ACK, swapped(bytes(self.memory[offset : offset + nbytes]), kind, bits))


@pytest.mark.parametrize("packet", [0, 52 + 45, 52 + 16])
@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float64", "complex64", "complex128"]
)
def test_session_converts_numbers_for_a_server_of_the_other_byte_order(name: str, packet: int) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    array = np.arange(37).astype(dtype)
    board = Board(packet)
    with rpc.connect_over(board, "the board") as session:
        tensor = session.tensor(array)
        theirs = array.view(np.uint16).byteswap() if name == "bfloat16" else array.byteswap()
        assert bytes(board.memory[: array.nbytes]) == theirs.tobytes()
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert all(nbytes % dtype.itemsize == 0 for nbytes in board.blocks)
        raw = tensor.view((array.nbytes,), "uint8").numpy()  # bytes have no order: this is the server's memory
        assert raw.tobytes() == theirs.tobytes()
