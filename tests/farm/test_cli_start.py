# SPDX-License-Identifier: Apache-2.0
"""What ``portcall farm`` says when it starts, to people and to programs, and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farm.test_cli_farm import portcall, started
from portcall.cli._errors import explain
from portcall.errors import FarmError

WORDS = [sys.executable, "-m", "portcall"]


@contextmanager
def serving(*words: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a farm, and yield it with the first line that it prints; standard error is a pipe."""
    with subprocess.Popen([*WORDS, "farm", "--port", "0", *map(str, words)], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE, env={**os.environ, **environment}) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.terminate()


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WORDS, *map(str, words)], capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, **environment})  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a farm, and return what it printed from its second line on."""
    process.terminate()
    return process.communicate(timeout=30)


def test_farm_json_is_one_line_with_all_that_a_program_needs(tmp_path: Path) -> None:
    store = tmp_path / "farm.db"
    with serving("--store", store, "--require-tokens", "--json") as (process, line):
        facts = json.loads(line)
        assert facts["pid"] == process.pid
        assert facts["address"] == f"127.0.0.1:{facts['port']}"
        assert facts["urls"] == [f"http://{facts['address']}"]
        assert (facts["store"], facts["tls"], facts["needs_tokens"]) == (str(store), False, True)
        known = {"PORTCALL_FARM": facts["address"], "PORTCALL_FARM_TOKEN": facts["token"]}
        (token,) = portcall("farm", "token", "--list", **known)["tokens"]
        assert (token["user"], token["role"]) == ("admin", "admin")
        rest, said = ended(process)
        assert rest == ""
        assert facts["token"] not in said
    with serving("--store", store, "--require-tokens", "--json") as (_, line):
        assert json.loads(line)["token"] == ""  # which was shown once


def test_farm_json_without_tokens_has_none(tmp_path: Path) -> None:
    with serving("--store", ":memory:", "--json", tmp_path / "farm.json") as (_, line):
        assert line.startswith("listening on ")
        facts = json.loads((tmp_path / "farm.json").read_text())
        assert (facts["store"], facts["needs_tokens"], facts["token"]) == (":memory:", False, "")


def test_farm_ready_file_exists_while_the_farm_runs(tmp_path: Path) -> None:
    place = tmp_path / "ready.json"
    with serving("--store", ":memory:", "--require-tokens", "--ready-file", place) as (process, line):
        facts = json.loads(place.read_text())
        assert line == f"listening on {facts['address']}\n"
        assert facts["pid"] == process.pid
        assert facts["token"]
        assert place.stat().st_mode & 0o077 == 0  # it has a token
        ended(process)
    assert not place.exists()


def test_farm_stops_where_who_started_it_blocks_the_signal() -> None:
    line = ["env", "--block-signal=TERM", *WORDS, "farm", "--port", "0", "--store", ":memory:", "--silent"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0


def lines_of(text: str, command: str) -> list[str]:
    """The lines that somebody may copy: those of a command of portcall."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(command)]


def test_farm_first_start_says_what_boards_and_users_type(tmp_path: Path) -> None:
    """Whoever copies the lines gets a board, a user and the page; nothing else is needed."""
    with serving("--store", tmp_path / "farm.db", "--require-tokens") as (process, line):
        address = line.removeprefix("listening on ").strip()
        _, said = ended(process)
    assert f"http://{address}" in said
    (export,) = lines_of(said, "export ")
    assert f"PORTCALL_FARM={address}" in export
    assert "PORTCALL_FARM_TOKEN=" in export
    for start in ("portcall farm pair", "portcall farm join", "portcall serve --farm", "portcall farm status"):
        assert lines_of(said, start), said
    assert any("--role agent" in line for line in lines_of(said, "portcall farm pair"))
    assert any("--role agent" not in line for line in lines_of(said, "portcall farm pair"))
    with serving("--store", tmp_path / "farm.db", "--require-tokens") as (process, _):
        _, said = ended(process)
    assert "page" in said
    for line in ("export ", "portcall serve --farm", "portcall farm"):
        assert lines_of(said, line) == []


def test_farm_start_lines_work_as_they_are_printed(tmp_path: Path) -> None:
    """The lines of the first start, in a shell, one after the other."""
    config = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    with serving("--store", tmp_path / "farm.db", "--require-tokens", "--json") as (_, line):
        facts = json.loads(line)
        admin = {"PORTCALL_FARM": facts["address"], "PORTCALL_FARM_TOKEN": facts["token"]}
        told = run("farm", "pair", "ann", **admin).stdout
        (join,) = lines_of(told.replace("there: ", "").replace("your own machine: ", ""), "portcall farm join")
        done = subprocess.run(f"{sys.executable} -m {join}", shell=True, capture_output=True, text=True, check=False,
                              env={**os.environ, **config})  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert portcall("farm", "status", "--farm", facts["address"], **config)["places"] == []


def test_serve_with_a_users_token_names_the_role(tmp_path: Path) -> None:
    with serving("--store", ":memory:", "--require-tokens", "--json") as (_, line):
        facts = json.loads(line)
        admin = {"PORTCALL_FARM": facts["address"], "PORTCALL_FARM_TOKEN": facts["token"]}
        user = portcall("farm", "token", "ann", **admin)["token"]
        other = portcall("farm", "token", "b1", "--role", "agent", "--key", "other", **admin)["token"]
        for token, code in ((user, 1), (other, 1), ("wrong", 3)):
            report = portcall("serve", "--farm", facts["address"], "--key", "rasp4", "--silent", code=code,
                              PORTCALL_FARM_TOKEN=token)  # fmt: skip
            assert "portcall farm token" in report["error"]["next"]
            assert "--role agent --key rasp4" in report["error"]["next"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--tls-key", "farm.key"], "--tls-cert"),
        (["--tvm-network", "nowhere"], "--tvm-network"),
        (["--store", ""], "--store"),
        (["--port", "1", "status"], "--port"),  # an option of the farm that runs, before another command
    ],
)
def test_farm_refuses_options_that_cannot_be_meant(words: list[str], named: str) -> None:
    done = run("farm", "--store", ":memory:", "--port", "0", *words)
    assert done.returncode in (1, 2)
    assert named in done.stderr


def test_farm_beyond_this_machine_says_how_to_make_a_certificate() -> None:
    report = portcall("farm", "--host", "0.0.0.0", "--store", ":memory:", code=1)
    assert "openssl req -x509" in report["error"]["next"]


def test_farm_command_to_a_farm_with_tls_asks_for_the_certificate(certificate: Path) -> None:
    words = ("--store", ":memory:", "--tls-cert", certificate)
    with started("farm", "--port", 0, *words) as (_, farm):
        report = portcall("farm", "status", "--farm", farm, code=3)
        assert "--tls-ca" in report["error"]["next"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of this machine that signs itself, with its key."""
    both = tmp_path / "farm.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=farm", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", both, "-out", tmp_path / "cert"],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(both.read_bytes() + (tmp_path / "cert").read_bytes())
    return both


def test_farm_with_tls_prints_lines_with_the_certificate(certificate: Path, tmp_path: Path) -> None:
    words = ("--host", "0.0.0.0", "--store", ":memory:", "--tls-cert", certificate)
    with serving(*words, "--json") as (process, line):
        facts = json.loads(line)
        assert facts["tls"]
        assert facts["urls"] == [f"https://{socket.gethostname()}:{facts['port']}"]
    with serving(*words) as (process, _):
        _, said = ended(process)
    assert all("--tls-ca" in line for line in lines_of(said, "portcall farm join"))
    assert all("--farm-ca" in line for line in lines_of(said, "portcall serve"))


@pytest.mark.parametrize(
    ("reason", "wrong"), [("expired", "--session-timeout"), ("role", "portcall farm status"), ("code", "status")]
)
def test_errors_of_farms_are_not_explained_as_those_of_servers(reason: str, wrong: str) -> None:
    assert wrong not in explain(FarmError("no", peer="lab:9190", reason=reason)).next_step


def test_farm_revoking_nobodys_token_is_an_error() -> None:
    with started("farm", "--port", 0, "--store", ":memory:") as (_, farm):
        error: Any = portcall("farm", "token", "--revoke", "nobody", "--farm", farm, code=1)["error"]
        assert "nobody" in error["message"]
        assert "--list" in error["next"]


def test_farm_name_is_one_that_it_answers_to(tmp_path: Path) -> None:
    names = ("--name", "farm.test", "--name", "boards.test")
    with serving("--store", ":memory:", *names, "--json") as (_, line):
        facts = json.loads(line)
        assert facts["urls"] == [f"http://{name}:{facts['port']}" for name in ("farm.test", "boards.test")]
        for name, status in (("farm.test", 200), ("boards.test", 200), ("other.test", 421)):
            connection = http.client.HTTPConnection("127.0.0.1", facts["port"], timeout=30)
            connection.request("GET", "/", headers={"Host": f"{name}:{facts['port']}"})
            assert connection.getresponse().status == status
            connection.close()


@pytest.mark.parametrize("name", ["http://lab", "lab:9190", "a b", ""])
def test_farm_name_must_be_a_name_alone(name: str) -> None:
    done = run("farm", "--store", ":memory:", "--port", "0", "--name", name)
    assert done.returncode == 2
    assert "--name" in done.stderr


def test_farm_serves_though_nobody_reads_what_it_says() -> None:
    """Standard error is a pipe that is full from the start."""
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    os.set_blocking(full, True)
    words = [*WORDS, "farm", "--port", "0", "--store", ":memory:"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=full, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            assert portcall("farm", "status", "--farm", address)["places"] == []
        finally:
            process.terminate()
            assert process.wait(30) == 0
            os.close(unread)
            os.close(full)


@pytest.mark.parametrize("store", ["no/such/folder/farm.db", "."])
def test_farm_store_that_cannot_be_opened_is_named(tmp_path: Path, store: str) -> None:
    error: Any = portcall("farm", "--port", 0, "--store", tmp_path / store, code=1)["error"]
    assert error["kind"] == "OSError"
    assert str(tmp_path / store) in error["message"]
