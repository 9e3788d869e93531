# SPDX-License-Identifier: Apache-2.0
"""The state machine with a clock, a store and listeners: what the protocols of a farm work on.

Each change is a *turn*: time passes, the state changes, the change is stored, and then those concerned are notified.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from portcall.farm._model import Effect, Event, Rules
from portcall.farm._state import State
from portcall.farm._store import Store, StoreError

if TYPE_CHECKING:
    from portcall.farm._redis import RedisStore

Listener = Callable[[Effect], None]
Log = Callable[[str, str], None]

_MOST_UNSAVED = 10_000  # events kept while the store cannot be written
_USE_EVERY = 30.0  # seconds after which the use of users is stored again


class DeposedError(Exception):
    """Another process of the farm decides now; what this one has in memory counts no more."""


class Hub:
    """The farm without its protocols.

    Parameters:
        store: what outlives the process.
        rules: what the state machine goes by.
        log: called with a kind and a text.

    Attributes:
        agents: who speaks for each place, by its id.
        holders: who is notified of each lease, by its id.
        power: cycles the power of places.
        session_keys: the lease of each match key that an agent of portcall has received and no session has used yet.
        watchers: called after each turn with its events.
        counts: figures for Prometheus that the state machine does not know: of a counter's name and its labels.
        deposed: a turn could not be written to a store that others write, too; nobody was notified.
    """

    def __init__(
        self, store: Store | RedisStore, rules: Rules | None = None, log: Log = lambda kind, text: None
    ) -> None:
        self.store = store
        self.store.on_damage = self._on_damage
        self.log = log
        self.counts = Counter({("portcall_farm_records_set_aside", ""): 0})
        self.state = State(rules)
        self.agents: dict[str, Listener] = {}
        self.holders: dict[str, Listener] = {}
        self.power: Listener | None = None
        self.session_keys: dict[str, str] = {}
        self._keys_of: dict[str, list[str]] = {}
        self.watchers: list[Callable[[list[Event]], None]] = []
        self.store_error = ""
        self.deposed = False
        self.started = time.time()
        self._offset = 0.0
        self._depth = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._use_stored = 0.0
        self._unsaved: list[Event] = []
        self._load()

    def _load(self) -> None:
        """Take over what was stored; the clock goes on from the later of the system's time and the last turn."""
        now = max(time.time(), float(self.store.fact("now", 0.0)))
        self._offset = now - time.monotonic()
        places, leases = self.store.load()
        self.state.load(places, leases, self.store.fact("use", {}), now)
        self._flush()

    def _on_damage(self, text: str) -> None:
        self.log("damaged", text)
        self.counts["portcall_farm_records_set_aside", ""] += 1

    def now(self) -> float:
        """Return the farm's time: seconds since 1970, which never go back."""
        return time.monotonic() + self._offset

    @contextlib.contextmanager
    def turn(self) -> Iterator[State]:
        """Change the state. Turns inside of turns end with the outermost.

        Raises:
            DeposedError: another process has taken over; the connection that caused the turn is to be closed.
        """
        self._depth += 1
        try:
            self.state.advance(self.now())
            yield self.state
        finally:
            self._depth -= 1
            if not self._depth:
                self._flush()
                self._set_timer()

    def note(self, what: str, user: str, detail: str) -> None:
        """Write a line of the history that belongs to no place and no lease."""
        with self.turn() as state:
            state.note(what, user=user, detail=detail)

    def _flush(self) -> None:
        state = self.state
        while state.changed or state.events or state.effects or state.forgotten:
            saved = self._save()
            if not saved and self.store.shared:
                self.deposed = True
                raise DeposedError(self.store_error)
            effects, state.effects = state.effects, []
            self._depth += 1
            try:
                for effect in effects:
                    self._tell(effect)
            finally:
                self._depth -= 1
            if not saved and not state.effects:
                return  # the next turn tries again

    def _save(self) -> bool:
        """Store what has changed, and tell the watchers; return whether it is stored. Leases go on where it is not."""
        state = self.state
        events = list(state.events)
        state.events.clear()
        self._unsaved += events
        use = state.queue.use.to_dict() if state.now - self._use_stored > _USE_EVERY else None
        try:
            self.store.save(state.changed.values(), state.forgotten, self._unsaved, state.now, use)
        except StoreError as error:
            if not self.store_error:
                self.log("store", f"cannot write '{self.store.path}': {error}")
            self.store_error = str(error)
            del self._unsaved[:-_MOST_UNSAVED]
        else:
            self.store_error = ""
            self._use_stored = state.now if use is not None else self._use_stored
            self._unsaved.clear()
            state.changed.clear()
            state.forgotten.clear()
        for watcher in list(self.watchers):
            watcher(events)
        return not self.store_error

    def _tell(self, effect: Effect) -> None:
        to_agent = effect.what in ("offer", "admit", "end")
        listener = None
        if effect.what in ("offer", "admit") and effect.lease is not None:
            key = effect.key or effect.lease.match_key
            self.session_keys[key] = effect.lease.id
            self._keys_of.setdefault(effect.lease.id, []).append(key)
        elif effect.what in ("ended", "requeued") and effect.lease is not None:
            for key in self._keys_of.pop(effect.lease.id, ()):
                self.session_keys.pop(key, None)
        if effect.what == "cycle":
            listener = self.power
        elif to_agent and effect.place is not None:
            listener = self.agents.get(effect.place.id)
        elif effect.lease is not None:
            listener = self.holders.get(effect.lease.id)
            if effect.what == "ended":
                self.holders.pop(effect.lease.id, None)
        if listener is None:
            return
        try:
            listener(effect)
        except Exception as error:
            self.log("error", f"telling somebody of {effect.what!r} failed: {type(error).__name__}: {error}")

    def _set_timer(self) -> None:
        due = self.state.next_deadline()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self.now()) + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        with contextlib.suppress(DeposedError), self.turn():
            pass

    def close(self) -> None:
        """Store the last facts and close the store."""
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(StoreError):
            if not self.deposed:
                self.store.save([], [], [], self.now(), self.state.queue.use.to_dict())
        self.store.close()
