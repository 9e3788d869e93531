# SPDX-License-Identifier: Apache-2.0
"""``portcall mcp`` with the client of the package ``mcp``, over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import helper

from farm.test_cli_farm import portcall, started
from portcall import toolchain

if TYPE_CHECKING:
    from mcp import Client

READ = {"places", "inspect", "doctor", "read_result", "crash"}
EVERYTHING = ("--allow", "run", "--allow", "write", "--allow", "lease")
Talk = Callable[..., Any]
ADD = """
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })
PORTCALL_EXPORT_TYPED(refuse, [] { PORTCALL_CHECK(false, ValueError) << "refused by the kernel"; })
PORTCALL_EXPORT_TYPED(crash, [] { __builtin_trap(); })
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a server, beside a file that is none of its business."""
    made = tmp_path / "folder"
    made.mkdir()
    (made / "add.cc").write_text(ADD)
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    (tmp_path / "secret.npy").write_bytes(b"")
    (made / "link.json").symlink_to(tmp_path / "secret.json")
    return made


@pytest.fixture
def talk(folder: Path) -> Talk:
    """Start a server with some options, and have a client talk to it."""

    def run(work: Callable[[Client], Awaitable[Any]], *words: str) -> Any:
        from mcp import Client, StdioServerParameters, stdio_client  # an environment that is older collects the tests

        async def both() -> Any:
            command = ["-m", "portcall", "mcp", "--folder", str(folder), *words]
            server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
            async with Client(stdio_client(server)) as client:
                return await work(client)

        return asyncio.run(both())

    return run


async def answer(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    assert not result.is_error, result.content
    found: dict[str, Any] = json.loads(result.content[0].text)
    return found


async def refusal(client: Client, tool: str, **given: Any) -> str:
    result = await client.call_tool(tool, given)
    assert result.is_error, result.content
    return str(result.content[0].text)


def test_mcp_reads_only_unless_more_is_allowed(talk: Talk, folder: Path) -> None:
    (folder / "result.json").write_text('{"error": {"message": "why it failed"}, "many": [' + "1," * 500 + "1]}")

    (folder / "a.capsule").write_text('portcall capsule 1\n{"signal": "SIGSEGV"}\n')

    async def read(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READ
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        result = (await answer(client, "read_result", file="result.json"))["result"]
        assert result["error"] == {"message": "why it failed"}
        assert len(result["many"]) == 101
        for path in ("../secret.json", "link.json", str(folder.parent / "secret.json"), ".", "", "--help", "none.json"):
            assert "secret" not in (await refusal(client, "read_result", file=path)).replace(path, "")
        assert (await answer(client, "crash", file="a.capsule"))["signal"] == "SIGSEGV"
        assert "there is no" in await refusal(client, "inspect", file="--json=taken.json")
        assert (await answer(client, "places"))["farm"] is None
        for remote in ("127.0.0.1:1", "--json=taken.json", "ssh://-oProxyCommand=touch taken"):
            assert "no server of the name" in await refusal(client, "doctor", remote=remote)

    talk(read)
    assert sorted(path.name for path in folder.iterdir()) == ["a.capsule", "add.cc", "link.json", "result.json"]


def test_mcp_compiles_inspects_and_benches_with_a_verdict(talk: Talk, folder: Path) -> None:
    async def work(client: Client) -> None:
        await answer(client, "compile", file="add.cc", output="add.so")
        assert set((await answer(client, "inspect", file="add.so"))["functions"]) == {"add", "crash", "refuse"}
        told = await answer(client, "bench", file="add.so", function="add", arguments=["3", "int64:4"])
        assert told["verdict"]
        assert "refused by the kernel" in await refusal(client, "bench", file="add.so", function="refuse")
        assert "crashed" in await refusal(client, "bench", file="add.so", function="crash")
        assert "no function" in await refusal(client, "bench", file="add.so", function="--json=taken.json")
        for value in ("@../secret.npy", "../secret.npy", f"@{folder.parent}/secret.npz:x", "3 --json=taken.json", "@x"):
            assert "None" not in await refusal(client, "bench", file="add.so", function="add", arguments=["3", value])
        for output in ("../taken.so", "taken.txt", "no/taken.so", "add.cc", "--json=taken.json"):
            await refusal(client, "compile", file="add.cc", output=output)
        await refusal(client, "compile", file="add.cc", output="b.so", target="native --option=-fplugin=x.so")

    talk(work, *EVERYTHING)
    assert sorted(path.name for path in folder.iterdir()) == ["add.cc", "add.so", "link.json"]


def model(path: Path, weight: float) -> None:
    """y = relu(x * weight), as ONNX."""
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    weights = helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [weight])
    made = helper.make_graph(nodes, "m", value[:1], value[1:], [weights])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_mcp_compiles_a_model_and_verifies_it(talk: Talk, folder: Path) -> None:
    model(folder / "m.onnx", 2)
    model(folder / "other.onnx", 3)

    async def work(client: Client) -> None:
        await answer(client, "compile", file="m.onnx", output="m.so")
        told = await answer(client, "verify", bundle="m.so", model="m.onnx", inputs=["x=ones"])
        assert (told["ok"], told.get("exit_code")) == (True, None)
        told = await answer(client, "verify", bundle="m.so", model="other.onnx", inputs=["x=ones"])
        assert (told["ok"], told["exit_code"], [each["name"] for each in told["outputs"]]) == (False, 1, ["y"])
        for given in (
            {"bundle": "m.so", "model": "../secret.json"},
            {"bundle": "m.so", "model": "m.so"},
            {"bundle": "--json=taken.so", "model": "m.onnx"},
            {"bundle": "m.so", "model": "m.onnx", "inputs": ["x=@../secret.npy"]},
            {"bundle": "m.so", "model": "m.onnx", "inputs": ["--json=taken.json"]},
        ):
            await refusal(client, "verify", **given)

    talk(work, *EVERYTHING)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["add.cc", "link.json", "m.onnx", "m.so", "other.onnx"]


def test_mcp_leases_a_place_of_a_farm_benches_there_and_gives_it_back(talk: Talk, folder: Path, tmp_path: Path) -> None:
    toolchain.create_shared(folder / "add.cc", folder / "add.so")
    with (
        started("farm", "--port", 0, "--store", tmp_path / "farm.db") as (_, farm),
        started("serve", "--farm", farm, "--key", "rasp4", "--place", "b1", "--silent"),
    ):

        async def work(client: Client) -> str:
            assert (await answer(client, "places"))["farm"]["places"][0]["place"] == "b1"
            made = await answer(client, "lease", want="rasp4")
            assert "ticket" not in made
            given = {"file": "add.so", "function": "add", "arguments": ["3", "4"], "lease": made["lease"]}
            told = await answer(client, "bench", **given)
            assert told["rpc"]["peer"]
            for want in ("--help", "--farm=127.0.0.1:1", "no such key"):
                await refusal(client, "lease", want=want, wait_s=0)
            assert (await answer(client, "release", lease=made["lease"]))["lease"] == made["lease"]
            assert "is no lease" in await refusal(client, "bench", **given)
            return str((await answer(client, "lease", want="rasp4"))["lease"])

        kept = talk(work, "--farm", farm, "--allow", "lease", "--allow", "run")
        while portcall("farm", "status", "--farm", farm)["leases"]:
            pass
        assert "released" in json.dumps(portcall("farm", "history", "--farm", farm, "--lease", kept)["events"])


def test_mcp_ends_a_tool_that_takes_too_long(talk: Talk, folder: Path) -> None:
    (folder / "stay.cc").write_text(
        "#include <portcall/portcall.h>\n#include <unistd.h>\nPORTCALL_EXPORT_TYPED(stay, [] { ::pause(); })\n"
    )
    toolchain.create_shared(folder / "stay.cc", folder / "stay.so")

    async def work(client: Client) -> None:
        assert "did not end" in await refusal(client, "bench", file="stay.so", function="stay")

    talk(work, "--allow", "run", "--timeout", "5s")
