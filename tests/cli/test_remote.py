# SPDX-License-Identifier: Apache-2.0
"""``run``, ``bench``, ``doctor`` and ``demo`` with a server: results, clocks, words while waiting, each failure."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from portcall import rpc, toolchain
from portcall.cli._progress import MOST_LINES
from portcall.inspect import this_machine

Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]
Shell = Callable[..., subprocess.CompletedProcess[str]]
OnTerminal = Callable[..., tuple[int, bytes]]
ADD_ONE = ("add_one", "--arg", "range:float32[8]", "--out", "float32[8]")


@pytest.fixture(scope="module")
def server() -> Iterator[rpc.Server]:
    with rpc.Server(key="k", lost_client_grace=0.5) as running:
        yield running


@pytest.fixture
def there(server: rpc.Server) -> tuple[str, ...]:
    return ("--rpc", server.address, "--key", "k")


@pytest.fixture
def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return f"127.0.0.1:{unused.getsockname()[1]}"


# ---- run and bench ------------------------------------------------------------------------------------------------


def test_run_remote_shows_local_results_and_both_clocks(invoke: Invoke, kernels: str, there: tuple[str, ...]) -> None:
    here, remote = invoke("run", kernels, *ADD_ONE), invoke("run", kernels, *ADD_ONE, *there)
    assert (here.exit_code, remote.exit_code) == (0, 0), remote.output
    assert remote.stdout.splitlines()[1:3] == here.stdout.splitlines()[1:3]
    clocks = remote.stdout.splitlines()[-1]
    assert clocks.startswith(f"with {there[1]}: connect ")
    assert all(f" {name} " in clocks for name in ("connect", "upload", "load", "copy", "run", "fetch"))


def test_run_remote_shows_what_the_library_prints(invoke: Invoke, there: tuple[str, ...], tmp_path: Path) -> None:
    source = tmp_path / "talk.cc"
    source.write_text(
        "#include <cstdio>\n#include <portcall/portcall.h>\n"
        'PORTCALL_EXPORT_TYPED(talk, [](int64_t n) { for (int i = 0; i < n; ++i) std::printf("line %d\\n", i); })\n'
    )
    library = str(toolchain.create_shared(source, tmp_path / "talk.so"))
    few, many = (invoke("run", library, "talk", "--arg", count, *there) for count in ("2", "3000"))
    assert (few.exit_code, many.exit_code) == (0, 0), few.output
    assert [line for line in few.stderr.splitlines() if line.startswith("|")] == ["| line 0", "| line 1"]
    assert len([line for line in many.stderr.splitlines() if line.startswith("|")]) == MOST_LINES


def test_run_remote_json_describes_the_session(invoke_json: InvokeJson, kernels: str, there: tuple[str, ...]) -> None:
    answer = invoke_json("run", kernels, *ADD_ONE, *there)
    assert answer["outputs"]["out0"]["mean"] == 4.5
    facts = answer["rpc"]
    assert (facts["peer"], facts["server"]) == (there[1], "portcall")
    assert facts["requests"] > 5
    assert facts["bytes_sent"] > Path(kernels).stat().st_size
    assert set(facts["seconds"]) == {"queue", "connect", "upload", "load", "copy", "run", "fetch"}
    assert "rpc" not in invoke_json("run", kernels, *ADD_ONE)


def test_run_remote_check_compares_with_local_results(
    invoke: Invoke, kernels: str, there: tuple[str, ...], tmp_path: Path
) -> None:
    saved = tmp_path / "ref.npz"
    assert invoke("run", kernels, *ADD_ONE, "--save", saved).exit_code == 0
    result = invoke("run", kernels, *ADD_ONE, "--check", saved, *there)
    assert result.exit_code == 0, result.output
    assert "ok: " in result.stdout


@pytest.mark.parametrize(("words", "value"), [
    (("add", "--arg", "3", "--arg", "4"), 7), (("half", "--arg", "float:3"), 1.5),
    (("shout", "--arg", "str:hey"), "hey!"),
])  # fmt: skip
def test_run_remote_keeps_types_of_results(
    invoke_json: InvokeJson, kernels: str, there: tuple[str, ...], words: tuple[str, ...], value: object
) -> None:
    assert invoke_json("run", kernels, *words, *there)["returned"] == value


def test_run_remote_compiles_sources_on_the_server(invoke: Invoke, kernels: str, there: tuple[str, ...]) -> None:
    result = invoke("run", Path(kernels).with_suffix(".cc"), "add", "--arg", "3", "--arg", "4", *there)
    assert result.exit_code == 0, result.output
    assert "add(3, 4) returned 7 in " in result.stdout


def test_bench_remote_measures_on_the_server(
    invoke: Invoke, invoke_json: InvokeJson, kernels: str, there: tuple[str, ...]
) -> None:
    words = ("bench", kernels, *ADD_ONE, "--number", "5", "--repeat", "7", *there)
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].endswith(f" on cpu:0 of {there[1]}")
    answer = invoke_json(*words)
    assert len(answer["results_s"]) == 7
    assert answer["rpc"]["seconds"]["run"] > 0
    assert answer["verdict"]["windows"] == 7
    assert answer["conditions"][0]["time_ns"] < answer["conditions"][-1]["time_ns"]
    codes = [warning["code"] for warning in answer["warnings"]]
    assert "few" in codes
    assert "unknown" not in codes


def test_run_and_bench_call_functions_of_the_server_itself(
    invoke: Invoke, invoke_json: InvokeJson, there: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = invoke_json("run", "testing.echo", "--arg", "3", *there)
    assert (answer["library"], answer["function"], answer["returned"]) == ("", "testing.echo", 3)
    assert invoke_json("bench", "testing.nop", "--number", "1", "--repeat", "2", *there)["function"] == "testing.nop"
    missing = invoke_json("run", "testing.nobody", *there, code=1)["error"]
    assert missing["kind"] == "FunctionNotFoundError"
    for file in ("kernels.so", "m.json", f"folder{os.sep}file", "m.onnx"):  # which are files that are missing
        assert "FunctionNotFound" not in invoke_json("run", file, *there, code=1)["error"]["kind"]
    assert invoke_json("run", "testing.echo", code=1)["error"]["kind"] == "ModuleLoadError"


# ---- Failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "code", "said"), [
    (("refuse",), 1, "refuse raised on {peer} ValueError: refused by the kernel"),
    (("crash",), 5, "{peer} crashed"),
    (("crash",), 5, "without --rpc"),
    (("add_one", "--device", "cpu:1"), 3, "they count from 0: there is cpu:0"),
    (("hang", "--timeout", "300ms"), 4, "{peer} did not answer"),
    (("nothing",), 1, "has no function 'nothing'"),
    (("add_onne",), 1, "did you mean add_one"),
    (("leave", "--arg", "0"), 5, "exited with code 0"),
    (("add_one", "--device", "cuda:0"), 3, "device cuda:0 does not exist on {peer}"),
    (("add_one", "--key", "wrong"), 3, "'wrong'"),
])  # fmt: skip
def test_run_remote_failure_has_exit_code_and_server(
    invoke: Invoke, kernels: str, there: tuple[str, ...], words: tuple[str, ...], code: int, said: str
) -> None:
    result = invoke("run", kernels, *there, *words)
    assert result.exit_code == code, result.output
    assert said.format(peer=there[1]) in result.stderr
    assert ("next: " in result.stderr) == (words[0] != "refuse")  # an error of the function's own says it all


def test_run_remote_refuses_a_file_that_is_not_a_library(
    invoke: Invoke, there: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "text.so").write_text("text")
    result = invoke("run", tmp_path / "text.so", "f", "--no-check", *there)
    assert result.exit_code == 1
    assert f"error: {there[1]} does not load '{tmp_path}/text.so'" in result.stderr
    assert invoke("run", tmp_path / "nothing.so", "f", *there).exit_code == 1


@pytest.mark.parametrize("command", ["run", "bench"])
def test_run_remote_does_not_upload_a_library_for_another_machine(
    invoke: Invoke, invoke_json: InvokeJson, there: tuple[str, ...], tmp_path: Path, command: str
) -> None:
    (tmp_path / "k.c").write_text("int f(void) { return 1; }")
    library = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so", target="riscv64-linux-gnu")
    result = invoke(command, library, "f", *there)
    assert result.exit_code == 1
    what, cause, next_step = map(str.strip, result.stderr.splitlines())
    assert what == f"error: {there[1]} cannot load '{library}', so it was not uploaded"
    machine = this_machine()
    assert cause.startswith("likely cause: ")
    assert f"--target {machine.target}" in cause
    assert next_step == f"next: portcall inspect {library}, or --no-check to upload it anyway"
    assert invoke_json(command, library, "f", *there, code=1)["error"]["kind"] == "ModuleLoadError"
    unchecked = invoke(command, library, "f", "--no-check", *there)
    assert (unchecked.exit_code, "not uploaded" in unchecked.stderr) == (1, False)


def test_run_remote_reports_a_server_without_disk_space(invoke: Invoke, kernels: str) -> None:
    with rpc.Server(disk_limit=1000) as server:
        result = invoke("run", kernels, *ADD_ONE, "--rpc", server.address)
    assert result.exit_code == 1
    what, cause, _ = map(str.strip, result.stderr.splitlines())
    assert what.startswith(f"error: {server.address} does not take '{kernels}': ")
    assert "over the limit of 1000 bytes" in what
    assert "--disk-limit" in cause


def test_run_remote_without_server_is_a_connect_error(invoke: Invoke, kernels: str, nowhere: str) -> None:
    for words in (("run", kernels, "add", "--rpc", nowhere), ("doctor", nowhere)):
        result = invoke(*words)
        assert result.exit_code == 3, result.output
        assert f"cannot connect to {nowhere}" in result.stderr


def test_token_option_reads_a_file_or_the_environment(
    invoke: Invoke, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "empty").write_text("\n")
    with rpc.Server(token="s3cret") as server:
        words = ("run", kernels, "add", "--arg", "1", "--arg", "2", "--rpc", server.address)
        assert invoke(*words).exit_code == 3
        assert "wants a token" in invoke(*words).stderr
        assert invoke(*words, "--token-file", tmp_path / "token").exit_code == 0
        empty = invoke(*words, "--token-file", tmp_path / "empty")
        assert empty.exit_code == 1
        assert "is empty" in empty.stderr
        monkeypatch.setenv("PORTCALL_TOKEN", "s3cret")
        assert invoke(*words).exit_code == 0


def test_run_remote_reports_waiting_on_stderr(invoke: Invoke, kernels: str) -> None:
    with rpc.Server(max_sessions=1) as server, rpc.connect(server.address):
        result = invoke("run", kernels, "add", "--rpc", server.address, "--connect-timeout", "1500ms")
    assert result.exit_code == 4
    first, second = result.stderr.splitlines()[:2]
    assert first.startswith("waiting for ")
    assert second.startswith(f"error: {server.address}: ")
    assert second.endswith(first.removeprefix("waiting for "))


def test_run_remote_reports_a_long_call(invoke: Invoke, kernels: str, there: tuple[str, ...]) -> None:
    result = invoke("run", kernels, "hang", "--timeout", "1500ms", *there)
    assert result.exit_code == 4
    assert result.stderr.startswith("waiting for a call: sent, for 1 s")


def test_run_remote_ctrl_c_ends_the_session(kernels: str, there: tuple[str, ...]) -> None:
    with subprocess.Popen([sys.executable, "-m", "portcall", "run", kernels, "hang", *there], stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for a call")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == "error: interrupted\n"


def test_run_remote_shows_upload_progress(
    on_terminal: OnTerminal, kernels: str, there: tuple[str, ...], tmp_path: Path
) -> None:
    large = tmp_path / "large.so"
    large.write_bytes(Path(kernels).read_bytes() + bytes(3 << 20))  # what follows a library does not matter
    code, shown = on_terminal("run", str(large), "add", "--arg", "1", "--arg", "2", *there)
    assert code == 0
    assert b"\rupload large.so  [....................]  0 B of 3." in shown


def test_bench_remote_shows_progress(on_terminal: OnTerminal, kernels: str, there: tuple[str, ...]) -> None:
    for place in ((), there):
        code, shown = on_terminal("bench", kernels, *ADD_ONE, *place)
        assert code == 0
        line = shown.rpartition(b"\rtiming 40 repeats of ")[2]
        assert re.match(rb"[0-9,]+ calls  \[#*\.*\]  [0-9.]+ of [0-9.]+ s\x1b\[K\r\x1b\[K", line), line


def test_run_remote_removes_the_waiting_line(on_terminal: OnTerminal, kernels: str, there: tuple[str, ...]) -> None:
    code, shown = on_terminal("run", kernels, "hang", "--timeout", "1500ms", *there)
    assert code == 4
    before, _, after = shown.rpartition(b"\r\x1b[K")
    assert b"\rwaiting for a call: sent, for 1 s" in before
    assert b"did not answer in time" in after


# ---- doctor and demo ----------------------------------------------------------------------------------------------


def test_doctor_remote_examines_a_server(invoke: Invoke, invoke_json: InvokeJson, server: rpc.Server) -> None:
    result = invoke("doctor", server.address, "--key", "k")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].split() == ["server", f"{server.address},", "of", "portcall"]
    assert result.stdout.splitlines()[-1] == "ok: the server works"
    here = this_machine()
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in result.stdout.splitlines()[:-1])
    assert facts["machine"] == str(here)
    assert facts["compile for it"] == f"portcall compile FILES --target {here.target}"
    assert facts["portcall there"] == f"{here.portcall}, loads modern, modern 0.21, classic libraries"
    answer = invoke_json("doctor", server.address, "--key", "k")
    assert (answer["server"], answer["kind"]) == (server.address, "portcall")
    assert answer["devices"][0]["name"] == "cpu:0"
    assert answer["machine"] == json.loads(json.dumps(asdict(here)))
    assert answer["takes_libraries"]
    assert all(
        answer[name] > 0 for name in ("connect_s", "round_trip_s", "copy_to_bytes_per_s", "copy_from_bytes_per_s")
    )


def test_doctor_of_a_remote_says_how_to_compile_for_it(invoke: Invoke, server: rpc.Server, tmp_path: Path) -> None:
    assert invoke("remote", "add", "rasp", server.address, "--key", "k").exit_code == 0
    advice = re.search(r"portcall (compile .*)", invoke("doctor", "rasp").stdout)
    assert advice is not None
    assert "--for rasp" in advice[1]
    (tmp_path / "k.c").write_text("int f(void) { return 1; }\n")
    made = invoke(*advice[1].replace("FILES", str(tmp_path / "k.c")).split(), "-o", tmp_path / "k.so")
    assert made.exit_code == 0, made.output


def test_demo_remote_starts_a_server(shell: Shell) -> None:
    done = shell("demo", "--rpc", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["remote"]
    assert len(rows) == 5
    assert all(row["seconds"] > 0 for row in rows)
    assert all(row["largest_error"] in (None, 0) or row["largest_error"] < 1e-3 for row in rows)
