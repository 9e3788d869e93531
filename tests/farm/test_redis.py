# SPDX-License-Identifier: Apache-2.0
"""A farm of several processes on a real redis-server."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from farm.histories import run_history
from farm.redis_server import running_redis
from farm.test_cli_farm import portcall, started
from portcall.farm import connect
from portcall.farm._model import Event
from portcall.farm._redis import RedisStore
from portcall.farm._store import StoreError


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    with running_redis() as url:
        yield url


def test_redis_store_never_gives_a_place_twice_after_a_kill(redis: str) -> None:
    found = [run_history(redis, seed) for seed in range(60)]
    grants, takeovers, unanswered = map(sum, zip(*found, strict=True))
    assert min(grants, takeovers, unanswered) > 10


def test_redis_store_refuses_writes_of_a_deposed_process(redis: str) -> None:
    with contextlib.closing(RedisStore(redis, "a:1")) as old, contextlib.closing(RedisStore(redis, "b:1")) as new:
        old._redis.flushall()
        assert old.lead()
        assert not new.lead()
        assert new.leader().address == "a:1"
        old.save({}, [Event(1.0, "one")], 1.0, None)
        old._redis.delete("{portcall-farm}:leader")
        assert new.lead()
        assert not old.beat()
        with pytest.raises(StoreError):
            old.save({}, [Event(2.0, "two")], 2.0, None)
        with pytest.raises(StoreError):
            old.set_tokens({"hash": {}})
        old.resign()
        assert new.leader().address == "b:1"
        new.save({}, [Event(3.0, "three", place="p")], 3.0, None)
        assert [event["what"] for event in new.history()] == ["one", "three"]
        assert [event["number"] for event in new.history(place="p")] == [2]
        assert new.tokens(lambda name, value: value) == {}


def test_sessions_and_leases_go_on_when_the_process_that_leads_is_killed(redis: str) -> None:
    with contextlib.ExitStack() as stack:
        RedisStore(redis)._redis.flushall()
        farm = ("farm", "--store", redis, "--silent", "--port")
        first, one = stack.enter_context(started(*farm, 0))
        _, two = stack.enter_context(started(*farm, 0))
        both = f"{one},{two}"
        stack.enter_context(started("serve", "--farm", both, "--key", "k", "--place", "direct", "--silent"))
        stack.enter_context(started("serve", "--farm", two, "--key", "m", "--place", "far", "--relay", "--silent"))
        lab = stack.enter_context(connect(both, token=""))
        through = stack.enter_context(connect(two, token=""))
        assert {place["place"] for place in through.status()["places"]} == {"direct", "far"}
        with through.lease("m") as far, far.session() as session:
            assert session["portcall.rpc.machine"] is not None  # by the standby, the leader and the agent's connection
        lease = stack.enter_context(lab.lease("k", ttl=60))
        session = stack.enter_context(lease.session())
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert session["portcall.rpc.machine"] is not None
        while not any(p["state"] == "leased" for p in portcall_status(two)):
            pass
        with lease.session() as another:
            assert another["portcall.rpc.machine"] is not None
        lease.release()
        with through.lease("k") as again:
            assert again.place == "direct"


def portcall_status(address: str) -> list[dict[str, object]]:
    """Return the places, none while nobody leads."""
    report = portcall("farm", "status", "--farm", address, code=AnyCode())
    found: list[dict[str, object]] = report.get("places", [])
    return found


class AnyCode:
    """Equals every exit code."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]
