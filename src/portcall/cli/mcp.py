# SPDX-License-Identifier: Apache-2.0
"""``portcall mcp``: the commands as tools of the Model Context Protocol, over standard input and output.

Rules:

* A tool runs one command of this program in a process of its own, without a shell, and returns what its ``--json``
  prints.
* Text of a client becomes a value after ``=`` or a word after ``--``, never an option; files lie in one folder; servers
  are those that have names here; the ticket of a lease stays here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

import portcall
from portcall.bench import format_duration
from portcall.cli._arguments import FILLS
from portcall.cli._command import Command, read_limit
from portcall.cli._output import print_json
from portcall.cli._store import read_remotes
from portcall.extras import needed

EXAMPLES = """
portcall mcp                                                        what is read, in this folder
portcall mcp --folder models --allow run --allow write              compile, verify and bench there, too
portcall mcp --farm lab:9190 --allow run --allow lease              on boards of a farm
portcall mcp --json                                                 the tools that a client would see
"""
ALLOW = ("run", "write", "lease")
# What decides where a command works, beside its words.
PLACES = ("PORTCALL_FARM", "PORTCALL_KEY", "PORTCALL_LEASE", "TVM_TRACKER_HOST", "TVM_TRACKER_PORT", "TVM_TRACKER_KEY")
VALUE = re.compile(rf"(?:{'|'.join(FILLS)})(?::\w+\[[\d, ]*\])?|(?:\w+:)?[-+\w.]+|str:.*", re.DOTALL)
ARRAY_FILE = re.compile(r"(@?)(.+?\.(?:npy|npz))((?::\w+)?)", re.DOTALL)
TARGET = re.compile(r"[\w.:+-]*")
LISTED, LETTERS = 100, 4000  # of a list and of a text, in an answer
GROUPS = ("capsule", "farm", "remote")  # commands that have commands
LIMIT_BYTES = 64 << 20  # of the output of a command
INSTRUCTIONS = """Libraries, models and boards, by portcall. Files are named relative to one folder.
A tool that fails says why, the likely cause and the next step.
Figures of bench have a verdict: what it doubts is no fact."""


class Tools:
    """The tools; each public method is one. Refused arguments are ValueErrors."""

    def __init__(self, folder: Path, farm: str, token_file: str | None, timeout: float) -> None:
        self._folder = folder.resolve()
        self._farm = farm
        self._farm_words = (f"--farm={farm}", *(() if token_file is None else (f"--token-file={token_file}",)))
        self._timeout = timeout
        self._tickets: dict[str, str] = {}
        self._turn = asyncio.Lock()  # what runs beside a measurement spoils it

    async def places(self) -> dict[str, Any]:
        """List where libraries can run: servers that have names here, and the farm's places, leases and queue."""
        found = await self._command("remote", "list")
        return {**found, "farm": await self._command("farm", "status", *self._farm_words) if self._farm else None}

    async def history(self, place: str = "", lease: str = "") -> dict[str, Any]:
        """Read what happened at the farm and why: how leases ended, why a place is out of use."""
        return await self._command("farm", "history", *self._farm_words, f"--place={place}" * bool(place),
                                   f"--lease={lease}" * bool(lease))  # fmt: skip

    async def inspect(self, file: str) -> dict[str, Any]:
        """Read what a library, bundle, ONNX model or file of parameters has and needs, without loading it."""
        return await self._command("inspect", "--", self._file(file))

    async def doctor(self, remote: str = "") -> dict[str, Any]:
        """Read versions, compilers, devices and advice of this machine; or whether a named server answers."""
        return await self._command("doctor", *([_known(remote)] if remote else []))

    async def read_result(self, file: str) -> dict[str, Any]:
        """Read what a command wrote with --json FILE: a measurement with its verdict, a report, or why it failed."""
        path = Path(self._file(file, ".json"))
        if path.stat().st_size > LIMIT_BYTES:
            raise ValueError(f"'{file}' is too large")
        return {"result": _shortened(json.loads(path.read_text(encoding="utf-8")))}

    async def crash(self, file: str) -> dict[str, Any]:
        """Read how a session crashed that a capsule (*.capsule) keeps: function, types of arguments, stderr, files."""
        return await self._command("capsule", "show", "--", self._file(file))

    async def verify(self, bundle: str, model: str, inputs: list[str] | None = None) -> dict[str, Any]:
        """Run a compiled model and its ONNX model on the same inputs; say whether they agree, and where they begin to
        differ. Inputs: NAME=VALUE, such as data=random, ids=random:int64[1,128], x=@x.npy, length=3."""
        words = (f"--against={self._file(model, '.onnx')}", *self._inputs(inputs))
        return await self._command("verify", *words, "--", self._file(bundle))

    async def bench(
        self, file: str, function: str = "", arguments: list[str] | None = None, outputs: list[str] | None = None,
        inputs: list[str] | None = None, remote: str = "", lease: str = "", against: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Time a function of a library, or a model; the verdict says whether the figure can be trusted.

        arguments: in order, such as random:float32[1024], 3, @x.npy; outputs: float32[1024]; inputs of a model:
        NAME=VALUE.
        It runs here, on a server by its name, or on the place of a lease. against: an older file to compare with.
        """
        words = [f"--arg={self._value(text)}" for text in arguments or []]
        words += [f"--out={_matching(VALUE, text.strip(), 'output', 'zeros:')}" for text in outputs or []]
        words += [*self._inputs(inputs), "--fill=random"] if not function else []
        words += [f"--rpc={_known(remote)}"] if remote else []
        words += [f"--against={self._file(against)}"] if against else []
        ticket = self._ticket(lease) if lease else ""
        return await self._command("bench", *words, "--", self._file(file), *([function] if function else []),
                                   ticket=ticket)  # fmt: skip

    async def compile(self, file: str, output: str, target: str = "", remote: str = "") -> dict[str, Any]:
        """Compile an ONNX model, C or C++ (file) to a library or bundle (output, *.so), for this machine, for a target
        such as aarch64-linux-gnu, or for a server by its name. Models are compared with onnxruntime."""
        words = [f"--target={_matching(TARGET, target, 'target')}"] if target else []
        words += [f"--for={_known(remote)}"] if remote else []
        made = self._file(output, ".so", made=True)
        return await self._command("compile", f"--output={made}", *words, "--", self._file(file))

    async def lease(self, want: str, minutes: int = 30, wait_s: int = 60) -> dict[str, Any]:
        """Lease a place of the farm, such as 'rasp4 & ram>=4GiB'. It is given back when this server ends."""
        times = (f"--for={minutes}m", f"--wait={wait_s}s")
        made = await self._command("farm", "request", *self._farm_words, *times, "--", want)
        self._tickets[made["lease"]] = made.pop("ticket")
        return made

    async def release(self, lease: str) -> dict[str, Any]:
        """Give a place back that was leased here."""
        self._ticket(lease)
        found = await self._command("farm", "release", *self._farm_words, "--", lease)
        del self._tickets[lease]
        return found

    def _release_all(self) -> None:
        """Give back what is leased, without waiting: a client soon kills a server that it has left."""
        for lease in self._tickets:
            words = [sys.executable, "-m", "portcall", "farm", "release", *self._farm_words, "--", lease]
            null = subprocess.DEVNULL
            subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)

    async def _command(self, *words: str, ticket: str = "") -> dict[str, Any]:
        """Run a command, and return what it printed as JSON.

        Raises:
            RuntimeError: it failed; the message has the cause and the next step.
        """
        environment = {name: value for name, value in os.environ.items() if name not in PLACES}
        environment |= {"PORTCALL_LEASE": ticket, "PORTCALL_FARM": self._farm} if ticket else {}
        name, *rest = filter(None, words)
        async with self._turn:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "portcall", name, *rest[: words[0] in GROUPS], "--json",
                *rest[words[0] in GROUPS :], cwd=self._folder, env=environment, start_new_session=True,
                limit=LIMIT_BYTES, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                printed, said = await asyncio.wait_for(process.communicate(), self._timeout)
            except asyncio.TimeoutError:
                raise RuntimeError(f"it did not end within {format_duration(self._timeout)} and was killed") from None
            finally:
                with contextlib.suppress(ProcessLookupError):  # what it started, too
                    os.killpg(process.pid, signal.SIGKILL)
        try:
            answer = json.loads(printed)
        except ValueError:
            raise RuntimeError(said.decode(errors="replace")[-LETTERS:] or "it printed nothing") from None
        if error := answer.get("error"):
            parts = (error.get("message"), error.get("cause"), error.get("next"))
            raise RuntimeError("\n".join(filter(None, parts))[:LETTERS])
        found: dict[str, Any] = _shortened(answer)
        return found if process.returncode == 0 else {**found, "exit_code": process.returncode}

    def _file(self, text: str, suffix: str = "", made: bool = False) -> str:
        """Return the absolute path of a file of the folder, where no link leads out of it."""
        path = (self._folder / text).resolve()
        if not path.is_relative_to(self._folder) or (path.exists() and not path.is_file()):
            raise ValueError(f"'{text}' is not a file in the folder of this server")
        if not path.name.endswith(suffix):
            raise ValueError(f"'{text}' does not end in {suffix}")
        if not (path.parent.is_dir() if made else path.is_file()):
            raise ValueError(f"there is no '{text}'")
        return str(path)

    def _value(self, text: str) -> str:
        if found := ARRAY_FILE.fullmatch(text):
            return f"@{self._file(found[2])}{found[3]}"
        return _matching(VALUE, text, "value")

    def _inputs(self, texts: list[str] | None) -> list[str]:
        pairs = [text.partition("=") for text in texts or []]
        return [f"--input={name}={self._value(value)}" for name, _, value in pairs]

    def _ticket(self, lease: str) -> str:
        if lease not in self._tickets:
            raise ValueError(f"'{lease}' is no lease of this server: {', '.join(self._tickets) or 'there is none'}")
        return self._tickets[lease]


def _known(remote: str) -> str:
    """Return the name of a server, and not an address that a client made up."""
    if remote not in read_remotes():
        raise ValueError(f"there is no server of the name '{remote}': {', '.join(read_remotes()) or 'none has a name'}")
    return remote


def _matching(pattern: re.Pattern[str], text: str, what: str, before: str = "") -> str:
    if not pattern.fullmatch(before + text):
        raise ValueError(f"'{text}' is no {what}")
    return text


def _shortened(value: Any) -> Any:
    """Return an answer of which long lists and texts have only their beginning."""
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        more = [f"and {len(value) - LISTED} more"] if len(value) > LISTED else []
        return [*map(_shortened, value[:LISTED]), *more]
    return value[:LETTERS] + "…" if isinstance(value, str) and len(value) > LETTERS else value


@click.command("mcp", cls=Command, examples=EXAMPLES)
@click.option("--folder", default=".", type=click.Path(exists=True, file_okay=False),
              help="Where files of tools lie; no other is read or written.")  # fmt: skip
@click.option("--allow", multiple=True, type=click.Choice(ALLOW), help="run: load and call libraries (verify, bench); "
              "write: compile; lease: take places of the farm. Can be repeated.")  # fmt: skip
@click.option("--farm", default="", metavar="HOST:PORT", help="The farm whose places are listed and leased.")
@click.option("--token-file", type=click.Path(exists=True), help="File with the farm's token.")
@click.option("--timeout", default="10m", show_default=True, metavar="TIME", callback=read_limit,
              help="How long a tool may take.")  # fmt: skip
def command(
    folder: str, allow: tuple[str, ...], farm: str, token_file: str | None, timeout: float, json_to: str | None
) -> None:
    """A server of the Model Context Protocol, which a client starts and talks to over standard input and output. By
    itself it reads only. --json prints the tools, and ends.

    Who may run a library, or compile, can do whatever you can: native code is not kept in the folder.
    """
    with needed("mcp", "a server of the Model Context Protocol"):
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations

    tools = Tools(Path(folder), farm, None if token_file is None else os.path.abspath(token_file), timeout)
    chosen: list[Callable[..., Any]] = [tools.places, tools.inspect, tools.doctor, tools.read_result, tools.crash]
    chosen += [tools.history] if farm else []
    changing: list[Callable[..., Any]] = [tools.verify, tools.bench] if "run" in allow else []
    changing += [tools.compile] if "write" in allow else []
    changing += [tools.lease, tools.release] if "lease" in allow else []
    server = MCPServer("portcall", version=portcall.__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    for tool in (*chosen, *changing):
        note = ToolAnnotations(read_only_hint=tool in chosen, destructive_hint=tool in changing)
        server.add_tool(_told(tool, ToolError), tool.__name__, annotations=note)
    if json_to is not None:
        listed = asyncio.run(server.list_tools())
        print_json(
            {"tools": [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]}, json_to
        )
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        server.run("stdio")
    finally:
        tools._release_all()


def _told(tool: Callable[..., Any], as_error: type[Exception]) -> Callable[..., Any]:
    """Return a tool whose errors are words for the client."""

    @functools.wraps(tool)
    async def told(**given: Any) -> Any:
        try:
            return await tool(**given)
        except (OSError, RuntimeError, ValueError) as error:
            raise as_error(str(error)) from error

    return told


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
