# SPDX-License-Identifier: Apache-2.0
"""The farm's file: what was written is there again, also after the process was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farm.machine import Desk
from portcall.farm import _constraints
from portcall.farm._model import Event, Lease, rows_of
from portcall.farm._state import State
from portcall.farm._store import Store, StoreError

WRITER = """
import sys
from portcall.farm._model import Event, Lease, Place, rows_of
from portcall.farm._store import Store
store = Store(sys.argv[1])
for n in range(1 << 30):
    place = Place(f"p{n}", keys=("k",))
    rows = rows_of([place, Lease(f"l{n}", "ann", "k", place=place.id)], [])
    store.save(rows, [Event(n, "made", place.id)], n, {"a": [n, n]})
    print(n, flush=True)
"""


def test_store_loads_places_leases_history_and_tokens(tmp_path: Path) -> None:
    desk = Desk()
    desk.state.register("board", ["k", "m"], {"ram": 4, "gpu": "mali"})
    lease = desk.state.request("k", "ann", secret="s" * 32)
    desk.state.accepted("board", 1)
    path = str(tmp_path / "farm.db")
    store = Store(path)
    store.save(rows_of(desk.state.changed, []), desk.state.events, 5.0, None)
    store.set_tokens({"hash": {"user": "ann"}, "gone": {"user": "bob"}})
    store.set_tokens({"gone": None})
    store.close()
    store = Store(path)
    places, leases = store.load()
    assert places[0].to_dict() == desk.state.places["board"].to_dict()
    assert leases[0].to_dict() == lease.to_dict()
    assert store.tokens(lambda hash, record: record) == {"hash": {"user": "ann"}}
    assert store.fact("now", 0) == 5.0
    assert [e["what"] for e in store.history(lease=lease.id)][:2] == ["lease queued", "lease offered"]
    store.save(rows_of([], ["board"]), [Event(6.0, "place forgotten")], 6.0, None)
    assert (store.load()[0], store.time()) == ([], 6.0)
    store.save({}, [], 7.0, None)
    assert store.time() == 7.0
    store.close()


def test_store_loads_the_lease_of_a_check(tmp_path: Path) -> None:
    desk = Desk()
    desk.state.register("board", ["k"])
    lease = desk.state.check("board", "ann", "s" * 32)
    with contextlib.closing(Store(str(tmp_path / "farm.db"))) as store:
        store.save(rows_of(desk.state.changed, []), [], 0.0, None)
        assert [loaded.id for loaded in store.load()[1]] == [lease.id]


def test_store_and_state_read_each_constraint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [Lease(f"{n:016x}", "ann", want) for n, want in enumerate(("k & a", "k & b", "k & a"))]
    state, read = State(), list[str]()
    parse = _constraints.parse_constraint

    def count(text: str) -> _constraints.Constraint:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(_constraints, "parse_constraint", count)
    with contextlib.closing(Store(str(tmp_path / "farm.db"))) as store:
        store.save(rows_of(leases, []), [], 0.0, None)
        state.load(*store.load(), {}, 0.0)
    assert state.queue.sizes() == {"k & a": 2, "k & b": 1}
    assert sorted(read) == ["k & a", "k & b"]


def test_store_keeps_ended_leases_in_the_history_only(tmp_path: Path) -> None:
    desk = Desk()
    lease = desk.state.request("k", "ann", hopeless=True)
    store = Store(str(tmp_path / "farm.db"))
    store.save(rows_of(desk.state.changed, []), [], 0.0, None)
    desk.state.release(lease.id)
    store.save(rows_of(desk.state.changed, []), desk.state.events, 0.0, None)
    assert store.load()[1] == []
    assert store.history(user="ann", limit=1)[0]["what"] == "lease ended"
    store.close()


def test_store_save_is_atomic(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "farm.db"))
    desk = Desk()
    desk.state.register("board", ["k"])
    with pytest.raises(StoreError):
        store.save(rows_of(desk.state.changed, []), [Event(0, "x")], 0.0, {"no": object()})
    assert store.load()[0] == []
    assert store.history() == []
    store.close()


def test_store_refuses_files_in_use_and_other_files(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "farm.db"))
    with pytest.raises(OSError, match="another farm uses it"):
        Store(str(tmp_path / "farm.db"))
    store.set_fact("format", 99)
    store.close()
    with pytest.raises(OSError, match="format 99"):
        Store(str(tmp_path / "farm.db"))
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(OSError, match="cannot open"):
        Store(str(tmp_path / "text"))


def test_store_survives_a_kill_of_its_writer(tmp_path: Path) -> None:
    path = str(tmp_path / "farm.db")
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = -1
        while last < 50:
            last = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        last = max([last, *map(int, filter(str.isdigit, process.stdout.read().split()))])
    store = Store(path)
    places, leases = store.load()
    assert len(places) == len(leases) >= last + 1
    assert {lease.place for lease in leases} == {place.id for place in places}
    assert len(store.history()) == len(places)
    store.close()
