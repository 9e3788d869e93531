# SPDX-License-Identifier: Apache-2.0
"""What a farm keeps over a restart, in a file of SQLite.

Every turn of the farm is one transaction, written before anybody is notified. In write-ahead mode that survives the
end of the process at any moment. A power cut may take the last turns: agents then know higher fences than the farm,
which takes them over when they register.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from portcall.farm._model import Event, Lease, Place, Refused, Rows, fits
from portcall.farm._reading import Read, damage, read_fact, read_lease, read_place, read_rows
from portcall.farm._shown import shown_store

R = TypeVar("R")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS places (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, time REAL NOT NULL, what TEXT NOT NULL,
                                   place TEXT NOT NULL, lease TEXT NOT NULL, user TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS of_place ON events (place) WHERE place != '';
CREATE INDEX IF NOT EXISTS of_lease ON events (lease) WHERE lease != '';
CREATE INDEX IF NOT EXISTS of_user ON events (user) WHERE user != '';
CREATE TABLE IF NOT EXISTS tokens (hash TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS damaged (kept TEXT NOT NULL, name, value, why TEXT NOT NULL, time REAL NOT NULL);
"""
FORMAT = 1
_MOST_EVENTS = 1_000_000
_TRIM_EVERY = 10_000
_LOG_PAGES = 4000  # of 4 KiB; a write-ahead log with more is written to the file


_COPIED_PAGES = 256  # copied at a time for a backup, while the farm waits
_COPY_PAUSE = 0.005


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
        self._file = path
        self._closing = False
        self._copying = threading.Lock()
        had_pages = os.path.isfile(path) and os.path.getsize(path) > 0 and not os.path.exists(f"{path}-wal")
        self.on_damage: Callable[[str], None] = lambda text: None
        try:
            self._db = sqlite3.connect(path, timeout=2, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            hint = "is there such a folder, and may you write there?"
            raise OSError(f"cannot open the farm's store '{self.path}': {error}; {hint}") from None
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
            is_empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if had_pages and is_empty:
                self._db.close()
                raise OSError(f"there is no farm in '{self.path}': it was copied while a farm ran, without the file "
                              "'-wal' beside it; portcall farm backup makes whole copies")  # fmt: skip
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
        self._closing = True
        with self._copying:
            self._db.close()

    def backup(self) -> tuple[str, int]:
        """Write a whole copy beside the file; return its path and size. For a thread: the farm goes on meanwhile.

        Raises:
            Refused: there is no file, another copy is being written, or this one cannot be: that of before is kept.
        """
        if self._file == ":memory:":
            raise Refused("this farm keeps nothing: it runs with --store :memory:", "invalid")
        if not self._copying.acquire(blocking=False):
            raise Refused("another backup is being written: try again later", "busy")
        path = os.path.abspath(self._file) + ".backup"
        try:
            size = self._copy_to(path + ".part")
            os.replace(path + ".part", path)
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(OSError):
                os.unlink(path + ".part")
            raise Refused(f"cannot write the backup '{path}': {error}", "backup") from None
        finally:
            self._copying.release()
        return path, size

    def _copy_to(self, path: str) -> int:
        """Write a copy for its owner alone, and return its size."""

        def go_on(*_: int) -> None:
            if self._closing:
                raise StoreError("the farm is about to stop")

        for old in (path, path + "-journal"):  # a killed farm left them
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as copy:
                copy.execute("PRAGMA journal_mode=OFF")
                copy.execute("PRAGMA synchronous=OFF")  # the farm would wait for the disk
                self._db.backup(copy, pages=_COPIED_PAGES, sleep=_COPY_PAUSE, progress=go_on)
            os.fsync(file)
            return os.fstat(file).st_size
        finally:
            os.close(file)

    def clock(self) -> float:
        """Return what time it is, in seconds since 1970."""
        return time.time()

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

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Write, whole or not at all.

        Raises:
            StoreError: it is not written.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if isinstance(error, Exception):
                raise StoreError(str(error)) from None
            raise

    def save(self, rows: Rows, events: Sequence[Event], now: float, use: Any) -> None:
        """Write one turn, whole or not at all. Ended leases stay in the history only.

        Raises:
            StoreError: it is not written.
        """
        with self._writing() as db:
            for (table, id), text in rows.items():
                if text is None:
                    db.execute(f"DELETE FROM {table} WHERE id = ?", (id,))
                else:
                    db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (id, text))
            db.executemany(
                "INSERT INTO events (time, what, place, lease, user, detail) VALUES (?, ?, ?, ?, ?, ?)",
                [(e.time, e.what, e.place, e.lease, e.user, e.detail) for e in events],
            )
            self._since_trim += len(events)
            if self._since_trim >= _TRIM_EVERY:
                self._since_trim = 0
                db.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (_MOST_EVENTS,))
            if not events or events[-1].time != now:  # ``time`` looks at it, too
                self._set_fact("now", now)
            if use is not None:
                self._set_fact("use", use)

    def set_clock_back(self, now: float, seconds: float) -> None:
        """Let events after ``now``, which a wrong clock has noted, be so much earlier; they stay in order."""
        with self._writing() as db:
            last = db.execute("SELECT max(time) FROM events WHERE time <= ?", (now,)).fetchone()[0] or 0.0
            db.execute("UPDATE events SET time = max(?, time - ?) WHERE time > ?", (last, seconds, now))

    def history(
        self, *, place: str = "", lease: str = "", user: str = "", after: int = 0, before: int = 0, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Return the last events, the oldest first: of one place, lease or user, or before a number, where given.

        Raises:
            StoreError: it cannot be read.
        """
        wheres: list[str] = ["number > ?"]
        given: list[Any] = [after]
        if before:
            wheres.append("number < ?")
            given.append(before)
        for name, value in (("place", place), ("lease", lease), ("user", user)):
            if value:
                wheres.append(f"{name} = ? AND {name} != ''")  # as the index says
                given.append(value)
        names = ("number", "time", "what", "place", "lease", "user", "detail")
        question = f"SELECT {', '.join(names)} FROM events WHERE {' AND '.join(wheres)} ORDER BY number DESC LIMIT ?"
        try:
            rows = self._db.execute(question, (*given, limit)).fetchall()
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(str(error)) from None
        return [dict(zip(names, row, strict=True)) for row in reversed(rows)]

    # ---- Tokens and single facts ----

    def tokens(self, read: Read[R]) -> dict[str, R]:
        """Return all tokens, by their hashes."""
        return self._read("tokens", "hash", read)

    def set_tokens(self, records: Mapping[str, dict[str, Any] | None]) -> None:
        """Keep the records of tokens by their hashes, all or none; None removes one.

        Raises:
            StoreError: they are not written.
        """
        with self._writing() as db:
            for hash, record in records.items():
                if record is None:
                    db.execute("DELETE FROM tokens WHERE hash = ?", (hash,))
                else:
                    db.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (hash, json.dumps(record)))

    def time(self) -> float:
        """Return the time of the last turn; 0 where there was none."""
        row = self._db.execute("SELECT CAST(time AS REAL) FROM events ORDER BY number DESC LIMIT 1").fetchone()
        return float(max(self.fact("now", 0.0), row[0] if row and fits(row[0], float) else 0.0))

    def fact(self, name: str, default: Any) -> Any:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return read_fact(row and row[0], default)

    def set_fact(self, name: str, value: Any) -> None:
        """Keep a single fact.

        Raises:
            StoreError: it is not written.
        """
        with self._writing():
            self._set_fact(name, value)

    def _set_fact(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))
