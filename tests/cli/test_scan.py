# SPDX-License-Identifier: Apache-2.0
"""Servers and farms that announce themselves: found by us and by zeroconf's own reader, whatever strangers say."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from zeroconf import IPVersion, Zeroconf

from portcall.cli._announce import KINDS, MOST_TEXT, read, shown
from portcall.cli._store import Remote, write_remotes

Invoke = Callable[..., Result]
HERE = "127.0.0.1"
TOKEN = "t0ken-of-a-server-that-is-found-by-others"


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
    monkeypatch.setattr(importlib.import_module("portcall.cli.remote"), "scan", lambda *_: found)
    text = invoke("remote", "scan").stdout
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "secret" not in text
    assert [each["saved_as"] for each in json.loads(invoke("remote", "scan", "--json").stdout)["found"]] == [[], [], []]
    info.parsed_scoped_addresses = list
    assert read(kind, f"rasp.{kind}", info) is None


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
