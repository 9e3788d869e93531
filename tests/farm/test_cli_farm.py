# SPDX-License-Identifier: Apache-2.0
"""The commands of a farm, as real processes: a farm, boards, people."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.boards import client, place_command
from farm.running import running_farm
from portcall import toolchain
from portcall.cli._remote import connect_farm, uses_farm

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def started(*words: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command that serves, and yield it with the address of its first line."""
    command = place_command() + words[1:] if words[0] == "serve" else (sys.executable, "-m", "portcall", *words)
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env={**os.environ, **environment}) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert line.startswith("listening on "), line
            yield process, line.removeprefix("listening on ")
        finally:
            process.terminate()
            process.wait(30)


def portcall(*words: object, code: Any = 0, **environment: Any) -> Any:
    """Run a command with --json, and return its object."""
    done = subprocess.run(
        [sys.executable, "-m", "portcall", *map(str, words), "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_farm_command_joins_lists_and_leases_a_board(tmp_path: Path) -> None:
    store = tmp_path / "farm.db"
    with started("farm", "--port", 0, "--store", store) as (_, farm):
        words = ("serve", "--farm", farm, "--key", "rasp4", "--place", "b1", "--tag", "gpu=mali", "--tag", "fans=2",
                 "--silent")  # fmt: skip
        with started(*words):
            where = {"PORTCALL_FARM": farm}
            place = portcall("farm", "status", **where)["places"][0]
            assert (place["place"], place["tags"]["gpu"], place["tags"]["fans"]) == ("b1", "mali", 2)
            report = portcall("doctor", "--farm", farm, "--key", "rasp4 & gpu=mali")
            assert report["server"] == "b1"
            refused = portcall("doctor", "--key", "rasp4 & gpu=none", code=1, **where)
            assert refused["error"]["kind"] == "FarmError"
            inside = f"{sys.executable} -m portcall doctor --json {tmp_path / 'inside.json'}"
            done = subprocess.run(
                [sys.executable, "-m", "portcall", "farm", "reserve", "rasp4", "--", "sh", "-c", inside],
                env={**os.environ, **where}, check=False,
            )  # fmt: skip
            assert done.returncode == 0
            assert json.loads((tmp_path / "inside.json").read_text())["server"] == "b1"
            assert portcall("farm", "who", **where)["leases"] == []
            assert portcall("farm", "maintain", "b1", "--why", "new fan", **where)["health"] == "maintenance"
            events = portcall("farm", "history", "--place", "b1", **where)["events"]
            assert {"place registered", "place leased", "place maintenance"} <= {e["what"] for e in events}
        assert portcall("farm", "status", **where)["places"] == []


def test_serve_gives_each_server_of_a_key_on_one_machine_a_place() -> None:
    with running_farm() as farm, contextlib.ExitStack() as stack:
        words = ("serve", "--farm", f"{farm.host}:{farm.port}", "--key", "k", "--silent")
        servers = [stack.enter_context(started(*words))[0] for _ in range(4)]
        base = f"{socket.gethostname()}-k"
        assert list(farm.state.places) == [base, f"{base}-2", f"{base}-3", f"{base}-4"]
        with client(farm) as lab:
            leases = [lab.lease("k") for _ in range(4)]
            assert {lease.place for lease in leases} == set(farm.state.places)
            for lease in leases:
                lease.release()
        servers[1].kill()  # whose name is free then: its next start has it again
        servers[1].wait()
        stack.enter_context(started(*words))
        assert len(farm.state.places) == 4


@pytest.mark.parametrize("named_port", [True, False])
def test_serve_tells_the_farm_a_custom_address(named_port: bool) -> None:
    with running_farm() as farm, socket.create_server(("127.0.0.2", 0)) as router:
        port = router.getsockname()[1]
        words = ("serve", "--farm", f"{farm.host}:{farm.port}", "--key", "k", "--silent", "--place", "b")
        there = f"127.0.0.2:{port}" if named_port else "127.0.0.2"
        with started(*words, "--custom-addr", there) as (_, own):
            place = farm.state.places["b"]
            assert (place.host, place.port) == ("127.0.0.2", port if named_port else int(own.rpartition(":")[2]))
            if not named_port:
                return
            host, _, number = own.rpartition(":")
            thread = threading.Thread(target=forward, args=(router, (host, int(number))))
            thread.start()
            with client(farm) as lab, lab.lease("k") as lease, lease.session() as session:
                assert session["testing.echo"](7) == 7
            thread.join()


def forward(router: socket.socket, to: tuple[str, int]) -> None:
    """Pass one connection on, as a router does."""
    here, _ = router.accept()
    there = socket.create_connection(to)

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # an end may be reset
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    with here, there:
        back = threading.Thread(target=copy, args=(there, here))
        back.start()
        copy(here, there)
        back.join()


@pytest.mark.parametrize(
    "words",
    [
        ("--custom-addr", "lab"),
        ("--custom-addr", "lab:0", "--farm", "127.0.0.1:1", "--key", "k"),
        ("--custom-addr", "lab", "--relay", "--farm", "127.0.0.1:1", "--key", "k"),
    ],
)
def test_serve_refuses_a_custom_address_that_nobody_could_use(words: tuple[str, ...]) -> None:
    done = subprocess.run([*place_command(), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr


def test_readme_lines_of_the_farm_run(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text().partition("A farm shares boards")[2].partition("## ")[0]
    lines = [shlex.split(line, comments=True)[1:] for line in re.findall("^    (portcall .*)", page, re.MULTILINE)]
    start, join, run = lines
    kernels = toolchain.create_shared(ROOT / "src/portcall/cli/demo_kernels.cc", tmp_path / "kernels.so")
    with started(*start, "--port", 0, "--store", tmp_path / "farm.db") as (_, farm):
        here = {"127.0.0.1:9190": farm, "kernels.so": str(kernels)}
        with started(*(here.get(word, word) for word in join), "--silent"):
            assert portcall(*(here.get(word, word) for word in run))["outputs"]


def test_farm_command_restores_places_and_leases_after_a_kill(tmp_path: Path) -> None:
    store = tmp_path / "farm.db"
    with contextlib.ExitStack() as stack:
        process, farm = stack.enter_context(started("farm", "--port", 0, "--store", store))
        where = {"PORTCALL_FARM": farm}
        stack.enter_context(started("serve", "--farm", farm, "--key", "k", "--place", "b1", "--silent"))
        holder = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "portcall", "farm", "reserve", "k", "--", "sh", "-c", "echo ready; cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **where},
            )
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        before = portcall("farm", "who", **where)["leases"][0]["lease"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        port = farm.rpartition(":")[2]
        stack.enter_context(started("farm", "--port", port, "--store", store))
        while portcall("farm", "status", **where)["places"][0]["state"] != "leased":
            pass
        assert portcall("farm", "who", **where)["leases"][0]["lease"] == before
        assert holder.stdin is not None
        holder.stdin.close()
        assert holder.wait(30) == 0
        assert portcall("farm", "who", **where)["leases"] == []


@pytest.mark.parametrize("words", [["status"], ["who"], ["drain", "x"], ["kick", "x", "--why", "y"]])
def test_farm_command_names_a_missing_farm(words: list[str]) -> None:
    report = portcall("farm", *words, "--farm", "127.0.0.1:9", code=3)
    assert report["error"]["kind"] == "ConnectError"
    assert "portcall farm" in report["error"]["next"]
    assert "portcall serve" not in report["error"]["next"]


def test_farm_command_without_token_proposes_the_options() -> None:
    with started("farm", "--port", 0, "--store", ":memory:", "--require-tokens") as (_, farm):
        join = ("serve", "--key", "k", "--silent")
        for words, token in ((("farm", "status"), ""), (("farm", "status"), "ptk_wrong"), (join, "")):
            report = portcall(*words, "--farm", farm, code=3, PORTCALL_FARM_TOKEN=token)
            assert report["error"]["kind"] == "AuthenticationError"
            for way in ("--token-file", "PORTCALL_FARM_TOKEN", "portcall farm token NAME"):
                assert way in report["error"]["next"]


def test_farm_command_terminated_leaves_the_queue() -> None:
    with started("farm", "--port", 0, "--store", ":memory:") as (_, farm):
        where = {"PORTCALL_FARM": farm}
        with started("serve", "--farm", farm, "--key", "k", "--place", "b1", "--silent"):
            reserve = [sys.executable, "-m", "portcall", "farm", "reserve", "k", "--"]
            holder = subprocess.Popen([*reserve, "cat"], stdin=subprocess.PIPE, env={**os.environ, **where})
            with holder:
                while not portcall("farm", "who", **where)["leases"]:
                    pass
                waiter = subprocess.Popen([*reserve, "true"], stderr=subprocess.PIPE, env={**os.environ, **where})
                with waiter:
                    assert waiter.stderr is not None
                    assert b"in the queue" in waiter.stderr.readline()
                    waiter.terminate()
                    assert waiter.wait(30) == 128 + signal.SIGTERM
                assert portcall("farm", "status", **where)["waiting"] == []


def test_farm_request_prints_a_ticket_that_later_commands_use() -> None:
    with started("farm", "--port", 0, "--store", ":memory:") as (_, farm):
        where = {"PORTCALL_FARM": farm}
        with started("serve", "--farm", farm, "--key", "k", "--place", "b1", "--silent"):
            found = portcall("farm", "request", "k", "--for", "10m", **where)
            for _ in range(2):
                assert portcall("doctor", PORTCALL_LEASE=found["ticket"], **where)["server"] == "b1"
            assert 500 < portcall("farm", "show", found["lease"], **where)["ttl"] <= 600
            portcall("farm", "release", found["ticket"], **where)
            assert portcall("farm", "who", **where)["leases"] == []


@pytest.mark.parametrize("named", ["", "PORTCALL_FARM", "TVM_TRACKER_HOST"])
def test_commands_with_a_lease_use_the_farm_of_this_machine_by_default(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PORTCALL_FARM", "TVM_TRACKER_HOST", "TVM_TRACKER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PORTCALL_LEASE", "id:secret")
    if named:
        monkeypatch.setenv(named, "lab:9191" if named == "PORTCALL_FARM" else "lab")
    given = {"farm": "", "key": "", "token_file": None, "tls_ca": None}
    assert uses_farm(None, given)
    expected = {"": "127.0.0.1:9190", "PORTCALL_FARM": "lab:9191", "TVM_TRACKER_HOST": "lab:9190"}
    with connect_farm(given) as farm:
        assert farm.address == expected[named]


def test_farm_kick_ends_the_holders_command_with_the_reason() -> None:
    with started("farm", "--port", 0, "--store", ":memory:") as (_, farm):
        where = {"PORTCALL_FARM": farm}
        with started("serve", "--farm", farm, "--key", "k", "--place", "b1", "--silent"):
            words = [sys.executable, "-m", "portcall", "farm", "reserve", "k", "--", "sleep", "1000"]
            with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **where}) as holder:
                while not (leases := portcall("farm", "who", **where)["leases"]):
                    pass
                shown = subprocess.run(
                    [sys.executable, "-m", "portcall", "farm", "show", leases[0]["lease"]], capture_output=True,
                    text=True, check=True, env={**os.environ, **where},
                ).stdout  # fmt: skip
                assert "ago" in shown
                assert str(int(leases[0]["since"])) not in shown
                portcall("farm", "kick", leases[0]["lease"], "--why", "demo at ten", **where)
                assert holder.wait(30) == 3
                assert holder.stderr is not None
                assert "demo at ten" in holder.stderr.read()


def test_farm_join_saves_a_token_and_history_prints_lines(tmp_path: Path) -> None:
    store = tmp_path / "farm.db"
    with started("farm", "--port", 0, "--store", store) as (_, farm):
        code = portcall("farm", "pair", "ann", "--role", "operator", "--farm", farm)["code"]
        mine = {"PORTCALL_FARM": farm, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        saved = Path(portcall("farm", "join", code, "--save", **mine)["saved"])
        assert saved.stat().st_mode & 0o077 == 0
        port = farm.rpartition(":")[2]
    with started("farm", "--port", port, "--store", store, "--require-tokens"):
        assert portcall("farm", "status", **mine)["places"] == []
        portcall("farm", "pair", "eve", code=1, **mine)  # not for operators
        heads = {}
        for form in ("csv", "jsonl"):
            done = subprocess.run(
                [sys.executable, "-m", "portcall", "farm", "history", "--as", form], capture_output=True, text=True,
                check=True, env={**os.environ, **mine},
            )  # fmt: skip
            heads[form] = done.stdout.splitlines()[:1]
        assert heads["csv"] == ["number,time,what,place,lease,user,detail"]
