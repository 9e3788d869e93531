# SPDX-License-Identifier: Apache-2.0
"""Boards and clients of a farm that cost next to nothing: hundreds of them in one process, over its commands.

A board obeys as a real agent does, and does not protect itself: where the farm lends it twice, that is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

LOST = (OSError, EOFError, ValueError, asyncio.IncompleteReadError, asyncio.TimeoutError, TimeoutError)


class RefusedError(Exception):
    """The farm refuses a command; ``status`` is that of HTTP."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(f"{status} {answer.get('reason')}: {answer.get('error')}")
        self.status = status
        self.reason = str(answer.get("reason"))


class Channel:
    """One connection for commands, made when it is needed."""

    def __init__(self, port: int, user: str) -> None:
        self._port, self._user = port, user
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, what: str, hold: float = 0, **fields: Any) -> dict[str, Any]:
        """Give a command.

        Raises:
            RefusedError: the farm refuses it.
            LOST: nobody answers.
        """
        body = json.dumps({"do": what, "user": self._user, "hold": hold, **fields}).encode()
        head = f"POST /api HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
        try:
            status, answer = await asyncio.wait_for(
                self._exchange(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body), hold + 30
            )
        except BaseException:
            self.close()
            raise
        if status != 200:
            raise RefusedError(status, answer)
        return answer

    async def _exchange(self, request: bytes) -> tuple[int, dict[str, Any]]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        size = next(int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length:"))
        answer = json.loads(await reader.readexactly(size))
        return int(head.split()[1]), answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        """End the connection as the end of a process does: without a word."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


@dataclass
class Facts:
    """What a soak has seen."""

    count: Counter[str] = field(default_factory=Counter)
    conflicts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def conflict(self, text: str) -> None:
        self.conflicts.append(text)
        del self.conflicts[20:]
        self.count["conflicts"] += 1


class Board:
    """A place whose sessions are entries of a dict.

    Attributes:
        sessions: the leases of the sessions that are open, by the keys of their clients.
    """

    def __init__(self, port: int, name: str, keys: list[str], facts: Facts) -> None:
        self.name = name
        self._port, self._keys, self._facts = port, keys, facts
        self._start()

    def _start(self) -> None:
        self._fence = 0
        self._admitted: dict[str, tuple[int, str]] = {}
        self.sessions: dict[str, tuple[int, str]] = {}
        self._channel = Channel(self._port, self.name)
        self._reports = Channel(self._port, self.name)
        self._instance = secrets.token_hex(8)
        self._agent = ""

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        while True:
            try:
                await self._serve()
            except RefusedError as refused:
                self._facts.count[f"agent refused: {refused.reason}"] += 1
            except LOST:
                self._facts.count["agent lost the farm"] += 1
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def _serve(self) -> None:
        sessions = [*self.sessions]
        answer = await self._channel.call("register", place=self.name, keys=self._keys, tags={"light": True},
                                          host="127.0.0.1", port=9, fence=self._fence, sessions=sessions,
                                          instance=self._instance)  # fmt: skip
        self._agent = answer["agent"]
        done: list[dict[str, Any]] = []
        while True:
            answer = await self._channel.call("next", hold=10, place=self.name, agent=self._agent, done=done)
            done = [report for order in answer["orders"] for report in self._obey(order)]

    def _obey(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        what, fence = order["do"], order["fence"]
        if what == "end":
            self._admitted = {key: of for key, of in self._admitted.items() if of[0] > fence}
            self.sessions = {key: of for key, of in self.sessions.items() if of[0] > fence}
            return [{"what": "ended", "fence": fence}, {"what": "cleaned", "fence": fence}]
        if what == "offer":
            held = {lease for of, lease in self.sessions.values() if lease != order["lease"]}
            if held:
                self._facts.conflict(f"{self.name} was offered to {order['lease']} while {held} had sessions")
            if fence <= self._fence:
                self._facts.conflict(f"{self.name} was offered with fence {fence}, after {self._fence}")
        self._fence = max(self._fence, fence)
        self._admitted[order["key"]] = (fence, order["lease"])
        return [{"what": "accepted" if what == "offer" else "admitted", "fence": fence, "key": order["key"]}]

    def open(self, key: str, lease: str) -> bool:
        """Open a session; return whether the farm has admitted its client."""
        of = self._admitted.pop(key, None)
        if of is None:
            return False
        others = {other for _, other in self.sessions.values() if other != of[1]}
        if others or of[1] != lease:
            self._facts.conflict(f"{self.name} has sessions of {others}, and now one of {of[1]} for {lease}")
        self.sessions[key] = of
        self._facts.count["sessions"] += 1
        return True

    def close(self, key: str) -> None:
        self.sessions.pop(key, None)

    def die(self) -> None:
        """Lose everything, as a process that is killed does; ``run`` again is another process."""
        self._channel.close()
        self._reports.close()
        self._start()


class Client:
    """Asks for places, uses them, and leaves in every way there is."""

    def __init__(self, port: int, number: int, boards: dict[str, Board], facts: Facts, keys: list[str]) -> None:
        self._port, self._boards, self._facts, self._keys = port, boards, facts, keys
        self._draw = random.Random(number)
        self._user = f"user{number % 40}"
        self.doing = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Make requests, one after the other, until somebody stops this; each ends."""
        while not stop.is_set():
            channel = Channel(self._port, self._user)
            begin = time.monotonic()
            try:
                how = await self._use_place(channel)
            except RefusedError as refused:
                how = f"refused: {refused.status} {refused.reason}"
            except LOST as error:
                how = f"lost: {type(error).__name__}"
            finally:
                channel.close()
            self._facts.count[f"request {how}"] += 1
            longest = self._facts.count["longest request, s"]
            self._facts.count["longest request, s"] = max(longest, round(time.monotonic() - begin))
            await asyncio.sleep(self._draw.uniform(0, 0.3))

    async def _again(self, channel: Channel, what: str, **fields: Any) -> dict[str, Any]:
        """Give a command again while the farm is away, as real clients do."""
        for pause in (0.2, 0.5, 1, 2, 3):
            try:
                return await channel.call(what, **fields)
            except LOST:
                await asyncio.sleep(pause)
        return await channel.call(what, **fields)

    async def _use_place(self, channel: Channel) -> str:
        draw, secret = self._draw, secrets.token_hex(16)
        want = draw.choice(self._keys) + draw.choice(["", "", " & light", " & light & !flaky"])
        self.doing = f"request {want}"
        more = {"class": draw.choice(["normal", "batch"]), "priority": draw.randint(-3, 3)}
        view = await self._again(channel, "request", hold=5, want=want, secret=secret, ttl=5, wait=30, **more)
        fields = {"lease": view["lease"], "secret": secret}
        while view["state"] not in ("active", "ended"):
            if draw.random() < 0.02:
                return "left while it waited"
            self.doing = f"wait for {want}, {view['state']}"
            view = await self._again(channel, "wait", hold=5, seen=view.get("position", 0), **fields)
        if view["state"] == "ended":
            return f"ended: {view['reason']}"
        board = self._boards[view["place"]]
        for _ in range(draw.choice([1, 1, 2])):
            if not view.get("key"):
                self.doing = f"session with {view['place']}"
                view = await self._again(channel, "session", hold=5, **fields)
            key, view["key"] = view["key"], ""
            if not board.open(key, fields["lease"]):
                self._facts.count["key not admitted"] += 1
                continue
            try:
                await asyncio.sleep(draw.uniform(0.1, 1.0))
                if draw.random() < 0.05:
                    await asyncio.sleep(6)  # longer than the lease lasts without a word
                elif draw.random() < 0.3:
                    await self._again(channel, "renew", **fields)
                if draw.random() < 0.1:
                    return "left without a word"  # its session ends, its lease is left
            finally:
                board.close(key)
        self.doing = f"release {view['place']}"
        with contextlib.suppress(RefusedError):  # it may be over
            await self._again(channel, "release", **fields)
        return "done"
