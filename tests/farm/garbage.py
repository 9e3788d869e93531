# SPDX-License-Identifier: Apache-2.0
"""Bytes and commands that no peer of a farm should send, for each of its protocols; and peers that are slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import struct
from collections import Counter
from typing import Any

TRACKER, PROXY = b"\x71\xf2\x02\x00", b"\x71\xf2\x0f\x00"
LOST = (OSError, EOFError, asyncio.TimeoutError, TimeoutError)
TEXTS = ["\ud800", "a\udfffb", "\x00", "\x1b[2J", "a\r\nb", "\u202e", "x" * 1001, "x" * 100_000, "", "' OR 1=1 --",
         "{}", "../../etc/passwd", "\uffff", "%n%s", "<script>", "k0 & \ud800", "& & &"]  # fmt: skip
VALUES: list[Any] = [*TEXTS, -1, 0, 1e308, 10**400, True, None, [], {}, [[]] * 50, {"a": {"b": []}}, "\ud800" * 100]
COMMANDS = ["request", "wait", "renew", "release", "extend", "check", "checked", "session", "kick", "lease", "status",
            "history", "drain", "undrain", "maintain", "good", "quarantine", "retire", "register", "next", "report",
            "leave", "keep", "token-make", "token-revoke", "pair", "redeem", "\ud800", ""]  # fmt: skip
FIELDS = ["want", "secret", "class", "priority", "ttl", "limit", "wait", "hold", "seen", "lease", "place", "why",
          "seconds", "keys", "tags", "instance", "host", "port", "fence", "sessions", "patience", "agent", "done",
          "for", "role", "days", "token-of", "code", "job", "user", "of"]  # fmt: skip
PATHS = ["/", "/events", "/history", "/history.csv", "/history.json", "/metrics", "/place/%00", "/place/%ed%a0%80",
         "/ws", "/pair?code=%ff", "/login", "/healthz", "/readyz", "/" + "a" * 9000, "//", "/%", "/device"]  # fmt: skip


def command(draw: random.Random) -> bytes:
    """Return a command with wrong values, in JSON."""
    fields = {draw.choice(FIELDS): draw.choice(VALUES) for _ in range(draw.randint(0, 8))}
    fields.setdefault("secret", "s" * 32)
    if draw.random() < 0.3:
        fields["want"] = f"none & {draw.choice(TEXTS)}"
    fields["place"] = draw.choice(TEXTS) + "garbage"  # never that of a board
    if draw.random() < 0.3:
        fields["tags"] = {draw.choice(TEXTS): draw.choice(VALUES)}
        fields["keys"] = [draw.choice(TEXTS) + "garbage"]
    body = json.dumps({"do": draw.choice(COMMANDS), **fields}).encode()
    return draw.choice([body, body, body, body[: len(body) // 2], b"[" * 100_000, b"\xff\xfe", b"NaN", b"{}" * 1000])


def http(draw: random.Random) -> bytes:
    body = command(draw)
    if draw.random() < 0.7:
        head = b"POST /api HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        size = draw.choice([len(body), len(body), len(body), len(body) + 5, 1 << 40, -1])
        return head + str(size).encode() + b"\r\n\r\n" + body
    path = draw.choice(PATHS).encode()
    extra = draw.choice([b"", b"Authorization: Bearer \xff\xfe\r\n", b"Cookie: portcall-farm=\x01\r\n", b"X" * 20_000])
    return (
        draw.choice([b"GET ", b"HEAD", b"PUT ", b"DELETE "])
        + path
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + extra
        + b"\r\n"
    )


def tracker(draw: random.Random) -> bytes:
    said: Any = draw.choice([
        [0], [1, "garbage", [1, "x"], None], [2, "garbage", "\ud800", 1], [3, "garbage", "\ud800", -1], [4, "\ud800"],
        [5, []], [6, {"key": "server:\ud800", "addr": [None, 70000]}], ["x"] * 1000, {}, None, [2], [99, 1, 2],
    ])  # fmt: skip
    data = json.dumps(said).encode()
    size = draw.choice([len(data), len(data), len(data), -1, 1 << 30, len(data) + 7])
    return TRACKER + struct.pack("<i", size) + data


def proxy(draw: random.Random) -> bytes:
    key = draw.choice([b"client:garbage", b"server:garbage", b"\xff" * 20, b"", b"client:" + b"k" * 5000])
    return PROXY + struct.pack("<i", draw.choice([len(key), -1, 1 << 30])) + key + os.urandom(draw.randint(0, 300))


def tls(draw: random.Random) -> bytes:
    return b"\x16\x03\x01" + struct.pack(">H", draw.choice([512, 65535, 0])) + os.urandom(draw.randint(0, 600))


def bytes_(draw: random.Random) -> bytes:
    return os.urandom(draw.randint(1, 999))


KINDS = {"http": http, "tracker": tracker, "proxy": proxy, "tls": tls, "bytes": bytes_}


async def throw(port: int, stop: asyncio.Event, count: Counter[str], seed: int) -> None:
    """Send garbage until somebody stops this; some of it slowly, some to a farm whose answers nobody reads."""
    draw = random.Random(seed)
    while not stop.is_set():
        kind = draw.choice([*KINDS])
        with contextlib.suppress(*LOST):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                data = KINDS[kind](draw)
                way = draw.choice(["at once", "at once", "at once", "half", "slow", "deaf"])
                count[f"garbage: {kind}, {way}"] += 1
                if way == "half":
                    writer.write(data[: len(data) // 2])
                    await asyncio.sleep(draw.uniform(0, 2))
                elif way == "slow":
                    for byte in data[:40]:
                        writer.write(bytes([byte]))
                        await asyncio.sleep(0.1)
                        if writer.is_closing() or reader.at_eof():
                            break
                elif way == "deaf":
                    writer.write(b"GET /history.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20)
                    await asyncio.sleep(draw.uniform(0, 5))
                else:
                    writer.write(data)
                    await asyncio.wait_for(reader.read(1 << 16), 2)
            finally:
                writer.transport.abort()
        await asyncio.sleep(draw.uniform(0.02, 0.3))
