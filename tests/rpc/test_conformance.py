# SPDX-License-Identifier: Apache-2.0
"""The vectors for other implementations are what our own two ends write and read; the page shows their tables."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import portcall
from portcall import errors, get_global_func, rpc, testing
from portcall.rpc._conformance import answer
from portcall.rpc.wire import _handshake, _layouts
from portcall.rpc.wire._facts import FEATURES, MISMATCH
from rpc.raw_client import MAGIC, RETURN, RawClient, frame, pointer, sequence
from rpc.relay import read, read_frame, saying
from rpc.serving import FUNCTIONS, Serving

VECTORS = testing.conformance()
VALUES = [vector for vector in VECTORS if vector["feature"] == "values"]
SERVED = FUNCTIONS + '\nregister("same")(lambda value: value)\n'


def test_conformance_vectors_are_json_and_cover_each_feature() -> None:
    assert json.loads(json.dumps(VECTORS)) == VECTORS
    with_bytes = set(FEATURES) - {"alive", "pipeline"}  # which are about when frames come
    assert {vector["feature"] for vector in VECTORS} == {"", *with_bytes}
    assert {layout.feature for layout in _layouts.LAYOUTS} == with_bytes


def test_conformance_vectors_of_the_hello_are_read_by_our_ends() -> None:
    hello, reply = (bytes.fromhex(vector["hex"]) for vector in VECTORS[:2])
    read_hello = _handshake.HelloReader().feed(hello)
    read_reply = _handshake.ReplyReader("key").feed(reply)
    assert isinstance(read_hello, _handshake.Hello)
    assert isinstance(read_reply, _handshake.Hello)
    assert read_hello.features == set(VECTORS[0]["meaning"]["features"])
    assert read_reply.options["secret"] == "s"


def reply_to(server: Serving, hello: bytes) -> tuple[int, bytes]:
    """The code of a server's reply, and its words where it has some."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(hello)
        (code,) = struct.unpack("<i", read(sock, 4))
        return code, read(sock, struct.unpack("<i", read(sock, 4))[0]) if code == MAGIC else b""


TIMES = [vector for vector in VECTORS if vector["name"] == "time of a session"]


@pytest.mark.parametrize("vector", TIMES, ids=lambda vector: vector["meaning"]["text"])
def test_servers_read_the_times_of_the_conformance_vectors(serving_functions: Serving, vector: dict[str, Any]) -> None:
    data, seconds = bytes.fromhex(vector["hex"]), vector["meaning"]["seconds"]
    hello = _handshake.HelloReader().feed(data)
    assert isinstance(hello, _handshake.Hello)
    if seconds is None:
        with pytest.raises(errors.RemoteProtocolError):
            _ = hello.timeout
    else:
        assert hello.timeout == seconds
    code, _ = reply_to(serving_functions, data)
    assert code == (MISMATCH if seconds is None else MAGIC)


KEYS = [vector for vector in VECTORS if vector["name"] == "key"]


@pytest.mark.parametrize("vector", KEYS, ids=lambda vector: ascii(vector["meaning"]["key"]))
def test_keys_of_the_conformance_vectors_are_sent_and_read_alike(
    serving_functions: Serving, vector: dict[str, Any]
) -> None:
    """The server has the key k, so it lets in who says that and more words."""
    data, key, whole = bytes.fromhex(vector["hex"]), vector["meaning"]["key"], vector["meaning"]["whole"]
    assert reply_to(serving_functions, data)[0] == (MISMATCH if whole else MAGIC)
    hello = _handshake.HelloReader().feed(data)
    assert isinstance(hello, _handshake.Hello)
    assert (hello.key == key) == whole
    with pytest.raises(errors.KeyMismatchError if whole else ValueError):
        rpc.connect(serving_functions.address, key=key)
    with pytest.raises(errors.ConnectError if whole else ValueError):
        get_global_func("portcall.rpc.Connect")(serving_functions.address, key, "", 10.0, 0.0)


FEATURES_SAID = {role: [v for v in VECTORS if v["name"] == f"features of the {role}"] for role in ("client", "server")}


@pytest.mark.parametrize("vector", FEATURES_SAID["client"], ids=lambda vector: vector["meaning"]["text"])
def test_server_uses_the_features_of_the_conformance_vectors(
    serving_functions: Serving, vector: dict[str, Any]
) -> None:
    _, words = reply_to(serving_functions, bytes.fromhex(vector["hex"]))
    features = _handshake.parse_words(words, "server").options.get("features", "")
    assert sorted(filter(None, features.split(","))) == vector["meaning"]["features"]


@pytest.mark.parametrize("vector", FEATURES_SAID["server"], ids=lambda vector: vector["meaning"]["text"])
def test_clients_use_the_features_of_the_conformance_vectors(vector: dict[str, Any]) -> None:
    data, features = bytes.fromhex(vector["hex"]), set(vector["meaning"]["features"])

    def serve(sock: Any) -> None:
        read(sock, struct.unpack("<ii", read(sock, 8))[1])
        sock.sendall(data)
        read_frame(sock)
        sock.sendall(frame(RETURN, struct.pack("<ii", 1, 0)))
        read_frame(sock)
        sock.sendall(frame(RETURN, sequence(pointer(1))))  # a function
        read_frame(sock)

    with saying(serve, shake_hands=False) as port, rpc.connect("127.0.0.1", port, timeout=30) as session:
        assert session.features == features
    with saying(serve, shake_hands=False) as port:  # a client of C++ sends functions where the server has callbacks
        root = get_global_func("portcall.rpc.Connect")(f"127.0.0.1:{port}", "", "", 30.0, 0.0)
        try:
            with pytest.raises(errors.SessionBrokenError if "callback" in features else TypeError):
                root["f"](print)
        finally:
            get_global_func("portcall.rpc.Close")(root)


@pytest.mark.parametrize("vector", VALUES, ids=lambda vector: vector["name"])
def test_server_returns_the_values_of_the_conformance_vectors(server: Serving, vector: dict[str, Any]) -> None:
    value = bytes.fromhex(vector["hex"])
    with RawClient(server.address).open(options=" -portcall=1 -features=values") as client:
        code, body = client.call("demo.same", value)
    assert code == RETURN
    assert body[16:] == value


def test_server_takes_the_posted_requests_of_the_conformance_vectors(server: Serving) -> None:
    posted, sync, fetch = (bytes.fromhex(vector["hex"]) for vector in VECTORS if vector["feature"] == "post")
    with RawClient(server.address).open(options=" -portcall=1 -features=post") as client:
        function = next(vector["meaning"]["function"] for vector in VECTORS if vector["feature"] == "post")
        assert client.function("demo.pid") == function
        client.send(posted)
        assert client.ask(sync) == (RETURN, sequence(struct.pack("<i", 0)))
        code, body = client.ask(fetch)
        assert (code, body[:8]) == (RETURN, struct.pack("<ii", 2, 1))


@contextlib.contextmanager
def answering(data: bytes) -> Iterator[rpc.Session]:
    """A session whose every function gives this answer."""
    words = b"server: -portcall=1 -features=output,traceback,values"

    def serve(sock: Any) -> None:
        read(sock, struct.unpack("<ii", read(sock, 8))[1])
        sock.sendall(struct.pack("<ii", MAGIC, len(words)) + words)
        read_frame(sock)
        sock.sendall(frame(RETURN, struct.pack("<ii", 1, 0)))
        read_frame(sock)
        sock.sendall(frame(RETURN, sequence(pointer(5))))
        read_frame(sock)
        sock.sendall(data)
        with contextlib.suppress(OSError):
            while sock.recv(4096):
                pass

    lines: list[tuple[str, str]] = []
    with saying(serve, shake_hands=False) as port:
        options = rpc.ConnectOptions(on_output=lambda line, stream: lines.append((line, stream)))
        with rpc.connect("127.0.0.1", port, timeout=30, options=options) as session:
            session.lines = lines  # type: ignore[attr-defined]
            yield session


@pytest.mark.parametrize("vector", VALUES, ids=lambda vector: vector["name"])
def test_client_reads_the_values_of_the_conformance_vectors(vector: dict[str, Any]) -> None:
    with answering(answer(bytes.fromhex(vector["hex"]))) as remote:
        value = remote["f"]()
    assert isinstance(value, (portcall.Array, portcall.Shape))
    assert len(value) == len(
        vector["meaning"].get("shape", ()) if isinstance(vector["meaning"], dict) else vector["meaning"]
    )


def test_client_reads_the_output_and_the_exception_of_the_conformance_vectors() -> None:
    frames = [bytes.fromhex(vector["hex"]) for vector in VECTORS if vector["feature"] in ("output", "traceback")]
    with answering(b"".join(frames)) as remote:
        func = remote["f"]
        with pytest.raises(ValueError, match="boom") as raised:
            func()
        lines = remote.lines  # type: ignore[attr-defined]
    assert isinstance(raised.value, errors.RemoteError)
    assert 'File "f.py", line 3, in f' in raised.value.remote_traceback
    assert [stream for _, stream in lines] == ["stdout", "stderr", "stderr", "stderr"]
    assert "zwölf" in lines[2][0]


def test_the_page_on_the_wire_has_the_tables_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs/wire.md").read_text()
    assert _layouts.markdown() in page
