# SPDX-License-Identifier: Apache-2.0
"""The proxy of a farm, over TCP and WebSocket, with hand-made peers and apache-tvm's own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from farm.boards import board
from farm.running import RunningFarm, TrackerPeer, running_farm
from farm.test_tracker_tvm import first_line, tvm
from portcall import errors, rpc

MAGIC = 0xFF271
DUPLICATE = 0xFF272
MISMATCH = 0xFF273


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


def hello(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<ii", MAGIC, len(data)) + data


class Peer:
    """A hand-made peer of the proxy."""

    def __init__(self, farm: RunningFarm, text: str | bytes | None = None) -> None:
        self.sock = socket.create_connection((farm.host, farm.port), timeout=20)
        if text is not None:
            self.sock.sendall(hello(text))

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError(data)
            data += piece
        return data

    def partner(self) -> str:
        code, size = struct.unpack("<ii", self.receive(8))
        assert code == MAGIC
        return self.receive(size).decode()

    def ended(self) -> bytes:
        """Return what comes until the end."""
        return b"".join(iter(lambda: self.sock.recv(4096), b""))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def joined(farm: RunningFarm, count: int = 1) -> None:
    farm.until(lambda: len(farm.state.places) == count)


def known(farm: RunningFarm, key: str) -> None:
    """Let the farm see a server of a key that leaves at once."""
    with Peer(farm, f"server:{key}"):
        joined(farm)
    joined(farm, 0)


@pytest.mark.parametrize("first", ["server", "client"])
def test_proxy_exchanges_hellos_in_either_order(farm: RunningFarm, first: str) -> None:
    known(farm, "k1")
    texts = {"server": "server:k1 -portcall=1 -nonce=00ff", "client": "client:k1 -timeout=5"}
    with Peer(farm, texts[first]) as one:
        farm.until(lambda: farm.state.places or farm.state.queue.size)
        other = "client" if first == "server" else "server"
        with Peer(farm, texts[other]) as two:
            server, client = (one, two) if first == "server" else (two, one)
            assert server.partner() == texts["client"]
            assert client.partner() == texts["server"]
            client.sock.sendall(b"from the client")
            assert server.receive(15) == b"from the client"
            server.sock.sendall(b"from the server")
            assert client.receive(15) == b"from the server"
            client.sock.close()
            assert server.ended() == b""
    farm.until(lambda: not farm.state.leases and not farm.state.places)


def test_proxy_counts_key_length_in_bytes(farm: RunningFarm) -> None:
    with Peer(farm, "server:schlüssel") as server, Peer(farm, "client:schlüssel") as client:
        assert server.partner() == "client:schlüssel"
        assert client.partner() == "server:schlüssel"


def test_proxy_queues_servers_of_one_key(farm: RunningFarm) -> None:
    with Peer(farm, "server:k") as one, Peer(farm, "server:k") as two:
        joined(farm, 2)
        with Peer(farm, "client:k") as a, Peer(farm, "client:k") as b:
            assert {a.partner(), b.partner()} == {"server:k"}
            assert {one.partner(), two.partner()} == {"client:k"}


def test_proxy_refuses_a_client_whose_key_no_server_has_had(farm: RunningFarm) -> None:
    with Peer(farm, "server:k"):
        joined(farm)
        with Peer(farm, "client:kk") as client:
            assert struct.unpack("<i", client.ended()) == (MISMATCH,)
        with pytest.raises(errors.KeyMismatchError):
            rpc.connect(farm.host, farm.port, key="kk", token="", timeout=300)
    assert not farm.state.leases


def test_proxy_lets_one_client_of_a_key_wait(farm: RunningFarm) -> None:
    known(farm, "k")
    with Peer(farm, "client:k") as first:
        farm.until(lambda: farm.state.queue.size == 1)
        with Peer(farm, "client:k -timeout=5") as second:
            assert struct.unpack("<i", second.ended()) == (DUPLICATE,)
        with pytest.raises(errors.KeyMismatchError, match="another client"):
            rpc.connect(farm.host, farm.port, key="k", token="", timeout=300)
        with Peer(farm, "server:k"):
            assert first.partner() == "server:k"
    farm.until(lambda: not farm.state.leases)


def test_proxy_withdraws_a_server_that_leaves(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as tracker:
        with Peer(farm, "server:k"):
            joined(farm)
            assert '"server:k"' in tracker.ask("[6]")
        joined(farm, 0)
        assert '"server:k"' not in tracker.ask("[6]")


def test_proxy_match_key_connects_once(farm: RunningFarm) -> None:
    with Peer(farm, "server:k") as server, TrackerPeer(farm) as tracker:
        joined(farm)
        _, (host, port, key) = json.loads(tracker.ask('[4, "k", "", 1]'))[:2]
        assert (host, port) == (farm.host, farm.port)
        with Peer(farm, f"client:{key} -timeout=20") as client:
            assert server.partner() == f"client:{key} -timeout=20"
            assert client.partner() == "server:k"
            with Peer(farm, f"client:{key.split()[0]} -portcall=1") as second:
                assert struct.unpack("<i", second.ended()) == (MISMATCH,)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<ii", MAGIC, 0),
        struct.pack("<ii", MAGIC, 1 << 30),
        struct.pack("<ii", MAGIC, -1),
        hello("server:"),
        hello(" "),
        hello(b"server:\xff\xfe"),
        hello("server:k") + b"early",
        hello("client:k:" + "0" * 32 + " -portcall=1"),
        hello("server:guess:00 -relay=1"),
    ],
)
def test_proxy_refuses_malformed_hellos(farm: RunningFarm, data: bytes) -> None:
    with Peer(farm) as peer:
        peer.sock.sendall(data)
        assert peer.ended() in (b"", struct.pack("<i", MISMATCH))
    farm.until(lambda: not farm.state.places and not farm.state.leases)


class WebSocketPeer(Peer):
    """The same by WebSocket; what comes is for ``receive`` bytes of frames, headers included."""

    def __init__(self, farm: RunningFarm, text: str) -> None:
        super().__init__(farm)
        self.sock.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {farm.host}:{farm.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.receive(1)
        data = hello(text)
        self.sock.sendall(struct.pack("<BB4x", 0x82, 0x80 | len(data)) + data)


@pytest.mark.parametrize("reader", [Peer, WebSocketPeer])
def test_proxy_stops_reading_while_the_other_side_takes_nothing(farm: RunningFarm, reader: type[Peer]) -> None:
    with reader(farm, "server:k") as server:
        joined(farm)
        with Peer(farm, "client:k") as client:
            assert client.partner() == "server:k"
            client.sock.settimeout(1)  # far longer than the farm needs to take what it can
            sent, block = 0, b"x" * (1 << 20)
            with contextlib.suppress(TimeoutError):
                while sent < 256 << 20:
                    sent += client.sock.send(block)
            assert sent < 64 << 20  # what the sockets hold, and not more
            server.sock.settimeout(20)
            server.receive(sent)
            client.sock.settimeout(20)
            client.sock.sendall(b"the end")
            client.sock.shutdown(socket.SHUT_WR)
            assert b"the end" in server.ended()[-40:]


@pytest.mark.parametrize("reader", [Peer, WebSocketPeer])
@pytest.mark.parametrize("writer", [Peer, WebSocketPeer])
def test_proxy_ends_a_pair_whose_source_was_reset_while_the_sink_takes_nothing(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch, writer: type[Peer], reader: type[Peer]
) -> None:
    monkeypatch.setattr("portcall.farm._splice.PATIENCE", 0.1)
    if reader is WebSocketPeer:
        monkeypatch.setattr("portcall.farm._websocket.PING", 2)
    with reader(farm, "server:k"):
        joined(farm)
        with writer(farm, "client:k") as client:
            farm.until(lambda: farm.server.relay.pairs)
            block = bytes(1 << 20)
            if writer is WebSocketPeer:
                block = struct.pack(">BBQ4x", 0x82, 0x80 | 127, len(block)) + block
            client.sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                client.sock.sendall(block * 64)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        farm.until(lambda: not farm.server.relay.peers and not farm.state.places)


# ---- WebSocket ----


@contextlib.asynccontextmanager
async def websocket(farm: RunningFarm, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with aiohttp.ClientSession() as session:
        yield await session.ws_connect(f"ws://{farm.host}:{farm.port}/ws", **options)


async def read(socket: aiohttp.ClientWebSocketResponse, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await socket.receive_bytes()
    return data


def test_proxy_connects_websocket_server_and_tcp_client(farm: RunningFarm) -> None:
    async def serve(pieces: list[bytes]) -> bytes:
        async with websocket(farm) as socket:
            for piece in pieces:
                await socket.send_bytes(piece)
            answer = await read(socket, 8 + len("client:wasm"))
            assert answer == hello("client:wasm")
            await socket.send_bytes(b"y" * (11 << 20))  # more than TVM's proxy takes at once
            return await read(socket, 5000)

    whole = hello("server:wasm")
    outcome: list[bytes] = []
    thread = threading.Thread(target=lambda: outcome.append(asyncio.run(serve([whole[:4], whole[4:8], whole[8:]]))))
    thread.start()
    joined(farm)
    with Peer(farm, "client:wasm") as client:
        assert client.partner() == "server:wasm"
        assert client.receive(11 << 20) == b"y" * (11 << 20)
        client.sock.sendall(b"z" * 5000)
        thread.join()
        assert outcome == [b"z" * 5000]
        assert client.ended() == b""


def test_proxy_refusal_by_websocket_has_code_and_length(farm: RunningFarm) -> None:
    async def ask() -> bytes:
        async with websocket(farm) as socket:
            await socket.send_bytes(hello("client:k:" + "0" * 32))
            return await read(socket, 8)

    assert asyncio.run(ask()) == struct.pack("<ii", MISMATCH, 0)


def test_proxy_keeps_little_of_a_message_before_the_hello(farm: RunningFarm) -> None:
    with Peer(farm) as peer:
        peer.sock.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {farm.host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode()
        )
        assert b" 101 " in peer.sock.recv(4096)
        with pytest.raises(ConnectionError):
            peer.sock.sendall(b"\x82\xff" + struct.pack(">Q", 60 << 20) + bytes(60 << 20))


ORIGINS = [("http://evil.example", False), ("null", False), ("own", True), (None, True)]


@pytest.mark.parametrize(("origin", "allowed"), ORIGINS)
def test_proxy_refuses_cross_site_websockets(farm: RunningFarm, origin: str | None, allowed: bool) -> None:
    named = f"http://{farm.host}:{farm.port}" if origin == "own" else origin

    async def join() -> None:
        async with websocket(farm, **({"origin": named} if named else {})) as socket:
            await socket.close()

    if allowed:
        asyncio.run(join())
        return
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        asyncio.run(join())
    assert caught.value.status == 403


def test_proxy_text_message_ends_the_session(farm: RunningFarm) -> None:
    async def talk() -> None:
        async with websocket(farm) as socket:
            await socket.send_bytes(hello("server:k"))
            await read(socket, 8 + len("client:k"))
            await socket.send_str("text")
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    thread = threading.Thread(target=lambda: asyncio.run(talk()))
    thread.start()
    joined(farm)
    with Peer(farm, "client:k") as client:
        assert client.partner() == "server:k"
        assert client.ended() == b""
    thread.join()


# ---- Our own clients with a plain key ----


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "through the farm"])
def test_proxy_leases_a_board_for_a_client_with_a_plain_key(farm: RunningFarm, relay: bool) -> None:
    with board(farm, relay=relay):
        for _ in range(2):  # the lease ends with the session
            with rpc.connect(farm.host, farm.port, key="k", token="", timeout=300) as session:
                assert session["portcall.rpc.machine"] is not None
                assert session.machine() is not None  # which portcall alone can say
                farm.until(lambda: [len(lease.sessions) for lease in farm.state.leases.values()] == [1])
            farm.until(lambda: not farm.state.leases)


def test_proxy_serves_tvms_clients_with_boards_and_clients_wait_for_one(farm: RunningFarm) -> None:
    known(farm, "k")
    with Peer(farm, "client:k") as client:
        farm.until(lambda: farm.state.queue.size)
        with board(farm):
            assert client.partner().startswith("server:k")


def test_proxy_takes_one_client_and_one_agent_for_a_match_key(farm: RunningFarm) -> None:
    def offer() -> str:
        farm.server.hub.session_keys["k:1"] = "lease"
        return "k:1"

    key = farm.do(offer)
    with Peer(farm, f"client:{key}") as first:
        farm.until(lambda: farm.server.relay.early)
        with Peer(farm, f"client:{key}") as second:
            assert struct.unpack("<i", second.ended()) == (DUPLICATE,)
        with Peer(farm, f"server:{key} -relay=1") as agent:
            assert agent.partner() == f"client:{key}"
            agent.sock.sendall(b"hello")
            assert first.receive(5) == b"hello"
    key = farm.do(offer)
    with Peer(farm, f"server:{key} -relay=1") as agent:
        farm.until(lambda: farm.server.relay.waiting)
        with Peer(farm, f"server:{key} -relay=1") as second:
            assert struct.unpack("<i", second.ended()) == (MISMATCH,)
        with Peer(farm, f"client:{key}"):
            assert agent.partner() == f"client:{key}"


# ---- TVM's own ----


@pytest.mark.peers
def test_proxy_serves_tvms_server_and_client_repeatedly(farm: RunningFarm) -> None:
    with tvm(farm, "proxied", "phone") as server:
        assert first_line(server) == "ready"
        joined(farm)
        with tvm(farm, "client", "phone", 3) as client:
            assert client.wait(300) == 0
        joined(farm)


@pytest.mark.peers
def test_proxy_serves_tvms_websocket_server(farm: RunningFarm) -> None:
    with tvm(farm, "websocket", "phone") as server:
        joined(farm)
        with tvm(farm, "client", "phone", 1) as client:
            assert client.wait(300) == 0
        assert server.wait(300) == 0  # it serves one session
    farm.until(lambda: not farm.state.places and not farm.state.leases)


def test_proxy_serves_a_pair_for_which_there_are_no_descriptors(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [os.dup]

    def dup(descriptor: int) -> int:
        if not left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return left.pop()(descriptor)

    with Peer(farm, "server:k") as server:
        joined(farm)
        monkeypatch.setattr("portcall.farm._relay.os.dup", dup)
        with Peer(farm, "client:k") as client:
            assert client.partner() == "server:k"
            assert server.partner() == "client:k"
            client.sock.sendall(b"there")
            assert server.receive(5) == b"there"
        assert server.ended() == b""
    farm.until(lambda: not farm.state.places and not farm.state.leases)


def test_proxy_refuses_keys_that_no_link_could_have(farm: RunningFarm) -> None:
    for length, taken in ((601, False), (600, True)):
        with Peer(farm, f"server:{length * chr(0x1F600)}") as server:
            if not taken:
                assert struct.unpack("<i", server.receive(4)) == (MISMATCH,)
                continue
            joined(farm)
            (id,) = farm.state.places
            connection = http.client.HTTPConnection(farm.host, farm.port, timeout=20)
            connection.request("GET", f"/place/{quote(id, safe='')}")
            assert connection.getresponse().status == 200
            connection.close()
