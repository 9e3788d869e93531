# SPDX-License-Identifier: Apache-2.0
"""Facts of the wire that stand in C++, in Python and on the page: each place must say the same."""

from __future__ import annotations

import re
from pathlib import Path

from portcall import rpc
from portcall.rpc.server._options import BASE_PATTERNS
from portcall.rpc.wire import _endings, _handshake
from rpc import raw_client

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/wire.md").read_text()
FRAMES = PAGE.partition("## 2. Frames")[2].partition("\n## ")[0]
CODEC = (ROOT / "core/rpc/codec.h").read_text()
PROGRESS = (ROOT / "core/rpc/progress.h").read_text()


def body_of(source: str, head: str) -> str:
    return source.partition(head)[2].partition("\n};")[0]


def constants(body: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"\bk(\w+) = (\d+)", body)}


CODES = constants(body_of(CODEC, "enum class Code"))


def test_wire_facts_message_codes_agree() -> None:
    on_the_page = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| (\w+) \| \w+", FRAMES, re.MULTILINE)}
    extensions = {"Output": 32, "Sync": 64, "Fetch": 65, "Callback": 66, "DropFunction": 67}  # in the table of features
    assert len(on_the_page) == 21
    assert {**on_the_page, **extensions, "None": 0} == CODES
    by_hand = {"SHUTDOWN": "Shutdown", "INIT": "InitServer", "CALL": "CallFunc", "RETURN": "Return", "ACK": "CopyAck",
               "EXCEPTION": "Exception", "COPY_FROM": "CopyFromRemote", "COPY_TO": "CopyToRemote",
               "GET_FUNCTION": "GetGlobalFunc", "FREE": "FreeHandle", "ALLOC": "DevAllocDataWithScope"}  # fmt: skip
    for name, code in by_hand.items():
        assert getattr(raw_client, name) == CODES[code]


def test_exception_frame_has_the_codecs_code() -> None:
    frame = _endings.exception_frame("text")
    assert frame == raw_client.frame(CODES["Exception"], raw_client.sequence(raw_client.text("text")))


def test_wire_facts_protocol_versions_agree() -> None:
    (version,) = re.findall(r'kProtocolVersion = "([\d.]+)"', CODEC)
    assert f"A session begins with InitServer, whose version is `{version}`" in PAGE
    assert version.encode() in raw_client.init()


def test_wire_facts_handshake_codes_agree() -> None:
    on_the_page = {name: int(code, 16) for name, code in re.findall(r"^\| (\w+) \| `(0x\w+)` \|", PAGE, re.MULTILINE)}
    assert on_the_page == {
        "success": _handshake.MAGIC, "duplicate": _handshake.DUPLICATE, "mismatch": _handshake.MISMATCH,
        "notice": _handshake.NOTICE,
    }  # fmt: skip


def test_progress_is_read_as_it_is_written() -> None:
    states = constants(body_of(PROGRESS, "struct Progress"))
    assert (states["Between"], states["Closed"], states["Lost"]) == (
        _endings._BETWEEN, _endings._CLOSED, _endings._LOST,
    )  # fmt: skip
    members = re.findall(r"std::atomic<(\w+)> (\w+)\{", body_of(PROGRESS, "struct Progress"))
    assert members == [("uint32_t", "state"), ("uint64_t", "received"), ("uint64_t", "sent")]
    (size,) = re.findall(r"sizeof\(Progress\) == ([\d +*]+)", PROGRESS)
    assert eval(size) == _endings.PROGRESS_BYTES


def test_server_without_python_offers_the_same_functions() -> None:
    listed = body_of((ROOT / "core/board/session.cc").read_text(), "kOffered[] = {")
    assert [*re.findall(r'"([^"]+)"', listed)] == [*BASE_PATTERNS]


def test_server_in_javascript_offers_no_more_than_others_do() -> None:
    source = (ROOT / "js/src/rpc/server/core_endpoint.ts").read_text()
    (listed,) = re.findall(r"const OFFERED = \[([^]]+)\];", source)
    offered = re.findall(r'"([^"]+)"', listed)
    not_there = ("rpc.", "portcall.rpc.", "vm.", "relax.")  # other servers, files of its own, machines
    assert offered == [name for name in BASE_PATTERNS if name in offered or not name.startswith(not_there)]
    assert "tvm.rpc.server.*" in offered


def test_server_without_python_has_the_same_features() -> None:
    (listed,) = re.findall(r"kFeatures\[\] = \{([^}]+)\}", (ROOT / "core/board/hello.cc").read_text())
    assert re.findall(r'"([^"]+)"', listed) == sorted(_handshake.FEATURES)


def test_server_without_python_describes_a_crash_in_the_same_words() -> None:
    source = (ROOT / "core/board/ending.cc").read_text()
    assert f"kDeviceFailed = {_endings.DEVICE_FAILED};" in (ROOT / "core/board/ending.h").read_text()
    headers = "".join((ROOT / "core/include/portcall" / name).read_text() for name in ("c_api.h", "dlpack.h"))
    values = {name: int(number) for name, number in re.findall(r"\b(k(?:TVMFFI|DL)\w+) = (\d+)", headers)}
    for table, here in (("kTypes", _endings._TYPES), ("kCodes", _endings._CODES)):
        rows = re.findall(r'\{(\w+), "(\w+)"\}', source.partition(f"{table}[] = {{")[2].partition(";")[0])
        assert {values[name]: word for name, word in rows} == here
    limits = dict(re.findall(r"\b(kMost\w+) = (\d+)", source))
    assert limits == {"kMostLines": str(_endings._MOST_LINES), "kMostLine": str(_endings._MOST_LINE),
                      "kMostWord": str(_endings._MOST_WORD)}  # fmt: skip


def test_max_frame_has_one_default() -> None:
    (bits,) = re.findall(r"max_frame = uint64_t\{1\} << (\d+)", (ROOT / "core/rpc/endpoint.h").read_text())
    assert rpc.ServerOptions().max_frame == 1 << int(bits)


def test_wire_facts_last_messages_agree() -> None:
    prefix = "RPCSessionTimeoutError: "
    ending = _endings.last_message(_endings.Ending("expired"), "TVM", 5)
    assert prefix.encode() in ending
    assert f'"{prefix}"' in (ROOT / "core/rpc/client_connection.cc").read_text()
    assert f"`{prefix}`" in PAGE
