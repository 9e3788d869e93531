# SPDX-License-Identifier: Apache-2.0
"""A farm in which one call, or one line, of its own code fails: ``python -m farm.injected [call|line]`` in ``tests``.

A script of what peers, people and time do runs again and again; in the n-th run the n-th call raises an error that the
code does not know. Each peer does again what has failed. In the end everything must be as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from portcall import farm
from portcall.farm import _hub, _leases
from portcall.farm._access import Access
from portcall.farm._api import Api
from portcall.farm._command import ApiError
from portcall.farm._guests import Guest, Guests
from portcall.farm._hub import Hub
from portcall.farm._model import Event, Lease, Rules
from portcall.farm._relay import End, Peer, Relay
from portcall.farm._store import Store
from portcall.farm._tracker import Tracker

FOLDER = str(Path(farm.__file__).parent)
# What the event loop calls has nobody above it that could catch anything; ``_attempt`` is what catches.
ENTRIES = {"connection_made", "connection_lost", "data_received", "lost", "ensure", "_on_timer", "lose", "_withdraw"}
ENTRIES |= {"_attempt", "_settle", "<genexpr>"}  # a generator is also called when it is thrown away
RULES = Rules(claim=10, clean=30)


class InjectedError(Exception):
    """An error that no code knows."""


class Injection:
    """Lets the n-th call, or line, of the farm's code fail, once."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.left = kind, number
        self.where = ""

    def arm(self) -> None:
        if not self.where:
            sys.settrace(self.trace)

    def trace(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if self.where or not code.co_filename.startswith(FOLDER) or code.co_name in ENTRIES:
            return None
        if event == self.kind:
            self.left -= 1
            if not self.left:
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                raise InjectedError(self.where)
        return self.trace if self.kind == "line" else None


class FakeTransport(asyncio.Transport):
    """What a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 9190) if name == "sockname" else None

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class FakeEnd(End):
    """A peer of the proxy."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.sent = b""
        self.finished = False

    def send(self, data: bytes | memoryview) -> None:
        self.sent += bytes(data)

    def left(self) -> int:
        return 0

    def stop_reading(self, stop: bool) -> None:
        pass

    def finish(self) -> None:
        self.finished = True

    def show(self) -> None:
        pass


class World:
    """One farm, its peers, and what they were told."""

    def __init__(self, injection: Injection) -> None:
        self.injection = injection
        self.told: list[str] = []
        self.store = Store(":memory:")
        self.hub = Hub(self.store, RULES, lambda kind, text: self.told.append(f"{kind}: {text}"))
        self.api = Api(self.hub, Access(self.store, required=False, note=self.hub.note))
        self.relay = Relay(self.hub, lambda address: True)
        self.trackers: set[Tracker] = set()
        self.guests = Guests()
        self.secrets: dict[str, str] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.failed = 0
        self.rested = False
        self.broken = False  # a connection of a TVM peer
        self.events: list[Event] = []
        self.hub.watchers.append(self.events.extend)

    # ---- Peers, who try again ----

    async def again(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Do something, and once more where it fails; an answer that says that it was done already is as good."""
        for attempt in (1, 2):
            self.injection.arm()
            try:
                return await act()
            except ApiError as error:
                if attempt == 1 or error.status not in (404, 409, 410) or error.reason == "register":
                    raise
                return {}
            except (InjectedError, _hub.TurnError):
                self.failed += 1
                assert attempt == 1, "one error costs one request"
            finally:
                await self.rest()
        raise AssertionError

    async def rest(self) -> None:
        """Let the farm try again, by itself, what has failed."""
        sys.settrace(None)
        for _ in range(3):
            await asyncio.sleep(0)
        if self.injection.where and not self.rested:
            self.rested = True
            await asyncio.sleep(0.005)

    async def command(self, what: str, **fields: Any) -> Any:
        return await self.again(lambda: self.api.call({"do": what, "hold": 0, **fields}, ""))

    async def register(self, place: str) -> None:
        answer = await self.command("register", place=place, keys=["k"], tags={"ram": 4}, instance="i")
        self.secrets[place] = answer["agent"]

    async def next(self, place: str, *done: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            answer = await self.command("next", place=place, agent=self.secrets[place], done=list(done))
        except ApiError as error:  # as a real agent does
            if error.reason != "register":
                raise
            await self.register(place)
            answer = await self.command("next", place=place, agent=self.secrets[place])
        found: list[dict[str, Any]] = answer["orders"]
        return found

    async def serve(self, place: str, *done: dict[str, Any]) -> None:
        """Do what an agent is to do, until there is nothing left."""
        reports, quiet = list(done), 0
        for _ in range(7):
            orders = await self.next(place, *reports)
            reports = []
            for order in orders:
                answers = {"offer": ["accepted"], "end": ["ended", "cleaned"]}[order["do"]]
                reports += [{"what": answer, "fence": order["fence"]} for answer in answers]
            quiet = 0 if reports else quiet + 1
            if quiet == 2:
                return

    async def request(self, user: str, **more: Any) -> None:
        self.leases[user] = await self.command("request", want="k", secret=user * 40, user=user, **more)

    def id(self, user: str) -> str:
        return str(self.leases[user]["lease"])

    async def tracker(self) -> list[Any]:
        transport = FakeTransport()
        guest = Guest(self.guests, "127.0.0.1", lambda why: transport.close())
        peer = Tracker(self.hub, self.trackers, lambda address: True, guest)
        peer.connection_made(transport)
        peer.data_received(b"\x71\xf2\x02\x00")
        return [peer, transport]

    async def tell(self, peer: list[Any], value: Any, answered: bool = True) -> None:
        data = json.dumps(value).encode()

        async def send() -> None:
            peer[1].written = b""
            try:
                peer[0].data_received(struct.pack("<i", len(data)) + data)
            except InjectedError:  # then the loop ends the connection
                peer[1].close()
            for _ in range(20):  # it comes with the next turn where notifying has failed
                if answered and not peer[1].written and not peer[1].closed:
                    await asyncio.sleep(0.001)
            if peer[1].closed:  # the peer connects again
                self.broken = True
                peer[0].connection_lost(None)
                peer[:] = await self.tracker()
            refused = b"mistake" in peer[1].written or b"is over" in peer[1].written
            self.broken |= refused  # then its server has to come first
            if peer[1].closed or refused or not (self.broken or peer[1].written or not answered):
                raise InjectedError(self.injection.where)

        await self.again(send)

    async def end(self, lost: Callable[[], None]) -> None:
        """End a connection; this is never said again."""
        self.injection.arm()
        try:
            lost()
        except InjectedError:  # the loop says so, and goes on
            self.failed += 1
        finally:
            await self.rest()

    async def pass_time(self, seconds: float) -> None:
        self.hub._offset += seconds
        await self.end(self.hub._on_timer)

    async def join(self, text: str) -> Peer:
        async def greet() -> Peer:
            peer = Peer(self.relay, FakeEnd())
            try:
                peer.feed(struct.pack("<ii", 0xFF271, len(text)) + text.encode())
            except Exception:  # then the loop ends the connection
                peer.lost()
                raise
            return peer

        peer: Peer = await self.again(greet)
        return peer

    # ---- The script ----

    async def run(self) -> None:
        await self.register("b1")
        await self.request("ann", limit=1000)
        await self.serve("b1")
        await self.command("wait", lease=self.id("ann"), secret="ann" * 40)
        await self.request("bob")
        await self.serve("b1", {"what": "opened", "fence": self.hub.state.places["b1"].fence, "session": "1"})
        await self.command("renew", lease=self.id("ann"))
        await self.command("extend", lease=self.id("ann"), seconds=500)
        await self.command("kick", lease=self.id("ann"), why="mine", user="admin")
        await self.pass_time(1)
        await self.serve("b1")
        await self.command("wait", lease=self.id("bob"), secret="bob" * 40)
        await self.request("eve")
        await self.command("release", lease=self.id("eve"))
        await self.register("b2")
        await self.command("quarantine", place="b2", why="hot", seconds=50)
        await self.pass_time(51)
        await self.command("maintain", place="b2", why="hot")
        server, client, waiting = await self.tracker(), await self.tracker(), await self.tracker()
        await self.tell(server, [5, {"key": "server:t", "addr": [None, 1]}])
        await self.tell(server, [3, "t", [9999, "t:1"], None])
        await self.tell(client, [4, "t", "tim", 1])
        await self.tell(waiting, [4, "t", "tom", 1], answered=False)
        await self.tell(server, [7])
        await self.tell(server, [3, "t", [9999, "t:2"], None])
        await self.end(lambda: client[0].connection_lost(None))
        await self.end(lambda: waiting[0].connection_lost(None))
        await self.end(lambda: server[0].connection_lost(None))
        proxied = await self.join("server:p")
        guest = await self.join("client:p")
        await self.end(guest.lost)
        await self.end(proxied.lost)
        await self.command("leave", place="b2", agent=self.secrets["b2"])
        await self.pass_time(100)
        await self.serve("b1")

    # ---- What must hold ----

    def check(self) -> None:
        state = self.hub.state
        with self.hub.turn():
            pass
        assert not self.hub.store_error
        places, leases = self.store.load()
        assert {p.id: p.encode() for p in places} == {p.id: p.encode() for p in state.places.values()}
        assert {x.id: same(x) for x in leases} == {x.id: same(x) for x in state.leases.values()}
        given = [lease.place for lease in leases if lease.state in ("offered", "active")]
        assert len(set(given)) == len(given), "two leases of one place"
        assert sum(state._held.values()) == len(given)
        assert state.queue.size == sum(lease.state == "queued" for lease in leases)
        history = self.store.history()
        assert [e["time"] for e in history] == sorted(e["time"] for e in history)
        assert [e["what"] for e in history] == [e.what for e in self.events], "a watcher was told of what is not stored"
        assert not self.hub._image.effects

    def facts(self) -> Any:
        """What must be the same with and without an error; TVM's peers cannot ask again for what they were not told."""
        state = self.hub.state
        ended = sorted(e.detail for e in self.events if e.what == "lease ended" and "@" not in e.user)
        granted = [e.user for e in self.events if e.what == "lease active" and "@" not in e.user]
        return [(p.id, p.state, p.health) for p in state.places.values()], len(state.leases), ended, granted


def same(lease: Lease) -> dict[str, Any]:
    """A lease without what signs of life change, which is not stored each time."""
    return {name: value for name, value in lease.to_dict().items() if name not in ("expires", "match_key")}


async def run_once(kind: str, number: int) -> World:
    world = World(Injection(kind, number))
    try:
        await world.run()
        world.check()
    finally:
        where = world.injection.where
        world.hub.close()
        if where and sys.exc_info()[0] is not None:
            print(f"injected at {kind} {number}: {where}", *world.told, sep="\n  ")
    return world


def run_all(kind: str, step: int = 1) -> Iterator[World]:
    """Run the script with an error at each call, or line, until there are no more."""
    number = 1
    while True:
        world = asyncio.run(run_once(kind, number))
        if not world.injection.where:
            return
        yield world
        number += step


def compare(kind: str, step: int = 1) -> int:
    """Let each call, or line, fail, or every so many of them; return how many did."""
    usual = asyncio.run(run_once(kind, 0)).facts()
    count = 0
    for world in run_all(kind, step):
        count += 1
        assert world.broken or world.facts() == usual, "\n".join(
            [world.injection.where, *world.told, *(f"{e.what} {e.place} {e.user} {e.detail}" for e in world.events)]
        )
    return count


def main(kind: str) -> None:
    _hub._AGAIN = _leases.END_PATIENCE = 0.0
    print(f"an error at each of {compare(kind)} {kind}s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "call")
