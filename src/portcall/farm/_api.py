# SPDX-License-Identifier: Apache-2.0
"""The commands of portcall's peers: JSON objects with a ``do``, answered by one object each. They come in by HTTP.

Clients and agents ask again and again: a ``wait`` or ``next`` is answered when there is news, or after a while. So a
connection may be lost at any moment, and a farm may start again, without anything being lost but time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from portcall.farm._access import Access, Token, roles_for
from portcall.farm._agent import Agent, News
from portcall.farm._hub import Hub
from portcall.farm._model import CLASSES, Effect, Lease, Place, Refused
from portcall.farm._state import MOST_SESSIONS, State, hash_secret
from portcall.farm._store import StoreError
from portcall.farm._views import Views
from portcall.rpc.wire._farm import (
    Accepted,
    Admitted,
    Cleaned,
    Closed,
    Declined,
    Ended,
    Opened,
    Report,
    read_report,
    write,
)
from portcall.rpc.wire._texts import check_facts, check_number, check_text, is_lease, readable

HOLD = 20.0  # seconds that an answer is held back at most
LOOK = 5.0  # seconds after which a waiting client hears its place in the queue
_LOOKS = 100.0  # such answers a second at most: later where more clients wait
AGENT_SILENCE = 10.0  # seconds between two questions of an agent
ADMIT_PATIENCE = 5.0
GONE = 5.0  # seconds for a waiting client to come back after its connection has ended
END_PATIENCE = 10.0  # seconds for an agent to end the sessions of a lease, before its end is answered
_LAST_EVENTS = 10  # of a lease, among which is its end
_MOST_PLACES = 2000  # of one user
_MOST_ITEMS = {"keys": 100, "sessions": MOST_SESSIONS, "done": 1000}
NOT_STORED = "the farm cannot write its store, and has changed nothing: ask again later"


class ApiError(Refused):
    """A command that was refused.

    Attributes:
        status: the code of HTTP that fits.
        reason: a word for programs.
    """

    def __init__(self, text: str, reason: str, status: int = 400) -> None:
        super().__init__(text, reason)
        self.status = status


class Api:
    """Answers commands.

    Parameters:
        hub: the farm.
        access: who may do what.
    """

    def __init__(self, hub: Hub, access: Access) -> None:
        self.hub = hub
        self.access = access
        self.views = Views(hub)
        self._agents: dict[str, Agent] = {}
        self._lost: dict[str, Agent] = {}  # whose connections have ended
        self._news: dict[str, News] = {}
        self._asking: Counter[str] = Counter()  # answers that are held back, by lease
        self._gone: dict[str, asyncio.TimerHandle] = {}  # leases whose waiting clients are gone
        self._ending: dict[str, News] = {}  # of places whose agents end sessions, where somebody waits for that

    async def call(self, command: Mapping[str, Any], token: str) -> dict[str, Any]:
        """Answer one command.

        Raises:
            ApiError: it is refused; the message says why.
        """
        name = str(command.get("do"))
        try:
            if name == "redeem":
                return self._redeem(command)
            caller = self.access.caller(token, _text(command, "user", ""))
            if caller is None:
                raise ApiError(self.access.why_not(token), "token", 401)
            method = _COMMANDS.get(name)
            if method is None:
                raise ApiError(f"there is no command {name[:40]!r}", "invalid")
            if not caller.may(name):
                roles = " and ".join(roles_for(name))
                what = "a request for a place" if name == "request" else f"'{name}'"
                raise ApiError(f"{what} is for {roles}, not for the role {caller.role}", "role", 403)
            answer = getattr(self, method)(command, caller)
            if not asyncio.iscoroutine(answer):
                return dict(answer)
            found = dict(await answer)
            if token and self.access.caller(token, "") is None:  # it counts no more since the answer was held back
                raise ApiError(self.access.why_not(token), "token", 401)
            return found
        except ApiError:
            raise
        except Refused as refused:
            raise ApiError(str(refused), refused.reason, 409) from None
        except StoreError:
            raise ApiError(NOT_STORED, "store", 503) from None
        except (ValueError, TypeError) as error:
            raise ApiError(str(error), "invalid") from None

    # ---- Leases ----

    async def _request(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        want, secret = _text(command, "want"), _secret(command)
        class_ = _text(command, "class", "") or max("normal", caller.top_class, key=CLASSES.index)
        if class_ not in CLASSES:
            raise ValueError(f"invalid class {class_!r} (must be one of {', '.join(CLASSES)})")
        if CLASSES.index(class_) < CLASSES.index(caller.top_class):
            raise ApiError(f"the class {class_} is not for you; the most urgent is {caller.top_class}", "class", 403)
        times: dict[str, Any] = {
            "ttl": _number(command, "ttl", 60, 1, 86400), "ceiling": _number(command, "limit", 0, 0, 1e9),
            "wait": _number(command, "wait", 0, 0, 1e9), "priority": _number(command, "priority", 0, -10, 10),
        }  # fmt: skip
        _held_back(command), _seen(command)  # refused before it waits
        with self.hub.turn() as state:
            lease = state.request(want, caller.user, secret=secret, class_=class_, most=caller.most_leases,
                                  keys=caller.keys, hopeless=bool(command.get("hopeless", False)), **times)  # fmt: skip
        return await self._wait_for(lease, command, caller)

    async def _check(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """Lease a place for a check, whatever its health."""
        place, secret = self._place(command), _secret(command)
        _check_keys(caller, place.keys)
        ttl, _, _ = _number(command, "ttl", 60, 1, 86400), _held_back(command), _seen(command)
        with self.hub.turn() as state:
            lease = state.check(place.id, caller.user, secret, ttl)
        return await self._wait_for(lease, command, caller)

    def _checked(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """Take the result of a check, and answer with why the place failed it."""
        lease = self._lease(command, caller)
        if not lease.check or lease.state != "active":
            raise ApiError(f"the lease {lease.id} is not a check that runs", "invalid")
        job, seconds = readable(command.get("job", ""), "job"), _number(command, "seconds", 0, 0, 1e9)
        why, tolerance = readable(command.get("why", ""), "why"), _number(command, "tolerance", 1.5, 1, 1e6)
        with self.hub.turn() as state:
            _check_lasts(lease)
            failed = state.checked(lease.id, job, seconds, why, tolerance)
        return {"failed": failed}

    async def _wait(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        lease = self._lease(command, caller)
        if command.get("end"):
            return await self._wait_for_end(lease, command)
        return await self._wait_for(lease, command, caller)

    async def _wait_for(self, lease: Lease, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
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
        self.hub.ensure(lambda state: state.release(id))

    async def _wait_for_end(self, lease: Lease, command: Mapping[str, Any]) -> dict[str, Any]:
        """Answer once the lease is over, or after a while."""
        until = time.monotonic() + _held_back(command)
        while lease.state != "ended" and (left := until - time.monotonic()) > 0:
            await self._news_of(lease, left)
        return self.views.lease(lease)

    async def _wait_for_place(self, lease: Lease, command: Mapping[str, Any]) -> dict[str, Any]:
        """Answer once the lease is granted or over, or its place in the queue has changed; or after a while."""
        until = time.monotonic() + _held_back(command)
        seen = _seen(command)
        while True:
            with self.hub.turn() as state:
                if lease.id in state.leases:
                    state.heard(lease.id)
            view = self.views.lease(lease, secret=True)
            left = until - time.monotonic()
            if lease.state in ("active", "ended") or left <= 0 or view.get("position", seen) != seen:
                break
            look = max(LOOK, self.hub.state.queue.size / _LOOKS)
            await self._news_of(lease, min(left, look, lease.ttl / 2))
        if lease.state == "active":
            lease.match_key = ""  # it is for one session
        return view

    async def _news_of(self, lease: Lease, seconds: float) -> bool:
        """Wait until something happens to a lease; return whether it did within the time."""
        self.hub.holders[lease.id] = self._on_news
        return await self._news.setdefault(lease.id, News()).wait(seconds)

    def _on_news(self, effect: Effect) -> None:
        assert effect.lease is not None
        news = self._news.get(effect.lease.id)
        if news is not None:
            news.tell()
        if effect.what == "ended":
            self._news.pop(effect.lease.id, None)

    def _lease(self, command: Mapping[str, Any], caller: Token, others: bool = False) -> Lease:
        """Return the lease of a command, which must be the caller's own unless ``others``."""
        id, secret = _text(command, "lease"), _text(command, "secret", "")
        lease = self.hub.state.leases.get(id)
        if lease is None:
            events = self.hub.store.history(lease=id, limit=_LAST_EVENTS) if is_lease(id) else []
            ended = [e for e in events if e["what"] == "lease ended"]
            if ended:
                raise ApiError(f"the lease {id} is over: {ended[-1]['detail']}", "ended", 410)
            raise ApiError(f"there is no lease {id!r}", "unknown", 404)
        if lease.peer == "TVM" and command.get("do") in ("wait", "renew", "session"):  # its client hears by itself
            raise ApiError(f"the lease {id} is held by a connection of TVM's protocol", "invalid")
        proven = secret and hmac.compare_digest(hash_secret(secret), lease.secret_hash)
        owner = self.access.required and caller.user == lease.user
        if not (proven or owner or others or caller.role == "admin"):
            raise ApiError(f"the lease {id} is of {lease.user}", "owner", 403)
        return lease

    def _check_keys(self, lease: Lease, caller: Token) -> None:
        """Check that a token is for the place of a lease, or for all that a request may get. Raises: ApiError."""
        place = self.hub.state.places.get(lease.place) if lease.state == "active" else None
        _check_keys(caller, lease.keys if place is None else place.keys, whole=place is None)

    def _renew(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        lease = self._lease(command, caller)
        with self.hub.turn() as state:
            _check_lasts(lease)
            state.heard(lease.id)
        return self.views.lease(lease)

    async def _release(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        lease = self._lease(command, caller)
        with self.hub.turn() as state:
            state.release(lease.id, "" if caller.user == lease.user else caller.user)
        return await self._ended(lease)

    async def _ended(self, lease: Lease) -> dict[str, Any]:
        """Answer once no session of a lease that has ended is left. An agent that is silent keeps its place."""
        until = time.monotonic() + END_PATIENCE
        place = self.hub.state.places.get(lease.place)
        while place is not None and place.ends_sessions_of(lease.fence) and (left := until - time.monotonic()) > 0:
            await self._ending.setdefault(place.id, News()).wait(left)
        return self.views.lease(lease)

    def _tell_of_end(self, id: str) -> None:
        """Let those look again who wait for the end of sessions at a place."""
        news = self._ending.pop(id, None)
        if news is not None:
            news.tell()

    def _extend(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        lease, seconds = self._lease(command, caller), _number(command, "seconds", 0, 1, 1e9)
        with self.hub.turn() as state:
            _check_lasts(lease)
            state.extend(lease.id, seconds, lease.ceiling, "" if caller.user == lease.user else caller.user)
        return self.views.lease(lease)

    async def _kick(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        lease, why = self._lease(command, caller, others=True), _text(command, "why")
        with self.hub.turn() as state:
            _check_lasts(lease)
            state.kick(lease.id, caller.user, why)
        return await self._ended(lease)

    async def _session(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """Answer with the match key of one more session of an active lease."""
        lease = self._lease(command, caller)
        if lease.state != "active":
            raise ApiError(f"the lease {lease.id} is {lease.state}", lease.state, 409)
        self._check_keys(lease, caller)
        if not lease.match_key:
            await self._for_next_session(lease, _number(command, "hold", HOLD, 0, HOLD))
        agent = self._agents.get(lease.place)
        if not lease.match_key and agent is not None:
            with self.hub.turn() as state:
                _check_lasts(lease)
                key = state.admit(lease.id)
            told = agent.admitted[key] = News()
            try:
                if not await told.wait(ADMIT_PATIENCE):
                    raise ApiError(f"the agent of {lease.place} does not answer", "agent", 503)
            finally:
                agent.admitted.pop(key, None)
            lease.match_key = key
        _check_lasts(lease)
        view = self.views.lease(lease, secret=True)
        lease.match_key = ""
        return view

    async def _for_next_session(self, lease: Lease, seconds: float) -> None:
        """Wait until the agent of a lease is here, or its TVM server is ready for another session."""
        until = time.monotonic() + seconds
        while not lease.match_key and lease.place not in self._agents and lease.state == "active":
            if not await self._news_of(lease, max(0.0, until - time.monotonic())):
                raise ApiError(f"{lease.place} is not ready for another session yet", "agent", 503)

    # ---- Places ----

    def _place(self, command: Mapping[str, Any]) -> Place:
        id = _text(command, "place")
        place = self.hub.state.places.get(id)
        if place is None:
            raise ApiError(f"there is no place {id!r}", "unknown", 404)
        return place

    def _change_place(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        place, what = self._place(command), _text(command, "do")
        why = _text(command, "why", "")
        seconds = _number(command, "seconds", 0, 0, 1e9)
        with self.hub.turn() as state:
            if what in ("drain", "undrain"):
                state.drain(place.id, what == "drain", caller.user)
            elif what == "quarantine":
                state.set_health(place.id, "quarantined", why, caller.user, state.now + seconds if seconds else 0)
            elif what == "maintain":
                state.set_health(place.id, "maintenance", why, caller.user)
            else:
                state.set_health(place.id, "good" if what == "good" else "retired", why, caller.user)
        return self.views.place(place)

    # ---- Agents ----

    def _register(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        id, keys, tags = _text(command, "place"), _texts(command, "keys", "key"), command.get("tags", {})
        if not keys:
            raise ValueError("a place needs at least one key")
        _check_keys(caller, keys, whole=True)
        check_facts(keys, tags)
        what: dict[str, Any] = {
            "host": _text(command, "host", ""), "port": int(_number(command, "port", 0, 0, 65535)),
            "fence": int(_number(command, "fence", 0, 0, 1e15)), "sessions": _texts(command, "sessions", "session"),
            "patience": _number(command, "patience", 0, 0, 86400), "limited": bool(caller.keys),
        }  # fmt: skip
        known, instance = self.hub.state.places.get(id), _text(command, "instance", "")
        if known is not None and known.peer == "TVM":
            raise ValueError(f"the name {id!r} is that of a TVM server")
        owner, old = self._owner(caller, known), self._agents.get(id)
        if old is not None and old.instance != instance:  # it was heard within AGENT_SILENCE
            text = f"another process serves the place {id!r}: give this one a name of its own (--place)"
            raise ApiError(text, "taken", 409)
        with self.hub.turn() as state:
            place = state.register(id, keys, tags, **what)
            place.owner = owner or place.owner
            self._drop_agent(id)
            agent = self._agents[id] = Agent(instance, owner)
            self.hub.agents[id] = agent.order
        self._expect(id, agent)
        news = self._news.get(self.hub.state.places[id].lease)
        if news is not None:
            news.tell()  # its holder may wait for another session
        return {"agent": agent.secret, "hold": HOLD, "place": self.views.place(self.hub.state.places[id])}

    def _owner(self, caller: Token, place: Place | None) -> str:
        """Return who owns a place that a caller serves; empty on a farm without tokens, where users are not known.

        Raises:
            ApiError: it is somebody else's.
        """
        if not self.access.required:
            return ""
        if place is not None and place.owner and place.owner != caller.user:
            text = f"the place {place.id!r} is served by {place.owner}: give this one a name of its own (--place)"
            raise ApiError(f"{text}; an admin may say: portcall farm hand-over {place.id} {caller.user}", "taken", 409)
        if place is None and sum(p.owner == caller.user for p in self.hub.state.places.values()) >= _MOST_PLACES:
            raise ApiError(f"{caller.user} serves {_MOST_PLACES} places already: retire some", "invalid")
        return caller.user

    def _hand_over(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """Let another user serve a place from now on."""
        place, user = self._place(command), _text(command, "to")
        if not self.access.required or place.peer == "TVM":
            raise ApiError(f"{place.id} has no owner: it was registered without a token", "invalid")
        if user not in self.access.users():
            raise ApiError(f"{user!r} has no token", "unknown-user", 404)
        agent = self._agents.get(place.id)
        with self.hub.turn() as state:
            place.owner = user
            state.changed[place] = None
            state.note("place handed over", place=place.id, user=caller.user, detail=f"to {user}")
        if agent is not None and agent.user != user:
            self._drop_agent(place.id)
            self._set_lost(place.id, f"handed over to {user}")
        return self.views.place(place)

    def _proves(self, agent: Agent | None, command: Mapping[str, Any], caller: Token) -> bool:
        if agent is None or agent.user not in ("", caller.user):
            return False
        return hmac.compare_digest(agent.secret.encode(), _text(command, "agent").encode())

    def _agent_of(self, command: Mapping[str, Any], caller: Token) -> tuple[str, Agent]:
        id = _text(command, "place")
        agent = self._agents.get(id)
        if agent is None or id not in self.hub.agents or not self._proves(agent, command, caller):
            raise ApiError(f"the place {id!r} is not registered by you", "register", 409)
        return id, agent

    def _take_report(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        id, agent = self._agent_of(command, caller)
        reports = [read_report(report) for report in _list(command, "done")]
        with self.hub.turn() as state:
            for report in reports:
                self._report(state, id, report)
        for report in reports:
            if isinstance(report, Admitted) and report.key in agent.admitted:
                agent.admitted[report.key].tell()
        self._tell_of_end(id)
        return {}

    async def _next(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """Take what an agent has done, and answer with what it is to do."""
        id, agent = self._agent_of(command, caller)
        hold = _held_back(command)
        self._take_report(command, caller)
        if agent.silence is not None:
            agent.silence.cancel()
        agent.asked += 1
        mine = agent.asked
        agent.news.tell()  # a question of before, whose connection may be dead, gets nothing
        try:
            if not agent.orders:
                await agent.news.wait(hold)
        except asyncio.CancelledError:  # its connection ended
            if agent.asked == mine:
                self._lose(id, agent, "its connection ended")
            raise
        if self._agents.get(id) is not agent:
            raise ApiError(f"the place {id!r} was registered again", "register", 409)
        if agent.asked != mine:
            return {"orders": []}
        self._expect(id, agent)
        orders, agent.orders = agent.orders, []
        return {"orders": [write(order) for order in orders]}

    def _report(self, state: State, id: str, report: Report) -> None:
        if isinstance(report, Accepted):
            state.accepted(id, report.fence)
        elif isinstance(report, Declined):
            state.declined(id, report.fence, report.why)
        elif isinstance(report, Ended):
            place = state.places.get(id)
            if place is not None:
                place.quiet = min(report.fence, place.fence)
        elif isinstance(report, Cleaned):
            state.cleaned(id, report.fence, report.why)
        elif isinstance(report, Opened):
            state.session_opened(id, report.fence, report.session)
        elif isinstance(report, Closed):
            state.session_closed(id, report.fence, report.session, report.why)

    def _expect(self, id: str, agent: Agent) -> None:
        loop = asyncio.get_running_loop()
        agent.silence = loop.call_later(AGENT_SILENCE, self._lose, id, agent, "its agent is silent")

    def _lose(self, id: str, agent: Agent, why: str) -> None:
        if self._agents.get(id) is agent:
            self._lost[id] = self._agents.pop(id)
            self._set_lost(id, why)

    def _set_lost(self, id: str, why: str) -> None:
        self.hub.agents.pop(id, None)
        self.hub.ensure(lambda state: state.lost(id, why))

    def _drop_agent(self, id: str) -> None:
        """Forget the agent of a place, whose waiting answer goes out."""
        for agents in (self._agents, self._lost):
            agent = agents.pop(id, None)
            if agent is not None:
                agent.news.tell()
                if agent.silence is not None:
                    agent.silence.cancel()

    def _leave(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        id = _text(command, "place")
        agent = self._agents.get(id) or self._lost.get(id)
        if self._proves(agent, command, caller):
            with self.hub.turn() as state:
                state.remove(id)
            self._drop_agent(id)
        return {}

    # ---- Tokens and the store ----

    async def _backup(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """Let the farm write a copy beside its store."""
        path, size = await asyncio.to_thread(self.hub.store.backup)
        self.hub.note("backup made", caller.user, path)
        return {"path": path, "nbytes": size}

    def _token_make(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        return {"token": self.access.make(caller.user, **_token_fields(command))}

    def _token_list(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        return {"tokens": self.access.list()}

    def _token_revoke(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        """End tokens, and name the leases that their users still have."""
        users = self.access.users()
        count = self.access.revoke(_text(command, "token-of"), caller.user)
        users -= self.access.users()
        left = [x for x in self.hub.state.leases.values() if x.user in users and x.peer == "portcall"]
        return {"revoked": count, "leases": [self.views.lease(lease) for lease in left]}

    def _pair(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        return {"code": self.access.pair(by=caller.user, **_token_fields(command))}

    def _redeem(self, command: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"token": self.access.redeem(_text(command, "code"))}
        except ValueError as error:
            raise ApiError(str(error), "code", 403) from None

    # ---- Seeing ----

    def _status(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        return self.views.status()

    def _show(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        return self.views.lease(self._lease(command, caller, others=True))

    async def _history(self, command: Mapping[str, Any], caller: Token) -> dict[str, Any]:
        place, lease, user = (_text(command, name, "") for name in ("place", "lease", "of"))
        limit = int(_number(command, "limit", 100, 1, 10_000))
        if lease and not is_lease(lease):
            return {"events": []}
        return {"events": await self.hub.history(place=place, lease=lease, user=user, limit=limit)}


_COMMANDS = {
    "request": "_request", "wait": "_wait", "renew": "_renew", "release": "_release", "extend": "_extend",
    "check": "_check", "checked": "_checked",
    "session": "_session", "kick": "_kick", "lease": "_show", "status": "_status", "history": "_history",
    "drain": "_change_place", "undrain": "_change_place", "maintain": "_change_place", "good": "_change_place",
    "quarantine": "_change_place", "retire": "_change_place", "hand-over": "_hand_over", "register": "_register",
    "next": "_next", "report": "_take_report", "leave": "_leave", "token-make": "_token_make",
    "token-list": "_token_list", "token-revoke": "_token_revoke", "pair": "_pair", "backup": "_backup",
}  # fmt: skip


def _check_lasts(lease: Lease) -> None:
    """Check that a lease has not ended, for which a turn may have been just the time.

    Raises:
        ApiError: it has.
    """
    if lease.state == "ended":
        raise ApiError(f"the lease {lease.id} is over: {lease.reason}", "ended", 410)


def _check_keys(caller: Token, keys: Sequence[str], whole: bool = False) -> None:
    """Check that a token is for one of these keys, or for the ``whole`` of them, if there are any. Raises: ApiError."""
    mine, wanted = set(caller.keys), set(keys)
    if mine and not (wanted and wanted <= mine if whole else wanted & mine):
        raise ApiError(f"your token is for the keys {', '.join(caller.keys)} only", "role", 403)


def _token_fields(command: Mapping[str, Any]) -> dict[str, Any]:
    days = _number(command, "days", 0, 0, 36500)
    return {
        "user": _text(command, "for"), "role": _text(command, "role", "user"), "keys": _texts(command, "keys", "key"),
        "most_leases": int(_number(command, "most_leases", 0, 0, 1e6)),
        "top_class": _text(command, "top_class", "normal"), "expires": time.time() + days * 86400 if days else 0,
    }  # fmt: skip


def _text(command: Mapping[str, Any], name: str, default: str | None = None) -> str:
    return check_text(command.get(name, default), name, least=int(default is None))


def _secret(command: Mapping[str, Any]) -> str:
    secret = _text(command, "secret")
    if len(secret) < 32:
        raise ValueError(f"the secret of a request must have 32 characters or more, not {len(secret)}")
    return secret


def _list(command: Mapping[str, Any], name: str) -> list[Any]:
    value = command.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"the field {name!r} must be a list")
    if len(value) > _MOST_ITEMS[name]:
        raise ValueError(f"the field {name!r} has {len(value)} items (at most {_MOST_ITEMS[name]})")
    return value


def _texts(command: Mapping[str, Any], name: str, one: str) -> list[str]:
    return [check_text(text, one) for text in _list(command, name)]


def _number(command: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    return check_number(command.get(name, default), name, low, high)


def _held_back(command: Mapping[str, Any]) -> float:
    """Return for how many seconds an answer may be held back."""
    return _number(command, "hold", HOLD, 0, HOLD)


def _seen(command: Mapping[str, Any]) -> int:
    """Return the place in the queue of which a client knows."""
    return int(_number(command, "seen", 0, 0, 1e9))
