# SPDX-License-Identifier: Apache-2.0
"""A farm starts whatever is in its store: what cannot be read is set aside, contradictions are put right."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import typing
from pathlib import Path
from typing import Any

from farm.machine import Desk
from portcall.farm._hub import Hub
from portcall.farm._model import Lease, Place, Refused, Rules, _declared
from portcall.farm._store import Store

TEXTS = ["", "p1", "p2", "else", "k", "&&", "\0", "a" * 500, "ann"]


def stored_farm() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the records of two places and of five requests, two of which have a place."""
    desk = Desk(Rules())
    desk.state.advance(1000)
    for place in ("p1", "p2"):
        desk.state.register(place, ["k"])
    desk.answer()
    for user in "abcde":
        desk.state.request("k", user, ttl=60, secret="s" * 32 + user)
    desk.answer()
    state = desk.state
    return ({p.id: p.to_dict() for p in state.places.values()}, {x.id: x.to_dict() for x in state.leases.values()})


def store_of(places: dict[str, Any], leases: dict[str, Any]) -> Store:
    store = Store(":memory:")
    for table, records in (("places", places), ("leases", leases)):
        rows = [(id, json.dumps(values)) for id, values in records.items()]
        store._db.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
    return store


def any_value(source: random.Random, kind: Any) -> Any:
    """Return a value of a type, some of them such as no farm ever stores."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return source.choice(args)
    if origin in (list, tuple):
        return [any_value(source, args[0]) for _ in range(source.randrange(3))]
    if origin is dict:
        return {any_value(source, args[0]): any_value(source, args[1]) for _ in range(source.randrange(3))}
    if args:
        return any_value(source, source.choice(args))
    of_type: Any = {str: TEXTS, int: [0, 1, -1, 5, 10**30], float: [0, 1, -1, 0.5, 1e15, 1e290, -1e290]}
    return source.choice(of_type.get(kind, [False, True]))


def use(hub: Hub, source: random.Random) -> None:
    """Let one thing happen."""
    with hub.turn() as state, contextlib.suppress(Refused):
        what = source.randrange(6)
        place = source.choice(["p1", "p2"])
        if what == 0:
            state.register(place, ["k"], fence=source.randrange(3))
        elif what == 1:
            state.request("k", source.choice("abc"), ttl=60)
        elif what == 2 and state.leases:
            state.release(source.choice(sorted(state.leases)))
        elif what == 3 and state.leases:
            state.heard(source.choice(sorted(state.leases)))
        elif what == 4 and place in state.places:
            fence = state.places[place].fence
            source.choice([state.accepted, state.cleaned])(place, fence)
        else:
            hub._offset += source.choice([1, 60, 1000])


def use_for_a_while(store: Store, source: random.Random) -> None:
    hub = Hub(store)
    hub._set_timer = lambda: None  # type: ignore[method-assign]
    for _ in range(30):
        use(hub, source)
        held = [lease.place for lease in hub.state.leases.values() if lease.state == "active"]
        assert len(set(held)) == len(held)
    store.close()


def test_farm_starts_with_records_that_were_changed_at_random() -> None:
    for seed in range(200):
        source = random.Random(seed)
        places, leases = stored_farm()
        for records, kind in ((places, Place), (leases, Lease)):
            for values in records.values():
                for _ in range(source.randrange(3)):
                    name = source.choice(sorted(values))
                    values[name] = any_value(source, _declared(kind)[name][0])
        use_for_a_while(store_of(places, leases), source)


def test_farm_starts_with_records_that_contradict_each_other() -> None:
    places, leases = stored_farm()
    first, *others = leases.values()
    for lease in others:
        lease.update(number=first["number"], rank=first["rank"])
    places["p1"]["lease"], places["p2"]["lease"] = places["p2"]["lease"], places["p1"]["lease"]
    use_for_a_while(store_of(places, leases), random.Random(1))


def test_store_sets_aside_what_it_cannot_read(tmp_path: Path) -> None:
    path = str(tmp_path / "farm.db")
    places, leases = stored_farm()
    Store(path).close()
    lease = next(iter(leases.values()))
    wrong: list[tuple[str, str, Any]] = [
        ("places", "json", "{"), ("places", "name", json.dumps(places["p1"])), ("places", "bytes", b"\xff\xfe"),
        ("places", "nan", json.dumps({**places["p1"], "id": "nan", "since": float("nan")})),
        ("places", "no-key", json.dumps({**places["p1"], "id": "no-key", "keys": []})),
        ("leases", "want", json.dumps({**lease, "id": "want", "want": "&&"})), ("leases", "empty", "{}"),
        ("tokens", "role", json.dumps({"user": "ann", "role": "king"})), ("tokens", "number", "3"),
    ]  # fmt: skip
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for table, name, text in wrong:
            db.execute(f"INSERT INTO {table} VALUES (?, ?)", (name, text))
        db.execute("INSERT INTO places VALUES ('half', CAST(x'ff7b' AS TEXT))")
        db.execute("INSERT INTO facts VALUES ('use', '{'), ('other', '[1]')")
        db.execute("INSERT INTO places VALUES ('p1', ?)", (json.dumps(places["p1"]),))
    said: list[str] = []
    store = Store(path)
    hub = Hub(store, log=lambda kind, text: said.append(kind))
    assert list(hub.state.places) == ["p1"]
    assert store.tokens(lambda name, values: values["user"]) == {"role": "ann"}
    assert store.fact("other", 0.0) == 0.0
    assert said.count("damaged") == hub.counts["portcall_farm_records_set_aside", ""] == len(wrong)
    kept = store._db.execute("SELECT kept, name, CAST(value AS BLOB) FROM damaged").fetchall()
    assert ("places", "half", b"\xff{") in kept
    assert ("places", "json", b"{") in kept
    store.close()
    store = Store(path)
    assert [place.id for place in store.load()[0]] == ["p1"]
    store.close()
