# SPDX-License-Identifier: Apache-2.0
"""Functions of a process that other languages embed the core in: `portcall.rpc.Listen` and the server's half of the
handshake, `portcall.rpc.Admit`."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import rpc
from portcall.errors import PortcallError, SessionTimeoutError
from rpc import raw_client as raw

Open = Callable[..., tuple[str, list[tuple[str, int, str]]]]


@pytest.fixture
def listen(register: Callable[..., Any]) -> Iterator[Open]:
    closers = []
    register("demo.add", lambda a, b: a + b)
    register("demo.apply", lambda f, x: f(x))
    register("demo.sum", lambda x: float(x.numpy().sum()))

    def fail() -> None:
        raise IndexError("no such place")

    register("demo.fail", fail)
    register("hidden.f", lambda: 1)

    def begin(key: str = "", token: str = "", timeout: float = 10.0) -> tuple[str, list[tuple[str, int, str]]]:
        told: list[tuple[str, int, str]] = []
        port, close = portcall.get_global_func("portcall.rpc.Listen")(
            "127.0.0.1", 0, ["demo.*"], key, token, timeout, lambda *facts: told.append(facts)
        )
        closers.append(close)
        return f"127.0.0.1:{port}", told

    yield begin
    for close in closers:
        assert close(30.0) == 0


def test_listen_serves_functions_of_the_process(listen: Open) -> None:
    address, told = listen()
    with rpc.connect(address) as remote, rpc.connect(address) as other:
        assert remote["demo.add"](1, 2) == 3
        assert other["demo.add"]("a", "b") == "ab"
        assert remote["demo.apply"](lambda x: x + 1, 4) == 5
        assert remote["demo.sum"](remote.tensor(np.arange(5.0))) == 10.0
        with pytest.raises(IndexError, match="place"):
            remote["demo.fail"]()
        with pytest.raises(PortcallError):
            remote["hidden.f"]
        assert remote["demo.add"](1, 2) == 3
    assert {what for what, _, _ in told} >= {"opened"}


def test_listen_admits_who_knows_key_and_token(listen: Open) -> None:
    address, _ = listen("board", "a long enough token")
    with rpc.connect(address, key="board", token="a long enough token") as remote:
        assert remote["demo.add"](1, 2) == 3
    for key, token in (("board", "another token 1234"), ("other", "a long enough token"), ("board", None)):
        with pytest.raises(PortcallError):
            rpc.connect(address, key=key, token=token)
    with rpc.connect(address, key="board", token="a long enough token") as remote:
        assert remote["demo.add"](1, 2) == 3


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.0\r\n\r\n", struct.pack("<ii", raw.MAGIC, 1 << 30), struct.pack("<ii", raw.MAGIC, -1)]
)
def test_listen_refuses_what_is_no_client(listen: Open, data: bytes) -> None:
    address, _ = listen()
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(data)
        if len(data) < 4:
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it has not read all that was sent
            assert sock.recv(1) == b""
    with rpc.connect(address) as remote:
        assert remote["demo.add"](1, 2) == 3


def test_listen_closes_open_sessions(listen: Open, register: Callable[..., Any]) -> None:
    port, close = portcall.get_global_func("portcall.rpc.Listen")("127.0.0.1", 0, ["demo.*"], "", "", 10.0, None)
    with rpc.connect(f"127.0.0.1:{port}") as remote:
        assert remote["demo.add"](1, 2) == 3
        assert close(30.0) == 0
        with pytest.raises(PortcallError):
            remote["demo.add"](1, 2)
    with pytest.raises(PortcallError):
        rpc.connect(f"127.0.0.1:{port}", timeout=5)
    assert close(30.0) == 0


def test_listen_refuses_a_port_that_is_taken_or_none() -> None:
    listen = portcall.get_global_func("portcall.rpc.Listen")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1], [], "", "", 10.0, None)
    for port in (-1, 65536):
        with pytest.raises(ValueError, match=str(port)):
            listen("127.0.0.1", port, [], "", "", 10.0, None)


def test_admit_gives_the_features_of_both() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(hello("client:k -portcall=1 -features=callback,output,post,new"))
        assert list(admit(theirs, "k")) == ["callback", "post"]
        assert b"server:k -portcall=1 -features=callback,post" in ours.recv(4096)


@pytest.mark.parametrize(
    "words", ["client:other", "client:k -portcall=99 -oldest=99", "server:k", "client:k -timeout=x"]
)
def test_admit_refuses(words: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(hello(words))
        with pytest.raises(PortcallError):
            admit(theirs, "k")


def test_admit_waits_no_longer_than_it_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SessionTimeoutError):
        admit(theirs, "k", timeout=0.01)


def test_listen_answers_a_tvm_client(listen: Open) -> None:
    address, _ = listen()
    with raw.RawClient(address) as client:
        client.open()
        add = client.function("demo.add")
        _, body = client.ask(raw.frame(raw.CALL, struct.pack("<Q", add) + raw.sequence(raw.integer(1), raw.integer(2))))
        assert body[-8:] == struct.pack("<q", 3)


def hello(words: str) -> bytes:
    return struct.pack("<ii", raw.MAGIC, len(words)) + words.encode()


def admit(sock: socket.socket, key: str, token: str = "", timeout: float = 10.0) -> Any:
    return portcall.get_global_func("portcall.rpc.Admit")(sock.fileno(), key, token, timeout)
