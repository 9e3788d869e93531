# SPDX-License-Identifier: Apache-2.0
"""Servers and farms that announce themselves: found by us and by zeroconf's own reader, whatever strangers say."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from zeroconf import IPVersion, Zeroconf

from portcall.cli._announce import KINDS, MOST_FOUND, MOST_TEXT, read, shown
from portcall.cli._store import Remote, write_remotes

Invoke = Callable[..., Result]
HERE = "127.0.0.1"
TOKEN = "t0ken-of-a-server-that-is-found-by-others"


@pytest.fixture(autouse=True)
def alone_in_the_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All workers have one loopback interface, where each test would find what another announces."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(folder / "network", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def running(*words: str) -> Iterator[dict[str, Any]]:
    """A server or a farm of this machine; gives what it says when it is ready."""
    command = [sys.executable, "-m", "portcall", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def network() -> Iterator[Zeroconf]:
    other = Zeroconf(interfaces=[HERE], ip_version=IPVersion.V4Only)
    try:
        yield other
    finally:
        other.close()


def scanned(invoke: Invoke, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """What a scan finds, once that is what is waited for; what never comes ends with the test's timeout."""
    while True:
        done = invoke("remote", "scan", "--for", "1s", "--interface", HERE, "--json")
        assert done.exit_code == 0, done.output
        found: list[dict[str, Any]] = json.loads(done.stdout)["found"]
        if wanted(found):
            return found


def test_scan_finds_a_server_with_its_key_and_never_its_token(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    words = (
        "serve",
        "--port",
        "0",
        "--key",
        "rasp4",
        "--token-file",
        str(tmp_path / "token"),
        "--announce",
        "--silent",
    )
    with running(*words) as ready:
        write_remotes({"mine": Remote(ready["address"]), "rasp4": Remote("127.0.0.1:1")})
        port = ready["port"]
        (one,) = scanned(invoke, lambda found: any(each["address"].endswith(f":{port}") for each in found))
        facts = (one["kind"], one["key"], one["token"], one["tls"], one["address"], one["saved_as"])
        assert facts == ("server", "rasp4", True, False, ready["address"], ["mine"])
        assert TOKEN not in json.dumps(one)
        with network() as other:  # the library's own reader
            info = other.get_service_info(KINDS["server"], f"{one['name']}.{KINDS['server']}", 10_000)
        assert info is not None
        assert info.port == port
        assert set(info.properties) == {b"key", b"token", b"tls", b"portcall"}
        assert TOKEN.encode() not in (info.text or b"")
    assert scanned(invoke, lambda found: not found) == []  # it is withdrawn


def test_scan_finds_a_farm(invoke: Invoke, tmp_path: Path) -> None:
    words = ("farm", "--port", "0", "--store", str(tmp_path / "farm.db"), "--announce", "--silent")
    with running(*words) as ready:
        (one,) = scanned(invoke, lambda found: any(each["kind"] == "farm" for each in found))
        assert (one["address"], one["key"], one["token"]) == (ready["address"], "", False)


def test_scan_is_not_steered_by_what_strangers_announce(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    write_remotes({"rasp": Remote("192.0.2.7:9090", token="secret"), "lab": Remote("board.local:9090")})
    kind, evil = KINDS["server"], "\x1b[2J\u202e[red]rasp\nlab\x9b"
    facts = {b"key": evil.encode() + b"k" * 150, b"token": b"secret", b"\xff": None, b"portcall": b"\x07\xff"}
    info = SimpleNamespace(port=9090, properties=facts, parsed_scoped_addresses=lambda: [HERE])
    found = [one for name in (evil, "rasp", "lab") if (one := read(kind, f"{name}.{kind}", info))]
    assert len(found) == 3
    for one in found:
        assert all(len(text) <= MOST_TEXT and text.isprintable() for text in (one.name, one.key, one.portcall))
        assert one.token is False
    monkeypatch.setattr(importlib.import_module("portcall.cli.remote"), "scan", lambda *_: (found, 7))
    text = invoke("remote", "scan").stdout
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "secret" not in text
    assert [each["saved_as"] for each in json.loads(invoke("remote", "scan", "--json").stdout)["found"]] == [[], [], []]
    assert "7 more" in text
    info.parsed_scoped_addresses = lambda: ["0.0.0.0", "224.0.0.1", "::"]
    assert read(kind, f"rasp.{kind}", info) is None
    info.parsed_scoped_addresses = list
    assert read(kind, f"rasp.{kind}", info) is None


def labels(*parts: bytes) -> bytes:
    return b"".join(bytes([len(part)]) + part for part in parts) + b"\0"


def packet(name: bytes, key: bytes, with_address: bool) -> bytes:
    """An announcement in DNS's own form, of a name that need not be allowed."""
    kind, host = (b"_portcall", b"_tcp", b"local"), (b"h" + name[:20], b"local")
    entry = f"{len(key) + 4:c}key=".encode("latin-1") + key
    records = [(labels(*kind), 12, labels(name, *kind))]
    if with_address:
        records += [
            (labels(name, *kind), 33, bytes(4) + (9090).to_bytes(2, "big") + labels(*host)),
            (labels(name, *kind), 16, entry),
            (labels(*host), 1, socket.inet_aton(HERE)),
        ]
    body = b"".join(owner + struct.pack(">HHIH", code, 1, 120, len(data)) + data for owner, code, data in records)
    return struct.pack(">6H", 0, 0x8400, 0, len(records), 0, 0) + body


@contextlib.contextmanager
def flooding(packets: list[bytes]) -> Iterator[None]:
    """Send them again and again on the loopback interface, in a thread."""
    over = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HERE))
            while not over.is_set():
                for each in packets:
                    sock.sendto(each, ("224.0.0.251", 5353))
                    over.wait(0.001)  # a network drops what comes at once

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_scan_of_a_network_of_strangers_shows_some_in_plain_text(invoke: Invoke) -> None:
    names = [
        b"--rpc=evil",
        b"\x1b[2J",
        b"\xe2\x80\xaerasp",
        b"[red]x[/red]",
        b"\xff",
        *(b"f%d" % i for i in range(400)),
    ]
    with flooding([packet(name, b"[bold]\x1b]0;x\x07\xe2\x80\xae", True) for name in names] + [b"\xff" * 90]):
        found = scanned(invoke, lambda found: len(found) == MOST_FOUND)
        text = invoke("remote", "scan", "--for", "1s", "--interface", HERE).stdout
    assert all(each[fact].isprintable() for each in found for fact in ("name", "key", "address"))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "[bold]" in text


def test_scan_does_not_wait_for_each_name_that_says_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "portcall", "remote", "scan", "--for", "1s", "--interface", HERE, "--json"]
    with flooding([packet(b"x%d" % i, b"", False) for i in range(300)]):
        done = subprocess.run(words, capture_output=True, check=True, timeout=20)  # one by one they would take 25 s
    assert json.loads(done.stdout)["found"] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("rasp", "rasp"), ("a\nb\tc", "a\\nb\\tc"), ("\x1b]0;x\x07", "\\x1b]0;x\\x07"), ("x" * 64, "x" * 62 + "…")],
)
def test_shown_is_one_line_that_can_be_printed(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_announce_is_for_servers_with_an_address(invoke: Invoke, tmp_path: Path) -> None:
    for words in (["--unix", tmp_path / "socket"], ["--farm", "127.0.0.1:1", "--key", "k"]):
        assert invoke("serve", "--announce", *words).exit_code == 2
    assert invoke("remote", "scan", "--interface", "no such host").exit_code in (1, 3)
