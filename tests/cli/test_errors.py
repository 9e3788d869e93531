# SPDX-License-Identifier: Apache-2.0
"""What is said about errors: the likely cause is one, the next step leads on, and nothing is for Python."""

from __future__ import annotations

import json
import pickle
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import Result

from portcall import errors, rpc
from portcall.cli import COMMANDS
from portcall.cli._errors import COMPILE_FOR, OTHER_PROCESSOR, REASONS, TABLE, explain

Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]
Shell = Callable[..., subprocess.CompletedProcess[str]]
FOR_PYTHON = re.compile(r"\b(token|timeout|session_timeout|ca|certificate|check|target)=|TLSOptions|None\b")


def causes(reason: str) -> str:
    return REASONS[reason][0]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = trustme.CA(), trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    stranger.cert_pem.write_to_path(str(folder / "stranger.pem"))
    (folder / "token").write_text("s3cret")
    (folder / "other").write_text("other")
    return folder


@pytest.fixture(scope="module")
def servers(certificates: Path) -> Iterator[dict[str, str]]:
    pem = str(certificates / "server.pem")
    with (
        rpc.Server() as plain,
        rpc.Server(token="s3cret") as token,
        rpc.Server(tls_certificate=pem) as tls,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        yield {
            "plain": plain.address, "token": token.address, "tls": tls.address,
            "tls_by_name": tls.address.replace("127.0.0.1", "localhost"),
            "silent": f"127.0.0.1:{silent.getsockname()[1]}", "nowhere": "unix:/nowhere.sock",
        }  # fmt: skip


@pytest.mark.parametrize(("server", "words", "code", "cause", "next_step"), [
    ("nowhere", (), 3, "no server runs there", "portcall serve --unix /nowhere.sock"),
    ("plain", ("--tls-ca", "{ca.pem}"), 3, causes("no-tls"), "leave out --tls-ca"),
    ("tls", (), 3, causes("closed"), "--tls-ca FILE"),
    ("tls_by_name", ("--tls-ca", "{stranger.pem}"), 3, causes("certificate"), "--tls-ca FILE"),
    ("tls", ("--tls-ca", "{ca.pem}"), 3, causes("certificate-name"), "connect by the name"),
    ("token", (), 3, causes("no-token"), "--token-file FILE"),
    ("token", ("--token-file", "{other}"), 3, causes("wrong-token"), "--token-file FILE"),
    ("plain", ("--token-file", "{token}"), 3, causes("not-asked"), "check the address"),
    ("plain", ("--key", "k"), 3, "", "--key with the one"),
    ("silent", ("--connect-timeout", "200ms"), 4, causes("no-session"), "raise --connect-timeout"),
])  # fmt: skip
def test_explain_says_why_a_session_cannot_be_opened(
    invoke_json: InvokeJson, servers: dict[str, str], certificates: Path, server: str, words: tuple[str, ...],
    code: int, cause: str, next_step: str,
) -> None:  # fmt: skip
    given = [re.sub(r"\{(.*)\}", lambda name: str(certificates / name[1]), word) for word in words]
    error = invoke_json("doctor", servers[server], *given, code=code)["error"]
    assert error["cause"] == cause
    assert error["next"].startswith(next_step)
    assert not FOR_PYTHON.search(" ".join(error.values())), error


def test_explain_tells_unknown_hosts_from_missing_servers(
    invoke_json: InvokeJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = invoke_json("doctor", "baord.local", code=3)["error"]
    assert "the host name 'baord.local' is not known" in error["message"]
    assert error["cause"] == causes("unknown-host")


@pytest.mark.parametrize("rpc_too", [False, True], ids=["here", "there"])
def test_explain_does_not_blame_arguments_for_a_functions_error(
    invoke_json: InvokeJson, kernels: str, servers: dict[str, str], rpc_too: bool
) -> None:
    place = ("--rpc", servers["plain"]) if rpc_too else ()
    error = invoke_json("run", kernels, "refuse", *place, code=1)["error"]
    assert (error["kind"], error["cause"], error["next"]) == ("ValueError", "", "")
    assert "arguments" in invoke_json("run", kernels, "add", "--arg", "1", *place, code=1)["error"]["cause"]


def test_explain_reports_call_timeouts_by_option_name(
    invoke_json: InvokeJson, kernels: str, servers: dict[str, str]
) -> None:
    words = ("--rpc", servers["plain"], "--timeout", "200ms")
    error = invoke_json("run", kernels, "hang", *words, code=4)["error"]
    assert error["next"] == "raise --timeout"
    assert not FOR_PYTHON.search(" ".join(error.values())), error


def test_explain_tells_the_servers_own_limit_from_the_clients(invoke_json: InvokeJson, kernels: str) -> None:
    with rpc.Server(session_timeout=0.5) as server:
        error = invoke_json("run", kernels, "hang", "--rpc", server.address, "--timeout", "60s", code=4)["error"]
        with rpc.connect(server.address) as session:
            hang = session.load_module(session.upload(kernels))["hang"]
            with pytest.raises(errors.SessionTimeoutError, match="server's own") as caught:
                hang()
    assert (error["cause"], error["next"]) == REASONS["expired"]
    assert not FOR_PYTHON.search(" ".join(error.values())), error
    assert caught.value.reason == "expired"


@pytest.mark.parametrize("rpc_too", [False, True], ids=["here", "there"])
def test_explain_does_not_blame_arguments_for_another_processors_library(
    shell: Shell, kernels: str, servers: dict[str, str], rpc_too: bool
) -> None:
    place = ("--rpc", servers["plain"]) if rpc_too else ()
    done = shell("run", kernels, "illegal", *place, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["cause"], error["next"]) == (5, OTHER_PROCESSOR, COMPILE_FOR)


@pytest.mark.parametrize(
    ("output", "works"),
    [
        ("k.c:1:21: error: 'x' undeclared", True),
        ("/usr/bin/ld: k.o: in function `f':\nk.c:(.text+0x9): undefined reference to `g'", True),
        ("cc1: error: unrecognized command-line option '-fooo'", True),
        ("/usr/bin/ld: cannot find -lmine: No such file or directory", True),
        ("", False),
        ("g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory", False),
        ("/usr/bin/ld: cannot find crti.o: No such file or directory", False),
        ("/usr/bin/ld: cannot find -lstdc++: No such file or directory", False),
        ("collect2: fatal error: cannot find 'ld'", False),
    ],
)
def test_explain_proposes_doctor_only_for_compilers_that_do_not_work(output: str, works: bool) -> None:
    error = errors.CompileError("failed", output=output)
    assert error.compiler_works == works
    assert ("doctor" in explain(error).next_step) == (not works)


def test_explain_never_proposes_the_command_that_failed() -> None:
    lost = errors.SessionBrokenError("lost", peer="board:9090")
    assert explain(lost, "run").next_step == "portcall doctor board:9090"
    assert explain(lost, "doctor").next_step == ""
    assert explain(errors.SessionTimeoutError("late"), "doctor").next_step == ""


def test_hints_for_a_shell_are_next_steps() -> None:
    missing = errors.ConnectError("no server", peer="ssh://b", reason="no-server", hint="portcall deploy b")
    assert explain(missing).next_step == "portcall deploy b"


def test_explain_refused_connection_depends_on_the_address() -> None:
    def next_step(peer: str) -> str:
        return explain(errors.ConnectError("refused", peer=peer, reason="refused")).next_step

    assert next_step("127.0.0.1:9091") == next_step("localhost:9091") == "portcall serve --port 9091"
    assert next_step("board.local:9090") == "on that machine: portcall serve --host 0.0.0.0 --port 9090"


def test_explain_does_not_propose_inspect_for_other_files(invoke_json: InvokeJson, tmp_path: Path) -> None:
    (tmp_path / "notes.so").write_text("text")
    assert "portcall inspect" not in invoke_json("run", tmp_path / "notes.so", "f", code=1)["error"]["next"]


def test_token_file_that_is_not_text_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe\x00")
    result = invoke("doctor", "127.0.0.1:1", "--token-file", tmp_path / "token")
    assert result.exit_code == 1
    assert f"the token file '{tmp_path}/token' is not text" in result.stderr


def test_explain_proposes_existing_commands_and_options(invoke: Invoke) -> None:
    steps = " ".join([step for *_, step in TABLE] + [step for _, step in REASONS.values()])
    helps = " ".join(invoke(*name.split(), "--help").output for name in (*COMMANDS, "remote list"))
    assert set(re.findall(r"--[a-z-]+", steps)) <= set(re.findall(r"--[a-z-]+", helps))
    assert set(re.findall(r"portcall (\w+)", steps)) <= set(COMMANDS)


def test_error_advice_for_python_ends_the_message_and_survives_pickling() -> None:
    error = errors.AuthenticationError("no", peer="p", reason="no-token", hint="pass token=")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "no; pass token="
    assert vars(again) == vars(error)
    assert explain(error).what == "no"
