# SPDX-License-Identifier: Apache-2.0
"""The commands of clients: they request a place, wait for it, use it and give it back.

Clients ask again and again: a ``wait`` is answered when there is news, or after a while. So a connection may be lost at
any moment, and a farm may start again, without anything being lost but time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from typing import Any

from portcall.farm._access import Access, Token
from portcall.farm._agents import Agents
from portcall.farm._command import HOLD, ApiError, Command, check_keys
from portcall.farm._hub import Hub
from portcall.farm._kept import KEPT, Figure
from portcall.farm._model import CLASSES, Effect, Lease
from portcall.farm._news import NewsOf
from portcall.farm._places import Places
from portcall.farm._state import hash_secret
from portcall.farm._views import Views
from portcall.rpc.wire._texts import is_lease

LOOK = 5.0  # seconds after which a waiting client hears its place in the queue
_LOOKS = 100.0  # such answers a second at most: later where more clients wait
ADMIT_PATIENCE = 5.0
GONE = 5.0  # seconds for a waiting client to come back after its connection has ended
END_PATIENCE = 10.0  # seconds for an agent to end the sessions of a lease, before its end is answered
_LAST_EVENTS = 10  # of a lease, among which is its end


class Leases:
    """The leases of a farm, as their holders ask about them.

    Parameters:
        news: of each lease, by its id.
    """

    def __init__(self, hub: Hub, access: Access, views: Views, agents: Agents, places: Places, news: NewsOf) -> None:
        self._hub = hub
        self._access = access
        self._views = views
        self._agents = agents
        self._places = places
        self._news = news
        self._asking: Counter[str] = Counter()  # answers that are held back, by lease
        self._gone: dict[str, asyncio.TimerHandle] = {}  # leases whose waiting clients are gone

    def find(self, command: Command, caller: Token, others: bool = False) -> Lease:
        """Return the lease that a command names.

        Parameters:
            others: those of other users, too.

        Raises:
            ApiError: there is none, or not for this caller.
        """
        id, secret = command.text("lease"), command.text("secret", "")
        lease = self._hub.state.leases.get(id)
        if lease is None:
            events = self._hub.store.history(lease=id, limit=_LAST_EVENTS) if is_lease(id) else []
            ended = [e for e in events if e["what"] == "lease ended"]
            if ended:
                raise ApiError(f"the lease {id} is over: {ended[-1]['detail']}", "ended", 410)
            raise ApiError(f"there is no lease {id!r}", "unknown", 404)
        if lease.peer == "TVM" and command.name in ("wait", "renew", "session"):  # its client hears by itself
            raise ApiError(f"the lease {id} is held by a connection of TVM's protocol", "invalid")
        proven = secret and hmac.compare_digest(hash_secret(secret), lease.secret_hash)
        owner = self._access.required and caller.user == lease.user
        if not (proven or owner or others or caller.role == "admin"):
            raise ApiError(f"the lease {id} is of {lease.user}", "owner", 403)
        return lease

    def show(self, command: Command, caller: Token) -> dict[str, Any]:
        return self._views.lease(self.find(command, caller, others=True))

    # ---- Getting a place ----

    async def request(self, command: Command, caller: Token) -> dict[str, Any]:
        want, secret = command.text("want"), command.secret
        class_ = command.text("class", "") or max("normal", caller.top_class, key=CLASSES.index)
        if class_ not in CLASSES:
            raise ValueError(f"invalid class {class_!r} (must be one of {', '.join(CLASSES)})")
        if CLASSES.index(class_) < CLASSES.index(caller.top_class):
            raise ApiError(f"the class {class_} is not for you; the most urgent is {caller.top_class}", "class", 403)
        times: dict[str, Any] = {
            "ttl": command.number("ttl", 60, 1, 86400), "ceiling": command.number("limit", 0, 0, 1e9),
            "wait": command.number("wait", 0, 0, 1e9), "priority": command.number("priority", 0, -10, 10),
        }  # fmt: skip
        _ = command.hold, command.seen  # refused before it waits
        with self._hub.turn() as state:
            lease = state.request(want, caller.user, secret=secret, class_=class_, most=caller.most_leases,
                                  keys=caller.keys, hopeless=bool(command.get("hopeless", False)), **times)  # fmt: skip
        return await self._wait_for(lease, command, caller)

    async def check(self, command: Command, caller: Token) -> dict[str, Any]:
        """Lease a place for a check, whatever its health."""
        place, secret = self._places.find(command), command.secret
        check_keys(caller, place.keys)
        ttl, _ = command.number("ttl", 60, 1, 86400), (command.hold, command.seen)
        with self._hub.turn() as state:
            lease = state.check(place.id, caller.user, secret, ttl)
        return await self._wait_for(lease, command, caller)

    async def wait(self, command: Command, caller: Token) -> dict[str, Any]:
        lease = self.find(command, caller)
        if command.get("end"):
            return await self._wait_for_end(lease, command)
        return await self._wait_for(lease, command, caller)

    async def _wait_for(self, lease: Lease, command: Command, caller: Token) -> dict[str, Any]:
        """Answer a client that waits for its place. One that is gone for a while does not want it any more."""
        self._check_keys(lease, caller)
        gone = self._gone.pop(lease.id, None)
        if gone is not None:
            gone.cancel()
        self._asking[lease.id] += 1
        try:
            return await self._wait_for_place(lease, command)
        except asyncio.CancelledError:  # its connection ended
            if self._asking[lease.id] == 1:
                loop = asyncio.get_running_loop()
                self._gone[lease.id] = loop.call_later(GONE, self._withdraw, lease.id)
            raise
        finally:
            self._asking[lease.id] -= 1
            if not self._asking[lease.id]:
                del self._asking[lease.id]

    def _withdraw(self, id: str) -> None:
        self._gone.pop(id, None)
        self._hub.ensure(lambda state: state.release(id))

    async def _wait_for_place(self, lease: Lease, command: Command) -> dict[str, Any]:
        """Answer once the lease is granted or over, or its place in the queue has changed; or after a while."""
        until = time.monotonic() + command.hold
        seen = command.seen
        while True:
            with self._hub.turn() as state:
                if lease.id in state.leases:
                    state.heard(lease.id)
            view = self._views.lease(lease, secret=True)
            left = until - time.monotonic()
            if lease.state in ("active", "ended") or left <= 0 or view.get("position", seen) != seen:
                break
            look = max(LOOK, self._hub.state.queue.size / _LOOKS)
            await self._news_of(lease, min(left, look, lease.ttl / 2))
        if lease.state == "active":
            lease.match_key = ""  # it is for one session
        return view

    async def _wait_for_end(self, lease: Lease, command: Command) -> dict[str, Any]:
        """Answer once the lease is over, or after a while."""
        until = time.monotonic() + command.hold
        while lease.state != "ended" and (left := until - time.monotonic()) > 0:
            await self._news_of(lease, left)
        return self._views.lease(lease)

    async def _news_of(self, lease: Lease, seconds: float) -> bool:
        """Wait until something happens to a lease; return whether it did within the time."""
        self._hub.holders[lease.id] = self._on_news
        return await self._news.wait(lease.id, seconds)

    def _on_news(self, effect: Effect) -> None:
        assert effect.lease is not None
        self._news.tell(effect.lease.id)

    def _check_keys(self, lease: Lease, caller: Token) -> None:
        """Check that a token is for the place of a lease, or for all that a request may get. Raises: ApiError."""
        place = self._hub.state.places.get(lease.place) if lease.state == "active" else None
        check_keys(caller, lease.keys if place is None else place.keys, whole=place is None)

    # ---- Using it ----

    async def session(self, command: Command, caller: Token) -> dict[str, Any]:
        """Answer with the match key of one more session of an active lease."""
        lease = self.find(command, caller)
        if lease.state != "active":
            raise ApiError(f"the lease {lease.id} is {lease.state}", lease.state, 409)
        self._check_keys(lease, caller)
        if not lease.match_key:
            await self._for_next_session(lease, command.number("hold", HOLD, 0, HOLD))
        agent = self._agents.here.get(lease.place)
        if not lease.match_key and agent is not None:
            with self._hub.turn() as state:
                _check_lasts(lease)
                key = state.admit(lease.id)
            if not await agent.admits(key, ADMIT_PATIENCE):
                raise ApiError(f"the agent of {lease.place} does not answer", "agent", 503)
            lease.match_key = key
        _check_lasts(lease)
        view = self._views.lease(lease, secret=True)
        lease.match_key = ""
        return view

    async def _for_next_session(self, lease: Lease, seconds: float) -> None:
        """Wait until the agent of a lease is here, or its TVM server is ready for another session."""
        until = time.monotonic() + seconds
        while not lease.match_key and lease.place not in self._agents.here and lease.state == "active":
            if not await self._news_of(lease, max(0.0, until - time.monotonic())):
                raise ApiError(f"{lease.place} is not ready for another session yet", "agent", 503)

    def renew(self, command: Command, caller: Token) -> dict[str, Any]:
        lease = self.find(command, caller)
        with self._hub.turn() as state:
            _check_lasts(lease)
            state.heard(lease.id)
        return self._views.lease(lease)

    def extend(self, command: Command, caller: Token) -> dict[str, Any]:
        lease, seconds = self.find(command, caller), command.number("seconds", 0, 1, 1e9)
        with self._hub.turn() as state:
            _check_lasts(lease)
            state.extend(lease.id, seconds, lease.ceiling, "" if caller.user == lease.user else caller.user)
        return self._views.lease(lease)

    def checked(self, command: Command, caller: Token) -> dict[str, Any]:
        """Take the result of a check, and answer with why the place failed it."""
        lease = self.find(command, caller)
        if not lease.check or lease.state != "active":
            raise ApiError(f"the lease {lease.id} is not a check that runs", "invalid")
        job, seconds = command.said("job"), command.number("seconds", 0, 0, 1e9)
        why, tolerance = command.said("why"), command.number("tolerance", 1.5, 1, 1e6)
        with self._hub.turn() as state:
            _check_lasts(lease)
            failed = state.checked(lease.id, job, seconds, why, tolerance)
        return {"failed": failed}

    def keep(self, command: Command, caller: Token) -> dict[str, Any]:
        """Keep a figure that was measured in a lease."""
        lease = self.find(command, caller)
        if lease.state != "active":
            raise ApiError(f"the lease {lease.id} has no place", "invalid")
        seconds, low, high = (command.number(name, 0, 0, 1e9) for name in ("seconds", "low", "high"))
        figure = Figure(command.said("job"), seconds, low, high, bool(command.number("ok", 0, 0, 1)))
        with self._hub.turn() as state:
            _check_lasts(lease)
            state.note(KEPT, place=lease.place, lease=lease.id, user=lease.user, detail=str(figure))
        return {}

    # ---- Its end ----

    async def release(self, command: Command, caller: Token) -> dict[str, Any]:
        lease = self.find(command, caller)
        with self._hub.turn() as state:
            state.release(lease.id, "" if caller.user == lease.user else caller.user)
        return await self._ended(lease)

    async def kick(self, command: Command, caller: Token) -> dict[str, Any]:
        """End the lease of another user."""
        lease, why = self.find(command, caller, others=True), command.text("why")
        with self._hub.turn() as state:
            _check_lasts(lease)
            state.kick(lease.id, caller.user, why)
        return await self._ended(lease)

    async def _ended(self, lease: Lease) -> dict[str, Any]:
        """Answer once no session of a lease that has ended is left. An agent that is silent keeps its place."""
        until = time.monotonic() + END_PATIENCE
        place = self._hub.state.places.get(lease.place)
        while place is not None and place.ends_sessions_of(lease.fence) and (left := until - time.monotonic()) > 0:
            await self._agents.ends.wait(place.id, left)
        return self._views.lease(lease)


def _check_lasts(lease: Lease) -> None:
    """Check that a lease has not ended, for which a turn may have been just the time.

    Raises:
        ApiError: it has.
    """
    if lease.state == "ended":
        raise ApiError(f"the lease {lease.id} is over: {lease.reason}", "ended", 410)
