# SPDX-License-Identifier: Apache-2.0
"""pytest's plug-in, in runs of pytest of their own."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.boards import place_command
from farm.running import RunningFarm, running_farm
from portcall import rpc, toolchain

ROOT = Path(__file__).parents[2]
DIE = """
import os
import signal
import portcall

@portcall.register_func("test.die")
def die():
    os.abort()

@portcall.register_func("test.stand_still")
def stand_still():
    os.kill(os.getpid(), signal.SIGSTOP)
"""
ORDINARY = """
import pytest

def test_call(remote):
    assert remote["runtime.NumThreads"]() > 0

@pytest.mark.needs("cores>=1 & ram>=1MiB & os=linux")
def test_what_is_there(remote):
    pass

@pytest.mark.needs("ram>=1MiB & ram>=1000TiB & gpu")
def test_what_is_not_there(remote):
    pass

def test_figure(remote, bench):
    assert bench(remote.module, "runtime.NumThreads", number=10, repeat=3).counts.repeat == 3

def test_without_a_board():
    pass
"""
OF_A_FILE = """
def test_figure_of_a_file(bench):
    x = np.ones(4, "float32")
    assert bench("kernels.so", "add_one", x, x.copy(), number=10, repeat=3).counts.repeat == 3
"""
SPINS = """
#include <portcall/portcall.h>

static int64_t Spin(int64_t rounds) {{
  volatile int64_t n = 0;
  for (int64_t i = 0; i < rounds; ++i) n = n + i;
  return n;
}}
PORTCALL_EXPORT_TYPED(heavier, [] {{ return Spin({heavier}); }})
PORTCALL_EXPORT_TYPED(lighter, [] {{ return Spin({lighter}); }})
static void Copy(portcall::TensorView x, portcall::TensorView y) {{ y.data<float>()[0] = x.data<float>()[0]; }}
PORTCALL_EXPORT_TYPED(copy, Copy)
"""
AGAINST = """
import numpy as np
import pytest

@pytest.mark.parametrize("name", ["heavier", "lighter"])
def test_figure(bench, name):
    bench("spins.so", name)

def test_arguments(bench, remote):
    bench("spins.so", "copy", remote.tensor(np.ones(2, "float32")), remote.empty((2,), "float32"), margin=9)
"""


SILENT = """
import pytest

@pytest.fixture(autouse=True)
def less_patience(monkeypatch):
    monkeypatch.setattr("pytest_portcall.CONNECT", 0.2)
    monkeypatch.setattr("pytest_portcall.AGAIN", 0.1)

def test_a(remote): pass
def test_b(remote): pass
def test_c(remote): pass
def test_d(board): board.session().__enter__()
"""


def run(folder: Path, source: str, *words: str, **environment: str) -> dict[str, dict[str, str]]:
    """Run pytest over a file, and return what JUnit's report says of each test: its outcome, message and properties."""
    (folder / "test_it.py").write_text(source)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PORTCALL_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:randomly",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "--junitxml=out.xml",
        *words,
    ]
    done = subprocess.run(
        command, cwd=folder, env={**outside, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        ended = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        properties = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        message = "" if ended is None else str(ended.get("message"))
        found[str(case.get("name"))] = {
            "outcome": "passed" if ended is None else ended.tag,
            "message": message,
            **properties,
        }
    return found


def outcomes(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name.removeprefix("test_"): facts["outcome"] for name, facts in found.items()}


@contextlib.contextmanager
def served(farm: RunningFarm, place: str) -> Iterator[subprocess.Popen[str]]:
    """Run a board of the farm, as its command."""
    words = ("--farm", f"{farm.host}:{farm.port}", "--key", "k", "--place", place, "--silent")
    with subprocess.Popen([*place_command(), *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it listens, and the farm knows it
            yield process
        finally:
            process.terminate()


def test_without_a_name_a_server_of_the_run_serves(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing-on-boards.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    toolchain.create_shared(ROOT / "src" / "portcall" / "cli" / "demo_kernels.cc", tmp_path / "kernels.so")
    found = run(tmp_path, block + ORDINARY + OF_A_FILE, "--portcall-scope=module")
    assert outcomes(found) == {
        "add_one": "passed",
        "call": "passed", "what_is_there": "passed", "what_is_not_there": "skipped", "figure": "passed",
        "figure_of_a_file": "passed", "without_a_board": "passed",
    }  # fmt: skip
    assert found["test_what_is_not_there"]["message"].endswith("has not ram>=1000TiB & gpu")
    assert found["test_call"]["portcall_board"] == "a server of this run"
    assert "portcall_bench" in found["test_figure"]
    assert "portcall_board" not in found["test_without_a_board"]


@pytest.mark.slow
def test_a_library_is_compared_with_an_older_one(tmp_path: Path) -> None:
    for folder, heavier, lighter in ((tmp_path, 60_000, 20_000), (tmp_path / "old", 20_000, 60_000)):
        folder.mkdir(exist_ok=True)
        (folder / "spins.cc").write_text(SPINS.format(heavier=heavier, lighter=lighter))
        toolchain.create_shared(folder / "spins.cc", folder / "spins.so")
    found = run(tmp_path, AGAINST, "--portcall-against=old")
    assert outcomes(found) == {"figure[heavier]": "failure", "figure[lighter]": "passed", "arguments": "passed"}
    assert found["test_figure[heavier]"]["message"].startswith("Failed: heavier: spins.so is slower")
    assert found["test_figure[lighter]"]["portcall_bench"].startswith("spins.so is faster")
    (tmp_path / "old" / "spins.so").unlink()
    found = run(tmp_path, AGAINST, "--portcall-against=old", "-k", "lighter")
    assert "old/spins.so" in found["test_figure[lighter]"]["message"]


def test_crashed_session_is_the_error_of_one_test(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(DIE)
    source = 'def test_a(remote): remote["test.die"]()\ndef test_b(remote): assert remote.machine()\n'
    with rpc.Server(key="k", imports=[str(tmp_path / "functions.py")]) as server:
        found = run(tmp_path, source, "--portcall-remote", server.address, "--portcall-key", "k")
    assert outcomes(found) == {"a": "failure", "b": "passed"}
    assert "RemoteCrashError" in found["test_a"]["message"]
    assert found["test_b"]["portcall_board"] == server.address


def test_session_that_stands_still_is_the_error_of_one_test(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(DIE)
    source = """
def test_a(remote): remote["test.stand_still"]()
def test_b(remote): assert remote.machine()
"""
    (tmp_path / "conftest.py").write_text("import pytest_portcall\npytest_portcall.HEARTBEAT = 3.0\n")
    with rpc.Server(imports=[str(tmp_path / "functions.py")]) as server:
        found = run(tmp_path, source, "--portcall-remote", server.address)
    assert outcomes(found) == {"a": "failure", "b": "passed"}
    assert "silent" in found["test_a"]["message"]


def test_board_that_is_not_there_is_an_error_of_its_tests(tmp_path: Path) -> None:
    with rpc.Server() as server:
        address = server.address
    found = run(tmp_path, ORDINARY, "--portcall-remote", address)
    assert set(outcomes(found).values()) == {"error", "passed"}
    assert outcomes(found)["without_a_board"] == "passed"
    assert "ConnectError" in found["test_call"]["message"]


def test_board_that_does_not_answer_is_tried_twice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        found = run(tmp_path, SILENT, "--portcall-remote", f"{host}:{port}")
        silent.setblocking(False)
        for _ in range(2):
            silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert outcomes(found) == {"a": "error", "b": "error", "c": "error", "d": "failure"}
    assert "Error" in found["test_a"]["message"]
    for name in ("test_c", "test_d"):
        assert "given up" in found[name]["message"]
        assert "within 0.2 s" in found[name]["message"]


def test_full_server_is_not_given_up(tmp_path: Path) -> None:
    with rpc.Server(max_sessions=1) as server, rpc.connect(server.address):
        found = run(tmp_path, SILENT, "--portcall-remote", server.address)
    assert all("queue" in facts["message"] and "given up" not in facts["message"] for facts in found.values())


def test_farm_without_another_board_is_given_up(tmp_path: Path) -> None:
    source = """
import os, signal

def test_a(remote, board):
    os.kill(int(os.environ[board.name]), signal.SIGKILL)
    while True:  # until the session has noticed
        remote["runtime.NumThreads"]()

def test_b(remote): pass
def test_c(remote): pass
"""
    with running_farm() as farm, served(farm, "b1") as board:
        words = ("--portcall-farm", f"{farm.host}:{farm.port}", "--portcall-key", "k", "--portcall-wait", "100ms")
        found = run(tmp_path, source, *words, b1=str(board.pid))
    assert outcomes(found) == {"a": "failure", "b": "error", "c": "error"}
    assert "b1 is offline" in found["test_b"]["message"]
    assert "given up" not in found["test_b"]["message"]
    assert "given up" in found["test_c"]["message"]
    assert "b1 is offline" in found["test_c"]["message"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--portcall-remote=a:1", "--portcall-farm=b:1"), "leave one out"),
        (("--portcall-farm=b:1",), "--portcall-key"),
        (("--portcall-against=missing",), "missing"),
    ],
)
def test_options_that_do_not_fit_end_the_run(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=text):
        run(tmp_path, ORDINARY, *words)


def test_marker_that_cannot_be_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.needs('ram>>1')\ndef test_a(remote): pass\n"
    source += "@pytest.mark.needs('os', 'arch')\ndef test_b(remote): pass\n"
    found = run(tmp_path, source)
    assert "ValueError: cannot read the constraint 'ram>>1'" in found["test_a"]["message"]
    assert "TypeError" in found["test_b"]["message"]


def test_place_that_dies_is_replaced_for_the_next_test(tmp_path: Path) -> None:
    source = """
import os, signal

def test_a(remote, board):
    os.kill(int(os.environ[board.name]), signal.SIGKILL)
    while True:  # until the session has noticed
        remote["runtime.NumThreads"]()

def test_b(remote):
    assert remote["runtime.NumThreads"]() > 0
"""
    with running_farm() as farm, served(farm, "b1") as one, served(farm, "b2") as other:
        words = ("--portcall-farm", f"{farm.host}:{farm.port}", "--portcall-key", "k")
        found = run(tmp_path, source, *words, b1=str(one.pid), b2=str(other.pid))
        assert outcomes(found) == {"a": "failure", "b": "passed"}
        assert {facts["portcall_board"] for facts in found.values()} == {"b1", "b2"}
        assert not farm.state.leases


def test_each_worker_leases_a_place(tmp_path: Path) -> None:
    source = """
import pathlib, time

def meet(name):  # so that both workers run at the same time
    pathlib.Path(name).touch()
    while len(list(pathlib.Path().glob("here*"))) < 2:
        time.sleep(0.01)

def test_a(remote): meet("here-a")
def test_b(remote): meet("here-b")
"""
    with running_farm() as farm, served(farm, "b1"), served(farm, "b2"):
        words = ("--portcall-farm", f"{farm.host}:{farm.port}", "--portcall-key", "k", "-n2")
        found = run(tmp_path, source, *words)
        assert outcomes(found) == {"a": "passed", "b": "passed"}
        assert {facts["portcall_board"] for facts in found.values()} == {"b1", "b2"}


def test_pytest_without_a_board_imports_nothing_of_portcall(tmp_path: Path) -> None:
    found = run(
        tmp_path, "import sys\ndef test_a(): assert not {m for m in sys.modules if m.split('.')[0] == 'portcall'}\n"
    )
    assert outcomes(found) == {"a": "passed"}
