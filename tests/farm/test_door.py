# SPDX-License-Identifier: Apache-2.0
"""What comes before a request is answered: limits of time, of size and of connections, names, and the log of it all."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import trustme

import portcall
from farm.running import TRACKER, RunningFarm, running_farm
from portcall import rpc
from portcall.farm._guests import Guest, Guests

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HALVES = (
    b"",
    b"GE",
    b"GET / HTTP/1.1\r\nX: ",
    b"POST /api HTTP/1.1\r\nX: y\r\n",
    b"POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    UPGRADE,
    TRACKER,
    b"\x71\xf2\x0f\x00",
)
DESCRIPTORS = 256


@contextlib.contextmanager
def process(stderr: IO[bytes] | int, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Run a farm that may have few descriptors; yield it with what it says of itself."""
    words = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]
    words += [sys.executable, "-m", "portcall", "farm", "--port", "0", "--store", ":memory:", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr) as farm:
        try:
            assert farm.stdout is not None
            yield farm, json.loads(farm.stdout.readline())
        finally:
            farm.kill()


def ask(port: int, what: bytes) -> bytes:
    """Return what a farm answers before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(what)
        return b"".join(iter(lambda: sock.recv(4096), b""))


def test_farm_log_that_nobody_reads_stops_nothing() -> None:
    read, write = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, read)
        farm, facts = stack.enter_context(process(write))
        port = facts["port"]
        os.close(write)
        for _ in range(3000):
            with contextlib.suppress(ConnectionError):
                assert ask(port, b"GET \x01 nonsense\r\n\r\n").split()[1] == b"400"
        with portcall.farm.connect(f"127.0.0.1:{port}", token="") as client:
            assert client.status()["places"] == []
        farm.send_signal(signal.SIGTERM)
        assert farm.wait(30) == 0


def test_farm_log_has_no_tracebacks_and_no_control_characters(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, process(log) as (farm, facts):
        for what in (
            b"GET / HTTP/1.1\r\nX\x1b[31m: y\r\n\r\n",
            b"GET /\x1b[2J HTTP/9\r\n\r\n",
            b"POST \xff\xfe\r\n\r\n",
        ):
            ask(facts["port"], what)
        farm.send_signal(signal.SIGTERM)
        assert farm.wait(30) == 0
    said = (tmp_path / "log").read_bytes()
    assert said.count(b"refused: ") == 3
    assert b"Traceback" not in said
    assert b"\x1b" not in said


@pytest.mark.parametrize("tls", [False, True])
def test_farm_serves_who_has_a_token_while_others_hold_connections_open(tmp_path: Path, tls: bool) -> None:
    options, secure = [], None
    if tls:
        authority = trustme.CA()
        pem, ca = tmp_path / "farm.pem", tmp_path / "ca.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
        authority.cert_pem.write_to_path(str(ca))
        options, secure = ["--tls-cert", str(pem)], rpc.TLSOptions(ca=str(ca))
    with contextlib.ExitStack() as stack:
        farm, facts = stack.enter_context(process(subprocess.DEVNULL, "--require-tokens", *options))
        port, token = facts["port"], facts["token"]
        open_ = []
        for number in range(400):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"\x16\x03\x01"[: number % 4] if tls else HALVES[number % len(HALVES)])
            open_.append(sock)
            if number % 50 == 49:
                with portcall.farm.connect(f"127.0.0.1:{port}", token=token, tls=secure) as client:
                    assert client.status()["places"] == []
        used = len(os.listdir(f"/proc/{farm.pid}/fd"))
        assert used < DESCRIPTORS
        if not tls:  # they hear why, as far as they speak HTTP
            said = []
            for sock in open_[:100]:
                with contextlib.suppress(ConnectionError):
                    said.append(sock.recv(4096))
            assert any(answer.startswith(b"HTTP/1.1 503") for answer in said)
            assert not any(answer.startswith(b"HTTP/1.1 2") for answer in said)


def test_farm_serves_who_has_a_token_while_idle_peers_of_tvm_hold_connections_open() -> None:
    ping = b"\x71\xf2\x02\x00" + struct.pack("<i", 3) + b"[1]"
    with contextlib.ExitStack() as stack:
        _, facts = stack.enter_context(process(subprocess.DEVNULL, "--require-tokens"))
        port, token = facts["port"], facts["token"]
        for number in range(2 * DESCRIPTORS):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            sock.sendall(ping)
            assert sock.recv(4, socket.MSG_WAITALL) == ping[:4]
            assert sock.recv(5, socket.MSG_WAITALL) == struct.pack("<i", 1) + b"0"
            if number % 100 == 99:
                with portcall.farm.connect(f"127.0.0.1:{port}", token=token) as client:
                    assert client.status()["places"] == []


def test_farm_has_as_many_guests_go_as_descriptors_are_in_use_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda what: (1024, 1024))
    guests, gone = Guests(), list[Guest]()
    last = 1024 - 64

    def come(number: int) -> Guest:
        guest = Guest(guests, f"10.0.0.{number}", lambda why: gone.append(guest))
        return guest

    for number in range(12):
        come(number)
    for descriptor, count in ((last - 1, 0), (last, 1), (last, 1), (last + 1, 2)):
        assert guests.make_room(descriptor)
        assert len(gone) == count
    for guest in gone:
        guest.leave()
        guest.leave()  # as some do
    assert guests.make_room(last + 1)
    assert len(gone) == 4
    assert not guests.make_room(last + 100)


def test_farm_keeps_nothing_of_tls_handshakes_that_were_given_up(tmp_path: Path) -> None:
    (tmp_path / "farm.pem").write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    hello = out.read()

    def all_of_process() -> int:
        return sum(type(thing).__name__ == "SSLProtocol" for thing in gc.get_objects())

    def live() -> int:
        return all_of_process() - others

    gc.collect()  # what earlier tests left
    gc.disable()
    others = all_of_process()
    try:
        with running_farm(tls_certificate=str(tmp_path / "farm.pem")) as farm, contextlib.ExitStack() as stack:
            farm.server._port.guests.most_each = 10
            for number in range(40):
                sock = stack.enter_context(socket.create_connection((farm.host, farm.port), timeout=30))
                sock.sendall(hello[: None if number % 2 else 100])
            farm.until(lambda: 0 < live() <= 10)  # without help of the garbage collector
            stack.close()
            farm.until(lambda: not live())
    finally:
        gc.enable()


@pytest.mark.parametrize("half", HALVES[2:5])
def test_farm_ends_half_requests(monkeypatch: pytest.MonkeyPatch, half: bytes) -> None:
    monkeypatch.setattr("portcall.farm._connection._REQUEST_PATIENCE", 0.3)
    with running_farm() as farm, socket.create_connection((farm.host, farm.port), timeout=30) as sock:
        sock.sendall(half)
        with contextlib.suppress(ConnectionError):
            while not (answer := _received(sock)):
                sock.sendall(b"y")  # a drip is not an end
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "limit"
        assert sock.recv(1) == b""


def _received(sock: socket.socket) -> bytes:
    sock.settimeout(0.02)
    try:
        return sock.recv(4096)
    except TimeoutError:
        return b""
    finally:
        sock.settimeout(30)


def test_farm_ends_connections_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portcall.farm._connection._GUEST_IDLE", 0.1)
    monkeypatch.setattr("portcall.farm._connection._IDLE", 0.2)
    for required in (True, False):
        with running_farm(require_tokens=required) as farm, socket.create_connection((farm.host, farm.port)) as sock:
            sock.settimeout(30)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(12) == (b"HTTP/1.1 401" if required else b"HTTP/1.1 200")
            while sock.recv(4096):
                pass


def test_farm_ends_websockets_that_say_no_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portcall.farm._relay.HELLO_PATIENCE", 0.1)
    monkeypatch.setattr("portcall.farm._websocket.LAST_WORDS", 0.1)
    with running_farm() as farm, socket.create_connection((farm.host, farm.port), timeout=30) as sock:
        sock.sendall(UPGRADE)
        assert sock.recv(12) == b"HTTP/1.1 101"
        while sock.recv(4096):
            pass
        farm.until(lambda: not farm.server.relay.peers)


def test_farm_reads_large_bodies_of_those_it_knows_alone() -> None:
    with running_farm(require_tokens=True) as farm:
        token = farm.do(lambda: farm.server.access.make("test", user="ann", role="user"))
        body = json.dumps({"do": "status", "more": "x" * 500_000}).encode()
        for headers, status in (({}, 413), ({"Authorization": f"Bearer {token}"}, 200)):
            with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=30)) as connection:
                with contextlib.suppress(ConnectionError):
                    connection.request("POST", "/api", body, {"Content-Type": "application/json", **headers})
                assert connection.getresponse().status == status
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=30)) as connection:
            connection.request("POST", "/login", b"token=" + b"x" * 100_000, form)
            assert connection.getresponse().status == 413


def test_farm_expands_no_bodies() -> None:
    body = zlib.compress(b'{"do": "status"}')
    with running_farm() as farm, contextlib.closing(http.client.HTTPConnection(farm.host, farm.port)) as connection:
        headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
        connection.request("POST", "/api", body, headers)
        assert connection.getresponse().status == 400


# ---- Names ----


@pytest.fixture(scope="module")
def named() -> Iterator[RunningFarm]:
    with running_farm(names=("farm.example.org",)) as farm:
        yield farm


OWN = socket.gethostname()


@pytest.mark.parametrize("path", ["/", "/ws", "/api", "/healthz", "/login", "/nothing"])
@pytest.mark.parametrize("name", ["evil.example", "evil.example:9190", "127.0.0.1.evil.example", "localhost.evil"])
def test_farm_refuses_foreign_names(named: RunningFarm, path: str, name: str) -> None:
    assert _status(named, path, name) == 421


@pytest.mark.parametrize(
    "name",
    ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9190", "10.1.2.3:9190", OWN, f"{OWN.partition('.')[0]}.local",
     "farm.example.org:80", "farm.example.org."],
)  # fmt: skip
def test_farm_answers_to_its_own_names(named: RunningFarm, name: str) -> None:
    assert _status(named, "/", name) == 200


def _status(farm: RunningFarm, path: str, name: str) -> int:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=30)) as connection:
        connection.request("GET", path, headers={"Host": name})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status != 421 or "--name" in text
        return answer.status


def test_farm_name_refusal_reaches_commands_as_an_error(named: RunningFarm) -> None:
    with contextlib.closing(http.client.HTTPConnection(named.host, named.port, timeout=30)) as connection:
        headers = {"Host": "evil.example", "Content-Type": "application/json"}
        connection.request("POST", "/api", b'{"do": "status"}', headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (421, "name")
