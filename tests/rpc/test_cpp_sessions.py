# SPDX-License-Identifier: Apache-2.0
"""docs/cpp.md, Sessions: its program is a client of both servers, and a server itself."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from portcall import Module, errors, get_global_func, graph, toolchain
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._facts import NOT_OPENED
from rpc.raw_client import MAGIC
from rpc.relay import read, saying
from rpc.serving import Program, serving

PAGE = Path(__file__).parents[2] / "docs" / "cpp.md"
TOKEN = "a token that nobody guesses"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")


def program_of_page(name: str, folder: Path) -> Path:
    found = re.search(rf"```cpp\n// {name}.cc\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (folder / f"{name}.cc").write_text(found[1])
    return toolchain.create_executable(folder / f"{name}.cc", folder / name, options=STRICT)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program_of_page("session", tmp_path_factory.mktemp("client"))


def run(*words: object, **environment: str) -> tuple[int, str, list[str]]:
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr, done.stdout.split()


@pytest.mark.parametrize("program", ["python", "board"])
def test_cpp_page_session_runs(client: Path, kernel_library: Path, program: Program) -> None:
    printed = ["2", "42", "7", "FunctionNotFoundError", "ConnectError"]
    with serving("--key", "k", program=program) as server:
        assert run(client, server.address, "k", kernel_library) == (0, "", printed)
        assert run(client, server.address, "other", kernel_library) == (0, "", ["ConnectError"])
        assert run(client, server.address, "k", kernel_library, PORTCALL_TOKEN=TOKEN) == (
            0,
            "",
            ["AuthenticationError"],
        )
    with serving("--key", "k", program=program, PORTCALL_TOKEN=TOKEN) as server:
        assert run(client, server.address, "k", kernel_library, PORTCALL_TOKEN=TOKEN) == (0, "", printed)
        assert run(client, server.address, "k", kernel_library, PORTCALL_TOKEN="x" + TOKEN)[2] == [
            "AuthenticationError"
        ]
        assert run(client, server.address, "k", kernel_library)[2] == ["AuthenticationError"]


@pytest.mark.parametrize("program", ["python", "board"])
def test_cpp_page_model_runs(kernel_library: Path, tmp_path: Path, program: Program) -> None:
    builder = graph.GraphBuilder()
    builder.output(builder.call("add_one", [builder.input("x", (4,))], (4,)))
    graph.export_bundle(tmp_path / "model.so", builder.graph(), kernel_library, {})
    with serving(program=program) as server:
        model = program_of_page("model", tmp_path)
        assert run(model, server.address, tmp_path / "model.so") == (0, "", ["4"])


def connect(address: str, key: str = "", token: str = "", timeout: float = 10) -> Module:
    """As ``rpc::Connect`` and clients in other languages do."""
    root: Module = get_global_func("portcall.rpc.Connect")(address, key, token, timeout, 0.0)
    return root


@pytest.mark.parametrize("address", ["unix:/" + "x" * 200, "unix:/no/such/socket", "127.0.0.1", "127.0.0.1:no-port"])
def test_core_names_the_address_that_it_cannot_connect_to(address: str) -> None:
    with pytest.raises(errors.ConnectError, match=re.escape(address)):
        connect(address)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad",
        struct.pack("<ii", MAGIC, 1 << 30),
        struct.pack("<i", MAGIC + 1),
        struct.pack("<i", MAGIC),
        b"",
    ],
)
def test_core_refuses_what_is_no_handshake(answer: bytes) -> None:
    def say(sock: socket.socket) -> None:
        read(sock, struct.unpack("<ii", read(sock, 8))[1])
        sock.sendall(answer)

    with saying(say, shake_hands=False) as port, pytest.raises(errors.ConnectError):
        connect(f"127.0.0.1:{port}")


def test_core_says_why_a_server_opens_no_session() -> None:
    def say(sock: socket.socket) -> None:
        read(sock, struct.unpack("<ii", read(sock, 8))[1])
        sock.sendall(_handshake.notice(NOT_OPENED + "no room"))

    with saying(say, shake_hands=False) as port, pytest.raises(errors.ConnectError, match=f"{NOT_OPENED}no room"):
        connect(f"127.0.0.1:{port}")


def test_core_waits_for_a_silent_server_as_long_as_asked() -> None:
    def say_nothing(sock: socket.socket) -> None:
        read(sock, 1000)  # more than the hello has

    with saying(say_nothing, shake_hands=False) as port, pytest.raises(errors.SessionTimeoutError):
        connect(f"127.0.0.1:{port}", timeout=0.1)
