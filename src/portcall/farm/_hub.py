# SPDX-License-Identifier: Apache-2.0
"""The state machine with a clock, a store and listeners: what the protocols of a farm work on.

Each change is a *turn*: time passes, the state changes, the change is stored, and then those concerned are notified. A
turn that fails on the way changes nothing: it goes back to the records as they were before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from portcall.farm._image import Image
from portcall.farm._model import Effect, Event, Refused, Rules
from portcall.farm._state import MOST_SESSIONS, State
from portcall.farm._store import Store, StoreError

if TYPE_CHECKING:
    from portcall.farm._redis import RedisStore

Listener = Callable[[Effect], None]
Log = Callable[[str, str], None]

_MOST_UNSAVED = 10_000  # events kept while the store cannot be written
_USE_EVERY = 30.0  # seconds after which the use of users is stored again
_AGAIN = 5.0  # seconds after which what failed is tried again
_TO_AGENTS = ("offer", "admit", "end")
_PAGE = 1000  # events that are read at once


class DeposedError(Exception):
    """Another process of the farm decides now; what this one has in memory counts no more."""


class TurnError(Exception):
    """A turn failed by a mistake of the farm; nothing of it was kept."""


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
        store_error: why the last turn was not stored; empty where it was.
        deposed: a turn could not be written to a store that others write, too; no one was notified.
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
        self._keys_of: dict[str, deque[str]] = {}
        self.watchers: list[Callable[[list[Event]], None]] = []
        self.store_error = ""
        self.deposed = False
        self._offset = 0.0
        self._image = Image(self.state)
        self._inside = self._telling = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._use_stored = 0.0
        self._unsaved: list[Event] = []
        self._load()

    def _load(self) -> None:
        """Take over what was stored. Where it is of a later time, the clock was wrong then: all of it moves back."""
        self.started = now = self.store.clock()
        ahead = self.store.time() - now
        places, leases = self.store.load()
        if ahead > 0:
            self.store.set_clock_back(now, ahead)
            for record in (*places, *leases):
                record.move_times(-ahead)
        self._offset = now - time.monotonic()
        self.state.load(places, leases, self.store.fact("use", {}), now)
        self.state.queue.use.move_times(-max(ahead, 0))
        self._image.settle()
        self._flush()

    def _on_damage(self, text: str) -> None:
        self.log("damaged", text)
        self.counts["portcall_farm_records_set_aside", ""] += 1

    def now(self) -> float:
        """Return the farm's time: seconds since 1970, which do not go back while it runs."""
        return time.monotonic() + self._offset

    @contextlib.contextmanager
    def turn(self) -> Iterator[State]:
        """Change the state; a turn inside of a turn is a part of it. One that fails changes nothing.

        Raises:
            DeposedError: another process has taken over; the connection that caused the turn is to be closed.
            TurnError: another error than a refusal was raised in it.
        """
        if self._inside:
            yield self.state
            return
        if self.deposed:  # to ask a store that does not answer once for each connection would take minutes
            raise DeposedError(self.store_error)
        self._inside = True
        try:
            self._pass_time()
            try:
                yield self.state
                self._image.settle()
            except Refused:  # raised before anything changes
                if self._image.is_touched():
                    self._image.undo()
                raise
            except BaseException as error:
                self._image.undo()
                if isinstance(error, ValueError) or not isinstance(error, Exception):
                    raise
                raise TurnError(f"{type(error).__name__}: {error}") from error
        finally:
            self._inside = False
            self._finish()

    def _finish(self) -> None:
        try:
            self._flush()
        except DeposedError:
            raise
        except Exception as error:  # the turn is whole, and stored by the next one
            self.log("error", f"storing a turn failed: {type(error).__name__}: {error}")
        finally:
            self._set_timer()

    def _pass_time(self) -> None:
        """Do what is due, one thing after the other; what fails is tried again later."""
        now = self.now()
        while True:
            try:
                if not self.state.step(now):
                    return
                self._image.settle()
            except Exception as error:
                thing = self.state.due
                self.log("error", f"what is due for {thing and thing.id!r} failed: {type(error).__name__}: {error}")
                again = thing is not None and thing.not_before <= now
                if thing is not None:
                    thing.not_before = now + _AGAIN
                self._image.undo()
                if not again:
                    return

    def ensure(self, act: Callable[[State], object]) -> None:
        """Change the state now, or later where that fails: what has happened anyway, such as a connection's end."""
        if self._closed:
            return
        try:
            with self.turn() as state:
                act(state)
        except DeposedError:
            pass
        except Exception as error:
            self.log("error", f"a turn failed, and is tried again: {type(error).__name__}: {error}")
            asyncio.get_running_loop().call_later(_AGAIN, self.ensure, act)

    async def history(self, *, limit: int, before: int = 0, **wanted: Any) -> list[dict[str, Any]]:
        """Return the last events, the oldest first, of one ``place``, ``lease`` or ``user``; others go on meanwhile.

        Parameters:
            before: the number that all of them are below; 0 for the last of all.

        Raises:
            StoreError: they cannot be read.
        """
        pages: list[list[dict[str, Any]]] = []
        left = limit
        while left > 0:
            page = self.store.history(**wanted, before=before, limit=min(left, _PAGE))
            if not page:
                break
            pages.append(page)
            before, left = page[0]["number"], left - len(page)
            await asyncio.sleep(0)
        return [event for page in reversed(pages) for event in page]

    async def pages(self, limit: int) -> AsyncIterator[list[dict[str, Any]]]:
        """Give the last events in pieces, the oldest first; one piece at a time is in memory.

        Raises:
            StoreError: they cannot be read.
        """
        newest = self.store.history(limit=1)
        last = newest[0]["number"] if newest else 0
        for after in range(max(0, last - limit), last, _PAGE):
            yield self.store.history(after=after, before=min(after + _PAGE, last) + 1, limit=_PAGE)
            await asyncio.sleep(0)

    def note(self, what: str, user: str, detail: str) -> None:
        """Write a line of the history that belongs to no place and no lease."""
        self.ensure(lambda state: state.note(what, user=user, detail=detail))

    def _flush(self) -> None:
        """Store what whole turns have changed, and notify those concerned, whose turns come next."""
        image = self._image
        while not self._telling and (image.rows or image.events or image.effects):
            saved = self._save()
            if not saved and self.store.shared:
                self.deposed = True
                raise DeposedError(self.store_error)
            effects, image.effects = image.effects, []
            self._telling = True
            try:
                for effect in effects:
                    if not self._attempt(f"telling somebody of {effect.what!r}", self._tell, effect):
                        self._give_up(effect)
            finally:
                self._telling = False
            if not saved and not image.effects:
                return  # the next turn tries again

    def _save(self) -> bool:
        """Store what has changed, and tell the watchers; return whether it is stored.

        Where it is not, leases go on all the same, unless the store is shared: then it has not happened.
        """
        state, image = self.state, self._image
        events, image.events = image.events, []
        self._unsaved += events
        try:
            use = state.queue.use.to_dict() if state.now - self._use_stored > _USE_EVERY else None
            self.store.save(image.rows, self._unsaved, state.now, use)
        except Exception as error:
            if not self.store_error:
                self.log("store", f"cannot write '{self.store.path}': {error}")
            self.store_error = str(error) or type(error).__name__
            del self._unsaved[:-_MOST_UNSAVED]
            if self.store.shared:
                return False
        else:
            self.store_error = ""
            self._use_stored = state.now if use is not None else self._use_stored
            self._unsaved.clear()
            image.rows.clear()
        for watcher in list(self.watchers):
            self._attempt("a watcher", watcher, events)
        return not self.store_error

    def _attempt(self, what: str, act: Callable[[Any], object], value: Any) -> bool:
        """Call something whose failure concerns nothing else; return whether it went well."""
        try:
            act(value)
        except Exception as error:
            self.log("error", f"{what} failed: {type(error).__name__}: {error}")
            return False
        return True

    def _give_up(self, effect: Effect) -> None:
        """Take an agent that could not be told for one that is gone, and a TVM client for one that wants nothing."""
        place, lease = effect.place, effect.lease
        if effect.what in _TO_AGENTS and place is not None:
            self.agents.pop(place.id, None)
            self.ensure(lambda state: state.lost(place.id, "its agent could not be told"))
        elif effect.what == "granted" and lease is not None and lease.peer == "TVM":  # it does not ask again
            self.ensure(lambda state: state.release(lease.id))

    def _tell(self, effect: Effect) -> None:
        listener = None
        if effect.what in ("offer", "admit") and effect.lease is not None:
            key = effect.key or effect.lease.match_key
            self.session_keys[key] = effect.lease.id
            keys = self._keys_of.setdefault(effect.lease.id, deque())
            keys.append(key)
            if len(keys) > MOST_SESSIONS:  # which one was used without the proxy is not known
                self.session_keys.pop(keys.popleft(), None)
        elif effect.what in ("ended", "requeued") and effect.lease is not None:
            for key in self._keys_of.pop(effect.lease.id, ()):
                self.session_keys.pop(key, None)
        if effect.what == "cycle":
            listener = self.power
        elif effect.what in _TO_AGENTS and effect.place is not None:
            listener = self.agents.get(effect.place.id)
        elif effect.lease is not None:
            listener = self.holders.get(effect.lease.id)
            if effect.what == "ended":
                self.holders.pop(effect.lease.id, None)
        if listener is not None:
            listener(effect)

    def _set_timer(self) -> None:
        due = self.state.next_deadline()
        if self._image.rows or self._image.effects:
            due = min(due or float("inf"), self.now() + _AGAIN)  # what is not stored yet
        if self._closed or due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self.now()) + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.ensure(lambda state: None)

    def close(self) -> None:
        """Store the last facts and close the store."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(StoreError):
            if not self.deposed:
                self.store.save(self._image.rows, self._unsaved, self.now(), self.state.queue.use.to_dict())
        self.store.close()
