# SPDX-License-Identifier: Apache-2.0
"""What a farm keeps over a restart, in a file of SQLite.

Every turn of the farm is one transaction, written before anybody is notified. In write-ahead mode that survives the
end of the process at any moment. A power cut may take the last turns: agents then know higher fences than the farm,
which takes them over when they register.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from portcall.farm._model import Event, Lease, Place
from portcall.farm._reading import Read, damage, read_fact, read_lease, read_place, read_rows
from portcall.farm._shown import shown_store

R = TypeVar("R")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS places (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, time REAL NOT NULL, what TEXT NOT NULL,
                                   place TEXT NOT NULL, lease TEXT NOT NULL, user TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tokens (hash TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS damaged (kept TEXT NOT NULL, name, value, why TEXT NOT NULL, time REAL NOT NULL);
"""
FORMAT = 1
_MOST_EVENTS = 1_000_000
_TRIM_EVERY = 10_000


class StoreError(OSError):
    """A turn was not written."""


class Store:
    """One file, which one process has open.

    Parameters:
        path: of the file, which is made; ``:memory:`` keeps nothing.

    Raises:
        OSError: it cannot be opened, is in use, or is of a later version.
    """

    shared = False

    def __init__(self, path: str) -> None:
        self.path = shown_store(path)
        self.on_damage: Callable[[str], None] = lambda text: None
        self._db = sqlite3.connect(path, timeout=2, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript("BEGIN IMMEDIATE;" + _SCHEMA + "COMMIT;")
        except sqlite3.Error as error:
            self._db.close()
            hint = "another farm uses it: give --store another file" if "locked" in str(error) else "is it such a file?"
            raise OSError(f"cannot open the farm's store '{self.path}': {error}; {hint}") from None
        found = self.fact("format", FORMAT)
        if found != FORMAT:
            self._db.close()
            raise OSError(f"the farm's store '{self.path}' has format {found}, this version knows {FORMAT}")
        self.set_fact("format", FORMAT)
        self._since_trim = 0

    def close(self) -> None:
        self._db.close()

    def load(self) -> tuple[list[Place], list[Lease]]:
        """Return the places, and the leases that have not ended."""
        places = self._read("places", "id", read_place)
        return list(places.values()), list(self._read("leases", "id", read_lease).values())

    def _read(self, table: str, key: str, read: Read[R]) -> dict[str, R]:
        """Return the records of a table; those that cannot be read go to another, so that the farm starts."""
        rows = self._db.execute(f"SELECT {key}, CAST(record AS BLOB) FROM {table}").fetchall()
        found, damaged = read_rows(rows, read)
        for name, _, why in damaged:
            self._db.execute(
                f"INSERT INTO damaged SELECT ?, {key}, record, ?, ? FROM {table} WHERE {key} = ?",
                (table, why, time.time(), name),
            )
            self._db.execute(f"DELETE FROM {table} WHERE {key} = ?", (name,))
            self.on_damage(damage(table, name, why))
        return found

    def save(
        self, changed: Iterable[Place | Lease], forgotten: Sequence[str], events: Sequence[Event], now: float, use: Any
    ) -> None:
        """Write one turn, whole or not at all. Ended leases stay in the history only.

        Raises:
            StoreError: it is not written.
        """
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            for record in changed:
                table = "places" if isinstance(record, Place) else "leases"
                if isinstance(record, Lease) and record.state == "ended":
                    db.execute("DELETE FROM leases WHERE id = ?", (record.id,))
                else:
                    db.execute(
                        f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (record.id, json.dumps(record.to_dict()))
                    )
            db.executemany("DELETE FROM places WHERE id = ?", [(id,) for id in forgotten])
            db.executemany(
                "INSERT INTO events (time, what, place, lease, user, detail) VALUES (?, ?, ?, ?, ?, ?)",
                [(e.time, e.what, e.place, e.lease, e.user, e.detail) for e in events],
            )
            self._since_trim += len(events)
            if self._since_trim >= _TRIM_EVERY:
                self._since_trim = 0
                db.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (_MOST_EVENTS,))
            self.set_fact("now", now)
            if use is not None:
                self.set_fact("use", use)
            db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StoreError(str(error)) from None
            raise

    def history(
        self, *, place: str = "", lease: str = "", user: str = "", after: int = 0, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Return the last events, the oldest first, of one place, lease or user where these are given."""
        wheres, values = ["number > ?"], [after]
        asked: list[Any] = list(values)
        for name, value in (("place", place), ("lease", lease), ("user", user)):
            if value:
                wheres.append(f"{name} = ?")
                asked.append(value)
        names = ("number", "time", "what", "place", "lease", "user", "detail")
        rows = self._db.execute(
            f"SELECT {', '.join(names)} FROM events WHERE {' AND '.join(wheres)} ORDER BY number DESC LIMIT ?",
            (*asked, limit),
        ).fetchall()
        return [dict(zip(names, row, strict=True)) for row in reversed(rows)]

    # ---- Tokens and single facts ----

    def tokens(self, read: Read[R]) -> dict[str, R]:
        """Return all tokens, by their hashes."""
        return self._read("tokens", "hash", read)

    def set_token(self, hash: str, record: dict[str, Any] | None) -> None:
        """Keep a token's record; None removes it."""
        if record is None:
            self._db.execute("DELETE FROM tokens WHERE hash = ?", (hash,))
        else:
            self._db.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (hash, json.dumps(record)))

    def fact(self, name: str, default: Any) -> Any:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return read_fact(row and row[0], default)

    def set_fact(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))
