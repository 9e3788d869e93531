# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="unreachable"
"""``portcall serve``: what it prints, what it accepts, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from portcall import rpc, toolchain
from portcall.errors import ConnectError
from portcall.rpc import Server, ServerOptions
from portcall.rpc.server._log_writer import format_line, printable
from rpc.raw_client import RawClient
from rpc.serving import serving

TOKEN = "the token of this test"
LIBRARY = """
#include <portcall/portcall.h>
PORTCALL_REGISTER_GLOBAL("library.twice").set_body_typed([](int64_t a) { return 2 * a; });
"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "portcall", *map(str, words)]


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    # Under nohup the tests, and what they start, ignore SIGHUP.
    line = ["env", "--default-signal=HUP", *command(*words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", ["serve", "server"])
def test_serve_first_line_says_where_it_listens(name: str) -> None:
    with started(name, "--port", "0") as process:
        match = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", first_line(process))
        assert match
        with RawClient(match[1]).open() as client:
            assert client.echo(1) == 1


def test_serve_ready_file_exists_while_the_server_runs(tmp_path: Path) -> None:
    place = tmp_path / "ready.json"
    with serving("--ready-file", place) as server:
        assert server.ready == json.loads(place.read_text())
        assert server.ready["pid"] == server.process.pid
        assert server.ready["host"] == "127.0.0.1"
        assert server.port > 0
    assert not place.exists()


def test_serve_leaves_the_ready_file_of_another_server(tmp_path: Path) -> None:
    place = tmp_path / "ready.json"
    words = ("serve", "--silent", "--ready-file", place, "--port")
    with started(*words, "0") as first:
        port = int(first_line(first).rpartition(":")[2])
        before = place.read_text()
        assert run(*words, port).returncode == 1
        assert run(*words, 0, "--import", "missing.py").returncode == 1
        assert place.read_text() == before
        with started(*words, "0") as second:
            first_line(second)
            first.terminate()
            first.wait()
            assert json.loads(place.read_text())["pid"] == second.pid
    done = run("serve", "--port", 0, "--ready-file", tmp_path / "missing" / "file")
    assert (done.returncode, f"'{tmp_path / 'missing' / 'file'}'" in done.stderr) == (1, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_serve_exits_with_the_code_of_the_signal(tmp_path: Path, number: signal.Signals, code: int) -> None:
    place = tmp_path / "ready.json"
    with started("serve", "--port", "0", "--silent", "--ready-file", place) as process:
        first_line(process)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (code, "", "")
    assert not place.exists()


def test_serve_stops_where_who_started_it_blocks_the_signal() -> None:
    line = ["env", "--block-signal=TERM", *command("serve", "--port", "0", "--silent")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        first_line(process)
        process.terminate()
        assert process.wait(60) == 0


def test_serve_under_nohup_ignores_sighup() -> None:
    code = "import signal, os, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", code, sys.executable, "-m", "portcall", "serve", "--port", "0", "--silent"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        address = first_line(process).split()[-1]
        process.send_signal(signal.SIGHUP)
        with rpc.connect(address) as session:
            assert session["testing.echo"](3) == 3
        process.terminate()
        assert process.wait(60) == 0


def test_serve_names_the_folder_of_a_socket_that_is_missing(tmp_path: Path) -> None:
    done = run("serve", "--unix", tmp_path / "missing" / "s.sock")
    assert done.returncode == 1
    assert f"the folder '{tmp_path / 'missing'}' does not exist" in done.stderr


def test_serve_reports_a_taken_port_and_port_end_tries_more() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--port", port)
        assert done.returncode == 1
        assert f"port {port} of 127.0.0.1 is taken" in done.stderr
        proposed = re.search(r"--port-end (\d+)", done.stderr)
        if port < 65000:
            assert proposed is not None
            assert int(proposed[1]) > port + 1
            with started("serve", "--port", port, "--port-end", port + 50) as process:
                assert int(first_line(process).rpartition(":")[2]) in range(port + 1, port + 50)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--key", "two words"], "whitespace"),
        (["--session-timeout", "5"], "such as 500ms"),
        (["--memory-limit", "5"], "such as 64MiB"),
        (["--import", "missing.py", "--port", "0"], "missing.py"),
        (["--import", "serve", "--port", "0"], "not a Python file"),
        (["--load-library", "missing.so", "--port", "0"], "missing.so"),
        (["--tls-cert", "missing.pem", "--port", "0"], "o such file"),
        (["--token-file", "missing"], "missing"),
        (["--work-dir", "/no/such/place", "--port", "0"], "'/no/such/place'"),
    ],
)
def test_serve_checks_its_options_before_it_listens(words: list[str], text: str) -> None:
    done = run("serve", *words)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert text in done.stderr
    assert "bug in portcall" not in done.stderr


def test_serve_import_error_has_its_trace(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f():\n    raise KeyError('oops')\nf()\n")
    done = run("serve", "--port", "0", "--import", tmp_path / "broken.py")
    assert done.returncode == 1
    assert "KeyError: 'oops'" in done.stderr
    assert "broken.py" in done.stderr


def test_serve_refuses_an_empty_token_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    done = run("serve", "--token-file", tmp_path / "token")
    assert done.returncode == 1
    assert "openssl rand -hex 32" in done.stderr


def test_serve_token_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving("--token-file", tmp_path / "token") as server, rpc.connect(server.address, token=TOKEN) as remote:
        assert remote.get_function("testing.echo")(1) == 1


def test_serve_import_finds_libraries_and_neighbouring_modules(tmp_path: Path) -> None:
    (tmp_path / "library.cc").write_text(LIBRARY)
    library = toolchain.create_shared(tmp_path / "library.cc", tmp_path / "library.so")
    (tmp_path / "neighbour.py").write_text("NUMBER = 5\n")
    (tmp_path / "mine.py").write_text(
        "import portcall, neighbour\nprint('loading')\n"
        "portcall.register_func('mine.number', lambda: neighbour.NUMBER)\n"
    )
    words = ["--load-library", f"{library}:", "--import", tmp_path / "mine.py"]
    with serving(*words) as server, rpc.connect(server.address) as remote:
        assert remote.get_function("library.twice")(21) == 42
        assert remote.get_function("mine.number")() == 5


def test_serve_import_error_shows_the_users_frames_only(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f():\n    import nothing_of_that_name\n\nf()\n")
    words = ("serve", "--port", "0", "--import", tmp_path / "mine.py")
    done = run(*words)
    assert done.returncode == 1
    said = done.stderr[done.stderr.index("error: ") :]
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'\n" in said
    assert [line for line in said.splitlines() if "File" in line] == [
        f'  File "{tmp_path}/mine.py", line 4, in <module>', f'  File "{tmp_path}/mine.py", line 2, in f',
    ]  # fmt: skip
    assert "_worker.py" in run(*words, "--debug").stderr
    assert "File" not in run("serve", "--port", "0", "--load-library", "missing.so").stderr


def test_serve_accepts_options_of_tvms_server() -> None:
    words = ["--port-end", "65536", "--key", "rasp", "--no-fork", "--silent"]
    with started("server", "--host", "127.0.0.1", "--port", "0", *words) as process:
        assert first_line(process).startswith("listening on 127.0.0.1:")


def test_serve_log_is_text_unless_json_is_chosen() -> None:
    with started("serve", "--port", "0", "--key", "k") as process:
        address = first_line(process).split()[-1]
        with RawClient(address).open("k"):
            pass
        with RawClient(address) as client:
            client.send(b"\x71\xf2\x0f\x00\x14\x00\x00\x00client:\x1b[31mred      ")
            assert client.read(4) == b"\x73\xf2\x0f\x00"
        process.terminate()
        errors = process.communicate()[1]
        assert re.search(
            r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d session 1: opened for 127\.0\.0\.1:\d+, a TVM client$",
            errors,
            re.MULTILINE,
        )
        assert r"\x1b[31mred" in errors
        assert address not in errors  # the first line on stdout has it
        assert "\x1b" not in errors


def test_format_line_escapes_control_characters() -> None:
    assert printable("a\x1b[2Jb\r\x07\x9b\n") == "a\\x1b[2Jb\\r\\x07\\x9b\n"
    for style in ("text", "json"):
        line = format_line(style, "event", "a\x1b[2Jb", 1, peer="\x1b[2J")
        assert "a\\" in line
        assert "\x1b" not in line


# ---- From Python --------------------------------------------------------------------------------------------------


def test_server_context_serves_within_its_block(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import portcall\nportcall.register_func('mine.number', lambda: 5)\n")
    with Server(key="k", imports=[tmp_path / "mine.py"]) as server:
        assert str(server.port) in repr(server)
        with rpc.connect(server.host, server.port, key="k") as remote:
            assert remote.get_function("mine.number")() == 5
        assert server.running
    assert not server.running
    assert server.terminate() == 0  # once more does nothing
    assert "stopped" in repr(server)


def test_server_resolves_paths_from_its_start_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, portcall\nportcall.register_func('mine.temporary', lambda: os.environ['TMPDIR'])\n"
    )
    monkeypatch.chdir(tmp_path)
    with Server(imports=["mine.py"], work_dir=".") as server, rpc.connect(server.address) as remote:
        assert Path(remote["mine.temporary"]()).is_relative_to(tmp_path)


def test_server_start_error_says_why() -> None:
    with pytest.raises(ConnectError, match="--token-file"):
        Server(host="0.0.0.0")
    with pytest.raises(TypeError, match="no_such_option"):
        Server(no_such_option=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("host", {"port": 9090}), ("port", "9090"), ("key", b"k"), ("imports", "mine.py"), ("token", None)],
)
def test_server_refuses_an_option_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name} .* got {type(value).__name__}; options go by name"):
        Server(**{name: value})
    if name == "host":
        with pytest.raises(TypeError, match="go by name"):
            Server(value)


def test_server_ends_with_its_program() -> None:
    program = "import os\nimport portcall.rpc\ns = portcall.rpc.Server()\nprint(s.pid, flush=True)\nos._exit(0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    assert select.select([handle], [], [], 30)[0]
    os.close(handle)


@pytest.mark.parametrize(
    "values",
    [{"port": -1}, {"port": 70000}, {"port": 10, "port_end": 5}, {"tls_ca": "a"}, {"tls_key": "a"},
     {"max_sessions": -1}, {"handshake_timeout": 0}, {"key": "a b"}],
    ids=str,
)  # fmt: skip
def test_server_options_refuses_invalid_values(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ServerOptions(**values)  # type: ignore[arg-type]


def test_server_options_tells_files_from_function_names() -> None:
    options = ServerOptions(imports=("a.py", "p.q:f", Path("b.py"), "a/b:c.py"), libraries=("c.so",))  # type: ignore[arg-type]
    here = os.getcwd()
    assert options.imports == (f"{here}/a.py", "p.q:f", f"{here}/b.py", f"{here}/a/b:c.py")
    assert options.libraries == (f"{here}/c.so",)


def test_server_setup_function_runs_before_the_first_session(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(
        "import portcall\ndef register(): portcall.register_func('mine.number', lambda: 6)\n"
    )
    for more in ([], ["--no-fork"]):
        running = serving("--import", "neighbour:register", *more, PYTHONPATH=str(tmp_path))
        with running as server, rpc.connect(server.address) as remote:
            assert remote["mine.number"]() == 6


def test_server_options_round_trip_through_json() -> None:
    options = ServerOptions(imports=("a.py", "p:f"), expose=("x.*", "y"), session_timeout=2.5)
    assert ServerOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
