# SPDX-License-Identifier: Apache-2.0
"""Boards that are places of a farm, with ``portcall serve``'s agent or the server without Python, and clients."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import portcall
from farm.fake_farm import FakeFarm
from farm.running import RunningFarm
from portcall import errors, rpc
from rpc import board as program

HOOKS = ("check", "prepare", "clean", "hook_limit")


def client(farm: RunningFarm, **options: Any) -> portcall.farm.Farm:
    return portcall.farm.connect(f"{farm.host}:{farm.port}", **{"token": "", "user": "ann", **options})


def place_command() -> tuple[str, ...]:
    """The words that start a server, to which those of a place are added."""
    return (str(program.program()),) if program.under_test() else (sys.executable, "-m", "portcall", "serve")


def board(
    farm: RunningFarm | FakeFarm, name: str = "board", key: str = "k", **more: Any
) -> contextlib.AbstractContextManager[Any]:
    """Run a board until the end of the block; options are those of places and of servers."""
    return (process_board if program.under_test() else agent_board)(farm, name, key, **more)


@contextlib.contextmanager
def agent_board(farm: RunningFarm | FakeFarm, name: str, key: str, **more: Any) -> Iterator[portcall.farm.Agent]:
    """Run an agent in a thread, its server in a process as always."""
    relay = more.pop("relay", None)
    hooks = {name: more.pop(name) for name in HOOKS if name in more}
    channel = portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", more.pop("token", ""), more.pop("tls", None))
    agent = portcall.farm.Agent(
        channel,
        portcall.farm.PlaceOptions(name, (key,), more.pop("tags", {}), relay, **hooks),
        rpc.ServerOptions(port=0, log="none", **more),
    )
    ready = threading.Event()
    errors_seen: list[BaseException] = []

    def run() -> None:
        try:
            agent.run(lambda address: ready.set())
        except BaseException as error:
            errors_seen.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="agent")
    thread.start()
    try:
        ready.wait()
        if errors_seen:
            raise errors_seen[0]
        yield agent
    finally:
        agent.stop()
        thread.join()


@contextlib.contextmanager
def process_board(
    farm: RunningFarm | FakeFarm | str, name: str, key: str, **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run the server without Python.

    Raises:
        FarmError: it ended by itself.
    """
    where = farm if isinstance(farm, str) else f"{farm.host}:{farm.port}"
    words = [str(program.program()), "--farm", where, "--place", name, "--key", key, "--silent"]
    words += ["--relay"] * bool(more.pop("relay", False))
    for tag, value in more.pop("tags", {}).items():
        words += ["--tag", tag if value is True else f"{tag}={value}"]
    if "hook_limit" in more:
        words += ["--hook-limit", f"{more.pop('hook_limit')}s"]
    if more.pop("imports", ()):
        words += ["--load-library", str(program.functions())]
    environment = {"PORTCALL_FARM_TOKEN": more.pop("token", "")}
    words += [word for option, value in more.items() for word in ("--" + option.replace("_", "-"), str(value))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if not process.stdout.readline().startswith("listening on "):
                raise errors.FarmError(process.stderr.read(), peer=where)
            yield process
        finally:
            process.terminate()
