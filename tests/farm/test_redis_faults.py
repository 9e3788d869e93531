# SPDX-License-Identifier: Apache-2.0
"""A farm on a real redis-server that fails, forgets, or has what nobody can read; and processes that fail."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farm.redis_server import RedisServer, redis_server
from farm.test_cli_farm import started
from portcall.farm import _member, _redis
from portcall.farm._hub import DeposedError, Hub
from portcall.farm._member import Member
from portcall.farm._model import Event, Place, rows_of
from portcall.farm._port import FORWARDED, NONCE, proof_of
from portcall.farm._redis import RedisStore
from portcall.farm._server import FarmOptions, Server
from portcall.farm._store import StoreError

PREFIX = "{portcall-farm}:"


class RunningMember:
    """One process of a farm, in a thread of this one with an event loop of its own; ``said`` is its log."""

    def __init__(self, store: str, **options: Any) -> None:
        self.said: list[str] = []
        self._options = FarmOptions(port=0, store=store, **options)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="farm")
        self._thread.start()
        self._ready.wait()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            log: Any = lambda kind, text: self.said.append(f"{kind}: {text}")  # noqa: E731
            self.member = Member(self._options, log)
            self.address = self.member.store.address
            await self.member.start()
        finally:
            self._ready.set()
        await self._stopping.wait()
        await self.member.stop()

    @property
    def leads(self) -> bool:
        return self.member.server is not None

    def until(self, condition: Callable[[], Any]) -> None:
        async def call() -> None:
            while not condition():
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(call(), self.loop).result(120)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()


@contextlib.contextmanager
def running(store: str, **options: Any) -> Iterator[RunningMember]:
    member = RunningMember(store, **options)
    try:
        yield member
    finally:
        member.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> Iterator[str]:
    with contextlib.closing(RedisStore(server.url)) as store:
        store._redis.flushall()
        yield server.url


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    """A client of Redis."""
    with contextlib.closing(RedisStore(url)) as store:
        yield store._redis


@contextlib.contextmanager
def leading(url: str, address: str = "a:1") -> Iterator[RedisStore]:
    with contextlib.closing(RedisStore(url, address)) as store:
        assert store.lead()
        yield store


def call(address: str, **command: Any) -> Any:
    """Return what a farm answers; None where it closes the connection."""
    host, _, port = address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request("POST", "/api", json.dumps(command), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def comes_back(address: str, place: str) -> None:
    """Wait until a farm takes a place, and shows it."""
    while not (call(address, do="register", place=place, keys=["k"]) or {}).get("agent"):
        pass
    while place not in [p["place"] for p in (call(address, do="status") or {}).get("places", [])]:
        pass


# ---- Turns: whole or not at all, and by one process ----


def test_turns_are_refused_after_redis_lost_its_data(url: str, raw: Any) -> None:
    with leading(url) as old, contextlib.closing(RedisStore(url, "b:1")) as new:
        old.save(rows_of([Place("p", keys=("k",))], []), [Event(1.0, "one")], 1.0, None)
        raw.flushall()
        with pytest.raises(StoreError):
            old.save(rows_of([Place("q", keys=("k",))], []), [Event(2.0, "two")], 2.0, None)
        assert raw.keys() == []
        assert new.lead()
        assert not old.beat()
        with pytest.raises(StoreError):
            old.set_fact("x", 1)
        new.save({}, [Event(3.0, "three")], 3.0, None)
        assert [event["what"] for event in new.history()] == ["three"]


def test_turns_are_refused_after_redis_came_back_with_older_data(url: str, raw: Any) -> None:
    with leading(url) as store:
        store.save(rows_of([Place("p", keys=("k",), fence=1)], []), [Event(1.0, "one")], 1.0, None)
        with contextlib.closing(RedisStore(url)) as binary:
            binary._redis.connection_pool.connection_kwargs.update(decode_responses=False)
            binary._redis.connection_pool.disconnect()
            older = {key: binary._redis.dump(key) for key in (PREFIX + "number", PREFIX + "places")}
            store.save(rows_of([Place("p", keys=("k",), fence=2)], []), [], 2.0, None)
            for key, value in older.items():
                binary._redis.restore(key, 0, value, replace=True)
        with pytest.raises(StoreError):
            store.save(rows_of([Place("q", keys=("k",))], []), [], 3.0, None)
        assert not store.beat()
        assert [place.fence for place in store.load()[0]] == [1]


def test_turn_that_fails_leaves_nothing(url: str, raw: Any) -> None:
    with leading(url) as store:
        raw.set(PREFIX + "events", "a text")
        with pytest.raises(StoreError):
            store.save(rows_of([Place("p", keys=("k",))], []), [Event(1.0, "one")], 1.0, None)
        assert not raw.exists(PREFIX + "places")
        raw.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreError):
                store.set_tokens({"hash": {}})
        finally:
            raw.config_set("maxmemory", 0)
        assert not raw.exists(PREFIX + "tokens")


def test_events_have_rising_numbers_whatever_is_in_the_stream(url: str, raw: Any) -> None:
    with leading(url) as store:
        raw.xadd(PREFIX + "events", {"event": "not of a farm"}, "700-3")
        raw.xadd(PREFIX + "events", {"event": json.dumps({"what": "half"})}, "701-0")
        raw.xadd(PREFIX + "events", {"other": "x"}, "702-0")
        store.save({}, [Event(1.0, "one"), Event(2.0, "two")], 1.0, None)
        raw.xtrim(PREFIX + "events", maxlen=0)
        store.save({}, [Event(3.0, "three", place="p")], 1.0, None)
        assert [(e["number"], e["what"]) for e in store.history()] == [(705, "three")]
        assert [e["number"] for e in store.history(place="p")] == [705]


def test_lead_sets_keys_of_other_types_aside(url: str, raw: Any) -> None:
    for name in ("leader", "number", "places", "facts", "damaged"):
        raw.rpush(PREFIX + name, "text")
    raw.hset(PREFIX + "events", "a", "b")
    said: list[str] = []
    with contextlib.closing(RedisStore(url, "a:1")) as store:
        store.on_damage = said.append
        assert store.lead()
        store.save(rows_of([Place("p", keys=("k",))], []), [Event(1.0, "one")], 1.0, None)
        assert [place.id for place in store.load()[0]] == ["p"]
    assert len(said) == 4
    assert len(raw.keys("*:damaged:*")) == 4


def test_lead_takes_over_from_itself_and_from_a_key_that_never_expires(url: str, raw: Any) -> None:
    with leading(url) as store, contextlib.closing(RedisStore(url, "a:1")) as other:
        assert store.lead()  # the answer to the first time may have been lost
        assert not other.lead()  # of the same address
        assert not other.leader().mine
        raw.persist(PREFIX + "leader")
        assert other.lead()


def test_history_of_one_lease_leaves_the_other_events_in_redis(url: str, raw: Any) -> None:
    with leading(url) as store:
        store.save(
            {},
            [Event(float(n), "other", lease=f"{n:016x}", user="ann", detail="é" * 50) for n in range(3000)],
            1.0,
            None,
        )
        before = raw.info("stats")["total_net_output_bytes"]
        found = [store.history(lease=lease, limit=10) for lease in ("f" * 16, f"{7:016x}")]
        assert raw.info("stats")["total_net_output_bytes"] - before < 20_000
        assert [[event["number"] for event in events] for events in found] == [[], [8]]
        assert [e["number"] for e in store.history(user="ann", before=2000, limit=2)] == [1998, 1999]
        assert [e["number"] for e in store.history(user="ann", after=2997)] == [2998, 2999, 3000]


def test_redis_that_does_not_answer_is_not_asked_for_each_waiting_request(
    server: RedisServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    said: set[str] = set()
    with leading(url) as store:
        store._redis.connection_pool.connection_kwargs.update(socket_timeout=0.1, socket_connect_timeout=0.1)
        store._redis.connection_pool.disconnect()
        usual = store._redis.hget

        def ask(*words: str) -> Any:
            asked.append(words)
            return usual(*words)

        monkeypatch.setattr(store._redis, "hget", ask)
        monkeypatch.setattr(_redis, "_QUIET", 1e9)
        with server.silent():
            for _ in range(3):
                with pytest.raises(StoreError) as caught:
                    store.fact("now", 0.0)
                said.add(str(caught.value))
        assert len(asked) == len(said) == 1  # the log says it once
        store._quiet_until = 0.0
        assert store.fact("now", 7.0) == 7.0


def test_deposed_hub_asks_and_tells_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        hub, told = Hub(store), []  # type: ignore[var-annotated]
        hub.watchers.append(told.append)
        store._redis.flushall()
        for _ in range(2):
            with pytest.raises(DeposedError), hub.turn() as state:
                state.register("p", ["k"])
            monkeypatch.setattr(store, "_run", None)
        assert told == []
        hub.close()

    with leading(url) as store:
        asyncio.run(run())


def test_process_with_a_wrong_clock_takes_leases_over_as_they_are(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(store: RedisStore, request: bool) -> list[str]:
        hub = Hub(store)
        with hub.turn() as state:
            if request:
                state.register("p", ["k"])
                state.request("k", "ann", ceiling=600, ttl=60)
                state.accepted("p", 1)
        hub.close()
        return [lease.state for lease in hub.state.leases.values()]

    with leading(url) as one:
        assert asyncio.run(run(one, True)) == ["active"]
        one.resign()
    for wrong in (3600.0, -3600.0):
        with leading(url) as two, monkeypatch.context() as patch:
            patch.setattr(time, "time", functools.partial(float, time.time() + wrong))
            assert asyncio.run(run(two, False)) == ["active"]
            two.resign()


# ---- Processes ----


def test_member_sets_aside_what_it_cannot_read(url: str, raw: Any) -> None:
    place = Place("good", keys=("k",), health="bad").to_dict()
    lease = {"id": "w", "user": "ann", "want": "k"}
    with leading(url) as store:
        damaged: dict[str, dict[Any, Any]] = {
            "places": {"json": "{", "array": "[]", "none": "{}", "name": json.dumps(place), "deep": "[" * 100_000,
                       "nan": json.dumps({**place, "id": "nan", "since": float("nan")}),
                       "type": json.dumps({**place, "id": "type", "fence": "3"}),
                       "kind": json.dumps({**place, "id": "kind", "state": "lost"}),
                       "large": json.dumps({**place, "id": "large", "fence": 10**400}), b"\xff": b"\xff\xfe"},
            "leases": {"w": json.dumps({**lease, "want": "&&"}), "x": json.dumps({**lease, "id": "x", "ttl": None}),
                       "y": '"text"', "z": json.dumps({**lease, "id": "z", "sessions": {"s": "x"}})},
            "tokens": {"t": "1", "u": json.dumps({"user": 3}), "v": json.dumps({"user": "ann", "role": "king"})},
        }  # fmt: skip
        for table, records in damaged.items():
            raw.hset(PREFIX + table, mapping=records)
        raw.hset(PREFIX + "places", "good", json.dumps(place))
        raw.hset(PREFIX + "tokens", "good", json.dumps({"user": "ann"}))
        raw.hset(PREFIX + "facts", mapping={"use": '{"ann": "much", "bob": [1, 2]}', "now": "NaN"})
        store.resign()
    with running(url) as member:
        comes_back(member.address, "p")
        assert {p["place"] for p in call(member.address, do="status")["places"]} == {"good", "p"}
        server: Any = member.member.server
        assert server.hub.counts["portcall_farm_records_set_aside", ""] == 17
        assert [token["user"] for token in server.access.list()] == ["ann"]
    kept = [json.loads(text) for text in raw.hvals(PREFIX + "damaged")]
    assert sorted((k["kept"], k["name"].encode(errors="surrogateescape")) for k in kept) == sorted(
        (table, name if isinstance(name, bytes) else name.encode()) for table in damaged for name in damaged[table]
    )
    assert {"why", "value", "time"} <= kept[0].keys()
    assert sum(text.startswith("damaged: ") for text in member.said) == 17


def test_member_tries_again_after_any_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_member, "PAUSE", 0.1)
    start = Server.start
    wrong: list[BaseException] = [AttributeError("one"), KeyError("two"), OSError("three"), RecursionError("four")]

    with running(url) as member:

        async def fail(self: Server) -> Any:
            if wrong:
                raise wrong.pop()
            return await start(self)

        monkeypatch.setattr(Server, "start", fail)
        with leading_by_force(url):
            member.until(lambda: not member.leads)
        comes_back(member.address, "p")
        assert wrong == []
        assert sum(text.startswith("error: ") for text in member.said) == 4


def test_member_that_cannot_take_over_lets_another(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(url) as one, running(url) as two:
        load = RedisStore.load

        def fail(self: RedisStore) -> Any:
            if self is one.member.store:
                raise StoreError("too slow")
            return load(self)

        monkeypatch.setattr(RedisStore, "load", fail)
        with leading_by_force(url):
            one.until(lambda: not one.leads)
        comes_back(one.address, "p")
        assert two.leads


@contextlib.contextmanager
def leading_by_force(url: str, address: str = "127.0.0.1:1") -> Iterator[None]:
    """Take over from whoever leads, until the end of the block."""
    with contextlib.closing(RedisStore(url, address)) as store:
        store._redis.delete(PREFIX + "leader")
        assert store.lead()
        yield
        store.resign()


def test_member_never_passes_connections_on_to_itself(url: str) -> None:
    with running(url) as member:
        with leading_by_force(url, member.address):
            member.until(lambda: not member.leads and member.member._standby is not None)
            for _ in range(5):
                assert call(member.address, do="status") is None
        comes_back(member.address, "p")
    assert not any(text.startswith("overload: ") for text in member.said)  # for want of descriptors


def test_standby_does_not_pass_on_what_was_passed_on(url: str, raw: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, running(url) as member:
        raw.set(PREFIX + "number", "another")
        raw.set(PREFIX + "leader", f"0123456789abcdef 127.0.0.1:{other.getsockname()[1]}", px=60_000)
        member.until(lambda: not member.leads and member.member._leader.address)
        host, _, port = member.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.sendall(FORWARDED + b"x" * 100)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_standby_knows_the_present_secret(url: str, raw: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as leader, running(url) as member:
        raw.set(PREFIX + "number", "another")
        host, _, port = member.address.partition(":")
        for secret in ("1" * 32, "2" * 32):
            raw.set(PREFIX + "leader", f"{secret} 127.0.0.1:{leader.getsockname()[1]}", px=600_000)
            proved = False
            while not proved:
                with socket.create_connection((host, int(port)), timeout=60) as sock:
                    sock.sendall(b"x")
                    leader.settimeout(1)
                    with contextlib.suppress(TimeoutError, ConnectionError):  # of a standby of the secret before
                        passed, _ = leader.accept()
                        with passed, passed.makefile("rb") as said:
                            passed.sendall(b"n" * NONCE)
                            begin, proof, size = (said.read(n) for n in (len(FORWARDED), 32, 1))
                            peer = said.read(ord(size or b"\0"))
                            proved = (begin, proof) == (FORWARDED, proof_of(secret.encode(), b"n" * NONCE, peer))


def test_standby_passes_on_again_after_the_leaders_key_was_overwritten(url: str, raw: Any) -> None:
    with running(url) as one, running(url) as two:
        comes_back(two.address, "p")
        one.until(lambda: one.leads)
        raw.set(PREFIX + "leader", b"\xff another:1", px=600_000)
        comes_back(two.address, "q")
        assert one.leads


def test_members_go_on_after_redis_lost_everything(url: str, raw: Any) -> None:
    with running(url) as one, running(url) as two:
        comes_back(two.address, "p")
        for round in range(3):
            raw.flushall()
            comes_back(one.address, f"one-{round}")
            comes_back(two.address, f"two-{round}")


def test_member_says_what_to_do_where_redis_lost_all_tokens(url: str, raw: Any) -> None:
    with running(url, require_tokens=True) as member:
        assert not any(text.startswith("tokens: ") for text in member.said)
        raw.flushall()
        member.until(lambda: any(text.startswith("tokens: ") for text in member.said))


def test_member_steps_down_and_another_leads_at_once(url: str, raw: Any) -> None:
    with running(url) as one, running(url) as two:
        comes_back(two.address, "p")
        one.stop()
        assert not raw.exists(PREFIX + "leader") or two.leads
        comes_back(two.address, "q")


# ---- Real processes, and a Redis that fails ----


def silent(server: RedisServer, raw: Any, address: str) -> None:
    with server.silent():
        until_refused(address)


def paused(server: RedisServer, raw: Any, address: str) -> None:
    raw.client_pause(5000)
    until_refused(address)


def killed(server: RedisServer, raw: Any, address: str) -> None:
    server.kill()
    until_refused(address)
    server.start()


def killed_and_started(server: RedisServer, raw: Any, address: str) -> None:
    server.kill()
    server.start()


def emptied(server: RedisServer, raw: Any, address: str) -> None:
    raw.flushall()


def made_a_replica(server: RedisServer, raw: Any, address: str) -> None:
    raw.replicaof("127.0.0.1", "1")
    until_refused(address)
    raw.replicaof("NO", "ONE")


def full(server: RedisServer, raw: Any, address: str) -> None:
    raw.config_set("maxmemory", 1)
    until_refused(address)
    raw.config_set("maxmemory", 0)


def disk_full(server: RedisServer, raw: Any, address: str) -> None:
    os.mkdir(f"{server.folder}/blocked")  # the name of the file that it is to write
    raw.config_set("save", "3600 1")
    raw.bgsave()
    until_refused(address)
    raw.config_set("save", "")
    os.rmdir(f"{server.folder}/blocked")


def until_refused(address: str) -> None:
    """Wait until a farm takes nothing more."""
    while call(address, do="register", place="refused", keys=["k"]) is not None:
        pass


FAULTS = [silent, paused, killed, killed_and_started, emptied, made_a_replica, full, disk_full]


@pytest.mark.parametrize(("appendonly", "faults"), [("yes", FAULTS), ("no", [killed, killed_and_started])])
def test_farm_goes_on_by_itself_after_each_fault_of_redis(appendonly: str, faults: list[Any]) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(redis_server("--appendonly", appendonly, "--dbfilename", "blocked"))
        store = stack.enter_context(contextlib.closing(RedisStore(server.url)))
        farm = ("farm", "--store", server.url, "--silent", "--port")
        one, two = (stack.enter_context(started(*farm, 0))[1] for _ in range(2))
        for number, fault in enumerate(faults):
            comes_back(one, f"before-{number}")
            fault(server, store._redis, one)
            comes_back(one, f"one-{number}")
            comes_back(two, f"two-{number}")
            known = {place["place"] for place in call(two, do="status")["places"]}
            assert (f"before-{number}" in known) == (appendonly == "yes" and fault is not emptied)


def test_farm_goes_on_when_the_process_that_leads_is_stopped_killed_and_started(url: str) -> None:
    with contextlib.ExitStack() as stack:
        farm = ("farm", "--store", url, "--silent", "--port")
        first, one = stack.enter_context(started(*farm, 0))
        _, two = stack.enter_context(started(*farm, 0))
        _, three = stack.enter_context(started(*farm, 0))
        comes_back(three, "p")
        first.send_signal(signal.SIGSTOP)
        comes_back(two, "q")
        first.send_signal(signal.SIGCONT)
        for number, address in enumerate((one, two, three)):
            comes_back(address, f"p{number}")
        with contextlib.closing(RedisStore(url)) as store:
            leader = store.leader().address
            store._redis.delete(PREFIX + "leader")
            while not store.leader().address:
                pass
        assert leader in (two, three)
        first.kill()
        first.wait()
        stack.enter_context(started(*farm, one.rpartition(":")[2]))
        for number, address in enumerate((one, two, three)):
            comes_back(address, f"q{number}")
        assert {f"q{n}" for n in range(3)} <= {p["place"] for p in call(one, do="status")["places"]}


def test_process_that_starts_again_at_once_leads_again(url: str) -> None:
    farm = ("farm", "--store", url, "--silent", "--port")
    with started(*farm, 0) as (first, address):
        comes_back(address, "p")
        first.kill()
        first.wait()
        with started(*farm, address.rpartition(":")[2]):
            for _ in range(100):
                call(address, do="status")
            comes_back(address, "q")
