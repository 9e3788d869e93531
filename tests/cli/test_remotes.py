# SPDX-License-Identifier: Apache-2.0
"""Servers by name, and the token that a server makes for itself: kept for this user alone, printed only when asked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from portcall import rpc
from portcall.cli._store import Remote, read_remotes, server_token, write_private, write_remotes

Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]
SECRET = "s3cret-token"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(SECRET + "\n")
    return tmp_path / "token"


def test_remote_name_stands_for_address_key_and_token(
    invoke: Invoke, invoke_json: InvokeJson, kernels: str, token: Path
) -> None:
    with rpc.Server(key="k", token=SECRET) as server:
        added = invoke("remote", "add", "rasp", server.address, "--key", "k", "--token-file", token)
        assert added.exit_code == 0, added.output
        token.unlink()  # its text was kept
        words = ("add", "--arg", "3", "--arg", "4", "--rpc", "rasp")
        assert invoke_json("run", kernels, *words)["rpc"]["peer"] == "rasp"
        assert invoke("doctor", "rasp").exit_code == 0
        refused = invoke("run", kernels, *words, "--key", "other")
        assert refused.exit_code == 3
        assert refused.stderr.startswith("error: rasp: ")


def test_remote_commands_never_print_tokens(invoke: Invoke, invoke_json: InvokeJson, token: Path) -> None:
    assert "remote add" in invoke("remote", "list").stdout
    assert invoke_json("remote", "list") == {"remotes": []}
    invoke_json("remote", "add", "rasp", "board.local", "--token-file", token)
    invoke_json("remote", "add", "lab", "[::1]:9091", "--tls-ca", "ca.pem")
    answer = invoke_json("remote", "list")["remotes"]
    assert [(each["name"], each["address"], each["token"]) for each in answer] == [
        ("lab", "[::1]:9091", False), ("rasp", "board.local:9090", True),
    ]  # fmt: skip
    assert answer[0]["tls_ca"] == os.path.abspath("ca.pem")
    for words in (["list"], ["list", "--json"], ["show", "rasp"], ["show", "rasp", "--json"]):
        result = invoke("remote", *words)
        assert "board.local:9090" in result.stdout
        assert SECRET not in result.output
    assert invoke("remote", "show", "rasp", "--token").stdout == f"{SECRET}\n"
    assert invoke_json("remote", "show", "rasp", "--token")["token"] == SECRET
    invoke_json("remote", "remove", "rasp")
    assert [each["name"] for each in invoke_json("remote", "list")["remotes"]] == ["lab"]
    error = invoke_json("remote", "show", "lba", code=1)["error"]
    assert (error["cause"], error["next"]) == ("did you mean lab?", "portcall remote list")


def test_remote_name_misspelled_proposes_a_similar_one(
    invoke_json: InvokeJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    write_remotes({"rasp": Remote("board.local:9090")})
    error = invoke_json("doctor", "rsap", code=3)["error"]
    assert error["cause"] == "did you mean rasp?"


def test_remote_that_was_deployed_and_is_gone_proposes_to_deploy_it_again(invoke_json: InvokeJson) -> None:
    with rpc.Server() as server:
        address = server.address
    write_remotes({"rasp": Remote(address, deploy="pi@board --name rasp"), "lab": Remote(address)})
    assert invoke_json("doctor", "rasp", code=3)["error"]["next"] == "portcall deploy pi@board --name rasp"
    assert invoke_json("doctor", "lab", code=3)["error"]["next"].startswith("portcall serve")


@pytest.mark.parametrize(("words", "said"), [
    (("a b", "board.local"), "invalid name 'a b'"), (("x:1", "board.local"), "invalid name 'x:1'"),
    (("rasp", "board:99999"), "invalid port 99999"), (("rasp", "board", "--token-file", "missing"), "missing"),
])  # fmt: skip
def test_remote_add_refuses_invalid_names_and_addresses(
    invoke: Invoke, settings: Path, words: tuple[str, ...], said: str
) -> None:
    result = invoke("remote", "add", *words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not settings.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"remotes": 5}', '{"remotes": {"a": 5}}', '{"remotes": {"a": {}}}'])
def test_remote_damaged_settings_file_is_named(invoke: Invoke, settings: Path, text: str) -> None:
    write_private(settings / "remotes.json", text)
    result = invoke("doctor", "rasp")
    assert result.exit_code == 1
    assert f"cannot read '{settings}/remotes.json'" in result.stderr


def test_write_remotes_is_private_and_atomic(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        write_remotes({"rasp": Remote("board:9090", token=SECRET)})
        server_token()
    finally:
        os.umask(before)
    assert settings.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in settings.iterdir()} == {0o600}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_remotes({})
    assert read_remotes() == {"rasp": Remote("board:9090", token=SECRET)}
    assert sorted(path.name for path in settings.iterdir()) == ["remotes.json", "server-token"]


@pytest.mark.parametrize("home", ["", "relative"])
def test_write_remotes_defaults_to_the_users_config_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_remotes({})
    assert (tmp_path / ".config" / "portcall" / "remotes.json").exists()


# ---- The token of a server -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(*words: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """Start a server; yield its port, and a function that ends it and returns what it said on stderr."""
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--json", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def end() -> str:
            process.terminate()
            return process.communicate(timeout=60)[1]

        try:
            yield json.loads(process.stdout.readline())["port"], end
        finally:
            process.terminate()


def test_serve_on_all_addresses_makes_a_token(invoke: Invoke, settings: Path) -> None:
    # Its own machine reaches it, too, and nobody else is let in.
    with serving("--host", "0.0.0.0") as (port, end):
        assert invoke("doctor", f"127.0.0.1:{port}").exit_code == 3
        said = end()
    (line,) = re.findall(r"^  (echo [0-9a-f]{64} \| portcall remote add NAME .*)$", said, re.MULTILINE)
    assert f":{port} --token-file -" in line
    token = (settings / "server-token").read_text().strip()
    assert shlex.split(line)[1] == token
    with serving("--host", "0.0.0.0") as (port, end):  # the same again, and not printed
        with rpc.connect("127.0.0.1", port, token=token):
            pass
        assert token not in end()


def test_serve_prints_a_working_remote_add_command(settings: Path) -> None:
    add = [sys.executable, "-m", "portcall", "remote", "add", "rasp", "127.0.0.1:9090", "--token-file", "-"]
    subprocess.run(add, input=SECRET + "\n", text=True, check=True, capture_output=True)
    assert read_remotes() == {"rasp": Remote("127.0.0.1:9090", token=SECRET)}


@pytest.mark.parametrize("words", [(), ("--host", "0.0.0.0", "--insecure"), ("--host", "localhost")], ids=" ".join)
def test_serve_on_loopback_makes_no_token(settings: Path, words: tuple[str, ...]) -> None:
    with serving(*words) as (port, _), rpc.connect("127.0.0.1", port, token=""):
        pass
    assert not settings.exists()


@pytest.mark.parametrize("home", ["/dev/null", ""], ids=["not a folder", "none"])
def test_serve_without_config_folder_asks_for_a_token(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    result = invoke("serve", "--host", "0.0.0.0", "--port", "0")
    assert result.exit_code == 1
    assert "next: " + ("--token-file FILE" if home else "set XDG_CONFIG_HOME") in result.stderr
    assert not list(tmp_path.iterdir())


def test_remote_address_needs_no_settings_file(invoke: Invoke, settings: Path) -> None:
    write_private(settings / "remotes.json", "{")
    with rpc.Server() as server:
        assert invoke("doctor", server.address).exit_code == 0


@pytest.mark.parametrize("words", [("--silent",), ("--log-json",)])
def test_serve_json_log_has_no_token(settings: Path, words: tuple[str, ...]) -> None:
    with serving("--host", "0.0.0.0", *words) as (_, end):
        said = end()
    assert (settings / "server-token").read_text().strip() not in said
