# SPDX-License-Identifier: Apache-2.0
"""Recordings that were damaged: an error that names the file and the place, never another exception."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from portcall import testing
from portcall.rpc._replay import Recording
from portcall.rpc.client._record import FIRST_LINE


def frame(mark: int, code: int, body: bytes = b"") -> bytes:
    return bytes([mark]) + struct.pack("<Qi", 4 + len(body), code) + body


WHOLE = FIRST_LINE + b'{"features": ["output"]}\n' + frame(0, 3, b"call") + frame(1, 4, b"value") + frame(0, 1)


def read(path: Path, data: bytes) -> Recording | None:
    """Read a recording of these bytes; None where it is refused, by an error that names the file."""
    path.write_bytes(data)
    why = ""
    try:
        return Recording.read(path)
    except UnicodeError:
        raise
    except ValueError as error:
        why = str(error)
    assert str(path) in why
    return None


def test_replay_of_a_cut_recording_is_an_error_at_every_byte(tmp_path: Path) -> None:
    ends = {len(WHOLE) - size for size in (0, 13, 13 + 18, 13 + 18 + 17)}  # between two frames
    for size in range(len(WHOLE)):
        found = read(tmp_path / "session.rec", WHOLE[:size])
        assert (found is not None) == (size in ends), size


def test_replay_of_a_changed_recording_is_read_or_an_error_at_every_bit(tmp_path: Path) -> None:
    for place in range(len(WHOLE)):
        for bit in range(8):
            changed = bytearray(WHOLE)
            changed[place] ^= 1 << bit
            read(tmp_path / "session.rec", bytes(changed))


@pytest.mark.parametrize(
    "line", [b"[]", b"7", b"null", b"\xff", b"[" * 100_000, b"{", b'{"features": 7}', b'{"features": [[]]}']
)
def test_replay_of_a_recording_with_wrong_facts_is_an_error(tmp_path: Path, line: bytes) -> None:
    assert read(tmp_path / "session.rec", FIRST_LINE + line + b"\n") is None


def test_replay_names_the_offset_of_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "session.rec"
    begin = len(WHOLE) - 13
    path.write_bytes(WHOLE[:begin] + b"\x07" + WHOLE[begin + 1 :])
    with pytest.raises(ValueError, match=rf"session\.rec.*byte {begin}\b.*record"):
        testing.replay(path)
    path.write_bytes(WHOLE[:-1])
    with pytest.raises(ValueError, match=rf"byte {begin}\b"):
        testing.replay(path)


def test_replay_of_a_frame_without_a_code_is_an_error(tmp_path: Path) -> None:
    assert read(tmp_path / "session.rec", WHOLE + b"\x00" + struct.pack("<Q", 2) + b"ab") is None
