# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a server: any bytes give one of the expected messages or MessageError."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portcall.rpc.server import _directories, _messages
from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import (
    ALL,
    MAX_BYTES,
    PUMP_REPORTS,
    ZYGOTE_ORDERS,
    ZYGOTE_REPORTS,
    CountDirectory,
    DeleteDirectory,
    DirectoryCounted,
    DirectoryDeleted,
    ImportFailed,
    KillSession,
    Message,
    MessageError,
    PumpFailed,
    PumpReady,
    SessionEnded,
    SessionStarted,
    StartSession,
    decode,
    encode,
)

TEXTS = st.text(st.characters(codec=None, categories=None), max_size=50)  # lone surrogates too, as paths may have
VALUES = {
    str: TEXTS,
    int: st.integers(),
    float: st.floats(allow_nan=False),
    dict: st.dictionaries(TEXTS, st.integers()),
    list: st.lists(st.integers()),
}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    cls = draw(st.sampled_from(sorted(ALL, key=lambda cls: cls.__name__)))
    types = _messages._FIELDS[cls.__name__]
    values = {name: draw(VALUES[kind]) for name, kind in types.items()}
    return cls(**values)


def test_every_message_is_in_the_list() -> None:
    direct = set(Message.__subclasses__())
    assert direct.union(*(cls.__subclasses__() for cls in direct)) == ALL
    assert len({cls.__name__ for cls in ALL}) == len(ALL)


@given(messages())
def test_decode_returns_what_was_encoded(message: Message) -> None:
    assert decode(encode(message), ALL) == message


@given(messages(), st.data())
def test_decode_of_a_damaged_message_raises_message_error_or_returns_a_message(
    message: Message, data: st.DataObject
) -> None:
    whole = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not whole:
            break
    try:
        damaged = decode(bytes(whole), ALL)
    except MessageError:
        return
    assert type(damaged) in ALL
    for name, kind in _messages._FIELDS[type(damaged).__name__].items():
        assert type(getattr(damaged, name)) is kind


@given(st.binary(max_size=200))
def test_decode_of_any_bytes_raises_message_error(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data, ALL)


GOOD = {"message": "SessionEnded", "number": 1, "status": 0, "error": "", "last_words": ""}


@pytest.mark.parametrize(
    "values",
    [
        [], 1, None, {}, {"message": None}, {"message": ["SessionEnded"]}, {"message": "Nothing"},
        {key: GOOD[key] for key in ("message", "number", "status")}, {**GOOD, "more": 1}, {**GOOD, "number": "1"},
        {**GOOD, "number": True}, {**GOOD, "number": 1.0}, {**GOOD, "number": None}, {**GOOD, "error": 5},
        {"message": "PumpReady"}, {"message": "PumpReady", "certificate": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_decode_refuses_other_fields_and_types(values: object) -> None:
    with pytest.raises(MessageError):
        decode(json.dumps(values).encode(), ALL)
    assert decode(json.dumps(GOOD).encode(), ALL) == SessionEnded(1, 0)


def test_decode_refuses_what_is_nested_too_deeply() -> None:
    with pytest.raises(MessageError):
        decode(b"[" * 100_000, ALL)


def test_decode_refuses_messages_of_another_direction() -> None:
    data = encode(KillSession(7))
    assert decode(data, ZYGOTE_ORDERS) == KillSession(7)
    with pytest.raises(MessageError, match=r"^unexpected message 'KillSession' \(expected PumpReady or "):
        decode(data, PUMP_REPORTS)


def test_encode_refuses_what_a_link_does_not_carry() -> None:
    with pytest.raises(MessageError, match=f"at most {MAX_BYTES}"):
        encode(PumpFailed("x" * MAX_BYTES))


@pytest.mark.parametrize("character", ["x", "\0", "\U0001f600", "\udc80"])
def test_import_failed_message_is_shortened_to_fit(character: str) -> None:
    ours, theirs = Link.pair()
    with ours, theirs:
        sent = ImportFailed.of(character * 100_000, character * 100_000)
        ours.send(sent)
        assert theirs.receive((ImportFailed,)) == (sent, [])
    assert len(sent.error) == 4000
    assert len(sent.trace) == 16000


# ---- Links ----


def raw_pair() -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), theirs


def test_link_closes_the_descriptors_of_a_refused_message() -> None:
    link, peer = raw_pair()
    with link, peer:
        before = len(os.listdir("/proc/self/fd"))
        for data in (b"nonsense", encode(KillSession(1)), encode(PumpReady("x"))):
            socket.send_fds(peer, [data], [0, 1])
            with pytest.raises(MessageError):
                link.receive((PumpReady,))
        assert len(os.listdir("/proc/self/fd")) == before
        socket.send_fds(peer, [encode(StartSession(1, "/d", "", "all", "me", ""))], [0, 1])
        received = link.receive(ZYGOTE_ORDERS)
        assert received is not None
        assert received[0] == StartSession(1, "/d", "", "all", "me", "")
        assert len(received[1]) == 2
        for descriptor in received[1]:
            os.close(descriptor)


def test_link_receive_returns_none_after_the_other_end_closed() -> None:
    link, peer = raw_pair()
    with link:
        peer.close()
        assert link.receive(ZYGOTE_ORDERS) is None


def test_link_receive_returns_messages_of_an_end_that_closed_without_reading_ours() -> None:
    link, peer = raw_pair()
    with link:
        link.send(KillSession(1))
        peer.send(encode(SessionStarted(1, 77)))
        peer.close()  # the kernel reports a reset before it gives out the message
        assert link.receive(ZYGOTE_REPORTS) == (SessionStarted(1, 77), [])
        assert link.receive(ZYGOTE_REPORTS) is None


def test_directory_process_uses_the_same_messages(tmp_path: object) -> None:
    ours, theirs = Link.pair()
    with ours:
        with theirs:
            program = [sys.executable, "-I", "-S", _directories.__file__, str(theirs.fileno())]
            process = subprocess.Popen(program, pass_fds=[theirs.fileno()])
        directory = f"{tmp_path}/d-\udc80"
        os.mkdir(directory)
        ours.send(CountDirectory(directory, 1 << 20))
        assert ours.receive(_messages.DIRECTORY_REPORTS) == (DirectoryCounted(directory, 0), [])
        ours.send(DeleteDirectory(directory))
        assert ours.receive(_messages.DIRECTORY_REPORTS) == (DirectoryDeleted(directory), [])
    assert process.wait(30) == 0
    assert not os.path.exists(directory)


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        KillSession(1).number = 2  # type: ignore[misc]
